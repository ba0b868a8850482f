import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.viewer_runs import played, recorded, write_run

from gym_trl.errors import ConfigError
from gym_trl.evaluation import Score
from gym_trl.records import ROLLOUTS, append, read_records, record_of
from gym_trl.types import StopReason
from gym_trl.viewer.run import COLUMNS, Run

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*recorded(played()), "advantages"})
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
    assert run.columns["same"][:8] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [run.columns[name][4] for name in ("ended", "env", "group")] == ["ended", "TrlEnv/Echo-v0", 1]
    assert bodies[5]["opening"] == [{"role": "system", "text": "Repeat words."}]
    assert bodies[5]["turns"][1]["answer"] == "ox 1.5"
    assert bodies[5]["last"] == "Over."
    tokens = bodies[5]["tokens"]
    assert "".join(tokens["texts"]) == "ox 1.5Say ox.ox 1.5"
    assert tokens["mask"] == [*[1] * 6, *[0] * 7, *[1] * 6]


def test_a_torn_last_line_and_lines_that_are_no_records_are_left_out(tmp_path: Path) -> None:
    path, line = tmp_path / ROLLOUTS, json.dumps(record_of(played()))
    path.write_text(f"[1]\nnonsense\n{'[' * 100_000}\n\n{line}\n{line[:40]}")
    run, bodies = read(path)
    assert (len(bodies), run.broken) == (1, [1, 2, 3, 6])


def test_failures_have_no_return_and_say_what_went_wrong(tmp_path: Path) -> None:
    append(tmp_path / ROLLOUTS, [record_of(played(turns=0, stop_reason=StopReason.ENV_ERROR, error="it broke"))])
    run, [said] = read(tmp_path)
    assert (run.columns["return"], said["error"]) == ([None], "it broke")


def test_success_that_others_declare_has_failed_without_a_declaration(tmp_path: Path) -> None:
    """Law 13."""
    undeclared = record_of(played()) | {"success": None}
    append(tmp_path / ROLLOUTS, [undeclared])
    assert read(tmp_path)[0].columns["success"] == [None]
    append(tmp_path / ROLLOUTS, [record_of(played())])
    run, _ = read(tmp_path)
    assert run.columns["success"] == [False, True]
    [player] = run.about()["players"]
    assert (player["success"][0], player["scored"]) == (0.5, 2)


def test_a_score_is_the_same_number_as_that_of_an_evaluation(tmp_path: Path) -> None:
    """Law 13."""
    records = [record_of(played(seed=seed // 2, reward=seed % 3), policy="solver") for seed in range(24)]
    records = [one | {"success": one["return"] == 2} for one in records]
    append(tmp_path / ROLLOUTS, records)
    run, _ = read(tmp_path)
    [player] = run.about()["players"]
    score = Score("solver", list(read_records(tmp_path)))
    assert [player["success"], player["return"]] == [list(score.mean()), list(score.mean("return"))]


def test_ids_become_text_by_the_runs_own_tokenizer_or_one_that_is_given(tmp_path: Path) -> None:
    import tokenizers

    folder = write_run(tmp_path / "run", texts=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    tokenizer.add_tokens(sorted(alphabet))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    ids = tokenizer.encode(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("né")[0][0]).ids
    record = {**record_of(played()), "completion_ids": [*ids, 9999], "mask": [1] * 4, "logprobs": [-0.5] * 4}
    (folder / ROLLOUTS).write_text(json.dumps(record) + "\n")
    assert read(folder)[1][0]["tokens"]["texts"] is None
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    texts = read(folder, tokenizer=tmp_path)[1][0]["tokens"]["texts"]
    assert texts[:3] == ["n", "", "é"]  # the second byte of two has the character
    (folder / "model").mkdir()
    (tmp_path / "tokenizer.json").replace(folder / "model" / "tokenizer.json")
    assert read(folder)[1][0]["tokens"]["texts"][:3] == ["n", "", "é"]
    with pytest.raises(ConfigError):
        read(folder, tokenizer=tmp_path)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nope"):
        with pytest.raises(ConfigError):
            Run(path)


def test_turns_have_their_advantages(tmp_path: Path) -> None:
    run, bodies = read(write_run(tmp_path / "run", credit=True))
    assert [said["advantages"] for said in bodies[8:11]] == [[-0.9], [0.0, -0.9], [0.0, 0.84, -0.9]]
    squares = 32 * 0.81 + 2 * sum((0.42 * step) ** 2 for step in range(1, 5))
    assert run.about()["typical_advantage"] == pytest.approx((squares / 40) ** 0.5)
    append(tmp_path / "run" / ROLLOUTS, [record_of(played(turns=2), advantages=[0.5])])  # of two turns
    assert read(tmp_path / "run")[1][-1]["advantages"] is None


@examples(100)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), JSON), st.lists(TURN | JSON, max_size=2))
def test_a_line_is_shown_as_a_record_or_counted_as_broken(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any], turns: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / ROLLOUTS
    record = recorded(played())
    path.write_text(json.dumps({**record, **changed, "version": 1, "turns": [*record["turns"], *turns]}) + "\n")
    run, bodies = read(path)
    json.dumps([run.columns, bodies, run.about()], allow_nan=False)
    assert len(run) == len(list(read_records(path))) == 1 - len(run.broken)


@examples(50)
@given(JSON, JSON, JSON)
def test_any_summary_and_configuration_are_shown(
    tmp_path_factory: pytest.TempPathFactory, options: Any, before: Any, score: Any
) -> None:
    folder = write_run(tmp_path_factory.mktemp("any"), steps=1)
    (folder / "config.json").write_text(json.dumps({"options": options, "versions": options}))
    (folder / "summary.json").write_text(json.dumps({"before": before, "after": {"tiny": score}}))
    run, _ = read(folder)
    json.dumps([run.about(), run.metrics], allow_nan=False)
