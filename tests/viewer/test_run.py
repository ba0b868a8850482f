import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.viewer_runs import played, write_credit, write_run

from gym_trl.errors import ConfigError
from gym_trl.records.fields import LARGEST
from gym_trl.records.files import read_records
from gym_trl.records.schema import as_record
from gym_trl.types import StopReason
from gym_trl.viewer.credit import Credit
from gym_trl.viewer.run import COLUMNS, Run

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(-LARGEST, LARGEST)
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*as_record(played()), "token_texts"})
TURN = st.dictionaries(st.sampled_from(["observation", "thinking", "answer", "reward", "action_valid", "start"]), JSON)


def read(path: Path, **options: Any) -> tuple[Run, list[dict[str, Any]]]:
    run = Run(path, **options)
    return run, list(run.read())


def test_a_run_gives_a_row_and_the_words_of_every_episode(tmp_path: Path) -> None:
    run, bodies = read(write_run(tmp_path / "run"))
    assert len(run) == len(bodies) == 32
    assert {name: len(run.columns[name]) for name in COLUMNS} == dict.fromkeys(COLUMNS, 32)
    assert run.columns["return"][:4] == [1.0, -0.5, -0.5, -0.5]
    assert run.columns["turns"][:4] == [1, 2, 3, 1]
    assert (run.columns["ended"][3], run.columns["env"][3], run.columns["group"][4]) == (
        "turn_limit",
        "TrlEnv/Echo-v0",
        1,
    )
    assert bodies[5]["opening"] == [{"role": "system", "text": "Repeat words."}]
    assert bodies[5]["turns"][1]["answer"] == "ox 1.5"
    assert bodies[5]["last"] == "Over."
    tokens = bodies[5]["tokens"]
    assert "".join(tokens["texts"]) == "ox 1.5Say ox.ox 1.5"
    assert tokens["mask"] == [*[1] * 6, *[0] * 7, *[1] * 6]


def test_members_of_a_game_have_one_task_and_other_games_have_others(tmp_path: Path) -> None:
    columns = read(write_run(tmp_path / "run"))[0].columns
    assert columns["same"][:8] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    path, line = tmp_path / "rollouts.jsonl", json.dumps(as_record(played(seed=3)))
    path.write_text(f"{line}\n{line[:40]}")
    run, bodies = read(path)
    assert (len(bodies), run.broken) == (1, 0)
    assert run.bodies(0, 5) == bodies


def test_lines_that_are_no_records_are_counted_and_left_out(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"[1]\nnonsense\n{'[' * 100_000}\n\n{json.dumps(as_record(played()))}\n")
    run, bodies = read(path)
    assert (len(bodies), run.broken) == (1, 3)


@pytest.mark.parametrize("number", ["1e308", "-1e308", "1e999", "NaN", "1" + "0" * 400])
@pytest.mark.parametrize("field", ['"reward": 1.25', '"return": 1.25'])
def test_lines_whose_numbers_have_no_sum_are_broken(tmp_path: Path, field: str, number: str) -> None:
    path, line = tmp_path / "rollouts.jsonl", json.dumps(as_record(played(reward=1.25)))
    assert field in line
    path.write_text(f"{line.replace(field, field.replace('1.25', number))}\n{line}\n")
    run, bodies = read(path)
    assert (len(bodies), run.broken, run.columns["return"]) == (1, 1, [1.25])


def test_records_of_another_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text('{"version": 2, "task": {}, "turns": []}\n')
    with pytest.raises(ConfigError, match="a record of version 2, not 1"):
        read(path)


def test_failures_have_no_return_and_say_what_went_wrong(tmp_path: Path) -> None:
    path = tmp_path / "failures.jsonl"
    failed = as_record(played(turns=0, stop_reason=StopReason.ENV_ERROR, error="it broke"))
    path.write_text(json.dumps(failed) + "\n")
    run, [said] = read(tmp_path)
    assert (run.columns["return"], said["error"]) == ([None], "it broke")


def test_ids_become_text_by_the_runs_own_tokenizer_or_one_that_is_given(tmp_path: Path) -> None:
    import tokenizers

    folder = write_run(tmp_path / "run", tokens=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokenizer.add_tokens(sorted(alphabet))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    ids = tokenizer.encode(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("né")[0][0]).ids
    record = {**as_record(played()), "completion_ids": [*ids, 9999], "mask": [1] * 4, "logprobs": [-0.5] * 4}
    (folder / "rollouts.jsonl").write_text(json.dumps(record) + "\n")
    assert read(folder)[1][0]["tokens"]["texts"] is None
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = read(folder, tokenizer=tmp_path)[1][0]["tokens"]["texts"]
    assert texts[:3] == ["n", "", "é"]  # the second byte of two has the character
    (folder / "tokenizer").mkdir()
    (tmp_path / "tokenizer.json").replace(folder / "tokenizer" / "tokenizer.json")
    assert read(folder)[1][0]["tokens"]["texts"][:3] == ["n", "", "é"]
    with pytest.raises(ConfigError, match="there is no tokenizer at"):
        read(folder, tokenizer=tmp_path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a run"):
        Run(tmp_path)
    with pytest.raises(ConfigError, match="there is no "):
        Run(tmp_path / "nope")


@examples(60)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), JSON), st.lists(TURN | JSON, max_size=2))
def test_a_line_is_shown_as_a_record_of_the_schema_or_counted_as_broken(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any], turns: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / "rollouts.jsonl"
    record = as_record(played())
    record = {**record, **changed, "version": 1, "turns": [*record["turns"], *turns]}  # type: ignore[typeddict-item]
    path.write_text(json.dumps(record) + "\n")
    run, bodies = read(path)
    json.dumps([run.columns, bodies, run.about()], allow_nan=False)
    try:
        [known] = read_records(path)
    except ConfigError:
        assert (len(run), run.broken) == (0, 1)
    else:
        assert (len(run), run.broken) == (1, 0)
        assert bodies[0]["turns"][-1]["answer"] == known["turns"][-1]["answer"]
        assert run.columns["return"] == [known["return"]]


def test_turns_have_their_advantages(tmp_path: Path) -> None:
    run, bodies = read(write_credit(write_run(tmp_path / "run")))
    assert [said["credit"]["advantages"] for said in bodies[8:11]] == [[-0.9], [0.0, -0.9], [0.0, 0.84, -0.9]]
    told = run.about()["credit"]
    assert told["episodes"] == 32
    assert told["typical"] == pytest.approx(
        ((32 * 0.81 + 2 * sum((0.42 * step) ** 2 for step in range(1, 5))) / 40) ** 0.5
    )
    assert run.bodies(8, 3) == bodies[8:11]
    assert read(tmp_path / "run" / "rollouts.jsonl")[1][8]["credit"] == bodies[8]["credit"]  # one file of the run


def test_episodes_without_recorded_advantages_have_no_credit(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    run, bodies = read(folder)
    assert {said["credit"] for said in bodies} == {None}
    assert run.about()["credit"] == {"episodes": 0, "typical": None}
    write_credit(folder, steps=1)
    assert [said["credit"] is None for said in read(folder)[1]] == [False] * 8 + [True] * 24


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        ([0.5], None),  # of two turns
        ([0.123456, -1e-9], {"advantages": [0.1235, -1e-9]}),
        ([-0.0, None], {"advantages": [0.0, None]}),
    ],
)
def test_credit_that_does_not_fit_its_episode_is_left_out(
    tmp_path: Path, advantages: list[Any], expected: dict[str, Any] | None
) -> None:
    about = {"step": 1, "split": "train", "group": 0, "attempt": 0}
    record = as_record(played(turns=2), step=1, split="train", group=0)
    (tmp_path / "rollouts.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "credit.jsonl").write_text(json.dumps({**about, "advantages": advantages}) + "\n")
    [said] = read(tmp_path)[1]
    assert said["credit"] == expected
    assert "-0.0" not in json.dumps(said["credit"])


@examples(60)
@given(st.dictionaries(st.sampled_from(["step", "split", "group", "attempt", "advantages"]), JSON))
def test_any_line_of_credit_is_read_in_the_types_of_the_page(
    tmp_path_factory: pytest.TempPathFactory, line: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / "credit.jsonl"
    path.write_text(json.dumps({"step": 1, "group": 0, "attempt": 0, **line}) + "\n")
    credit = Credit(path)
    credit.read()
    advantages = line.get("advantages")
    turns: list[Any] = [{}] * (len(advantages) if isinstance(advantages, list) else 0)
    found = credit.of({"step": 1, "group": 0, "attempt": 0, **line, "turns": turns})
    json.dumps([credit.about(), found], allow_nan=False)
    if found:
        assert all(value is None or isinstance(value, float) for value in found.advantages)
