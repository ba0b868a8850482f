"""Episodes on disk, and what is made of them."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.viewer_runs import played, recorded

from gym_trl.episode import Episode, Segment, Span
from gym_trl.errors import ConfigError
from gym_trl.records import (
    ROLLOUTS,
    append,
    messages_of,
    preference_rows,
    read_records,
    record_of,
    sft_rows,
    to_json,
)
from gym_trl.types import Answer, StepResult, StopReason, Task

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def of_two_segments() -> Episode:
    episode = Episode(Task("TrlEnv/Echo-v0", 1, {"instance": 2}), seat=1)
    episode.segments = [Segment([1, 2]), Segment([1, 3])]
    episode.begin(StepResult("Say ox.", instructions="Repeat."))
    for number, answer in enumerate((Answer("Hm.", "ox"), Answer("", "yak"))):
        place = episode.segments[number].add([7, 8], [-0.5, -0.25])
        episode.answer(answer, [Span(number, *place)])
        info = {"action": answer.text, "action_valid": number == 0}
        episode.step(StepResult("Go on.", reward=0.5, terminated=number == 1, info=info))
    return episode


def test_a_record_has_the_tokens_of_each_segment_the_turns_and_why_it_ended(tmp_path: Path) -> None:
    about: dict[str, Any] = {"policy": "tiny", "split": "train", "step": 3, "group": 1, "attempt": 2}
    record = record_of(of_two_segments(), env_kwargs={"turns": 2}, tokens=True, advantages=[0.1, -0.1], **about)
    append(tmp_path / ROLLOUTS, [record])
    [read] = read_records(tmp_path)
    assert {name: read[name] for name in about} == about
    assert (read["return"], read["success"], read["seat"], read["stop_reason"]) == (1.0, None, 1, "ended")
    assert (read["task"]["env_kwargs"], read["task"]["options"]) == ({"turns": 2}, {"instance": 2})
    assert (read["prompt_ids"], read["completion_ids"]) == ([1, 2], [7, 8, 1, 3, 7, 8])
    assert (read["mask"], read["logprobs"]) == ([1, 1, 0, 0, 1, 1], [-0.5, -0.25, 0.0, 0.0, -0.5, -0.25])
    assert read["segments"] == [{"start": 2, "stop": 4, "turn": 1}]
    assert [(turn["start"], turn["stop"], turn["action_valid"]) for turn in read["turns"]] == [
        (0, 2, True),
        (4, 6, False),
    ]
    assert (read["advantages"], read["invalid_actions"], read["sampled_tokens"]) == ([0.1, -0.1], 1, 4)
    assert [message["content"] for message in messages_of(read)] == ["Repeat.\n\nSay ox.", "ox", "Go on.", "yak"]
    assert read["last_observation"] == "Go on."


def test_failed_episodes_are_recorded_beside_the_others(tmp_path: Path) -> None:
    failed = Episode(Task("TrlEnv/Echo-v0", 1))
    failed.stop(StopReason.ENV_ERROR, "it broke")
    append(tmp_path / ROLLOUTS, [record_of(failed), record_of(played())])
    assert [(one["return"], one["error"]) for one in read_records(tmp_path)] == [(None, "it broke"), (1.0, None)]


@pytest.mark.parametrize("kept", [0, 1, 40, -1])
def test_a_line_that_a_crash_has_cut_loses_one_episode(tmp_path: Path, kept: int) -> None:
    path, line = tmp_path / ROLLOUTS, json.dumps(record_of(played(seed=1)))
    path.write_text(f"{line}\n{line[:kept]}")
    assert len(list(read_records(path))) == 1
    append(path, [record_of(played(seed=2))])
    append(path, [record_of(played(seed=3))])
    broken: list[int] = []
    assert [one["task"]["seed"] for one in read_records(path, broken=broken)] == [1, 2, 3]
    assert broken == ([2] if kept else [])


def test_fields_that_are_not_known_are_kept_and_missing_ones_have_defaults(tmp_path: Path) -> None:
    turn = {"observation": "a", "answer": "b", "mood": "good"}
    append(tmp_path / ROLLOUTS, [{"version": 1, "task": {"planet": "Mars"}, "turns": [turn], "colour": ["red"]}])
    [record] = read_records(tmp_path)
    assert (record["colour"], record["task"]["planet"], record["turns"][0]["mood"]) == (["red"], "Mars", "good")
    assert (record["return"], record["attempt"], record["num_turns"], record["turns"][0]["reward"]) == (None, 0, 1, 0.0)


def test_records_of_another_version_are_refused(tmp_path: Path) -> None:
    append(tmp_path / ROLLOUTS, [{"version": 9, "task": {}, "turns": []}])
    with pytest.raises(ConfigError):
        list(read_records(tmp_path))
    with pytest.raises(ConfigError):
        list(read_records(tmp_path / "nowhere"))


@examples(100)
@given(st.dictionaries(st.sampled_from(sorted(recorded(played()))) | st.text(max_size=4), JSON), st.lists(JSON))
def test_any_line_is_a_record_of_which_everything_can_be_made_or_is_skipped(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any], turns: list[Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / ROLLOUTS
    record = recorded(played())
    path.write_text(json.dumps({**record, "turns": [*record["turns"], *turns], **changed, "version": 1}) + "\n")
    read = list(read_records(path))
    to_json([sft_rows(read, min_return=-9.0), sft_rows(read), preference_rows(read)])


@pytest.mark.parametrize("number", ["1e308", "1e999", "NaN", "1" + "0" * 400, "true", '"1"'])
@pytest.mark.parametrize("field", ['"reward": 1.25', '"return": 1.25'])
def test_numbers_that_have_no_sum_make_no_record(tmp_path: Path, field: str, number: str) -> None:
    line = json.dumps(record_of(played(reward=1.25)))
    (tmp_path / ROLLOUTS).write_text(f"{line.replace(field, field.replace('1.25', number))}\n")
    assert list(read_records(tmp_path)) == []


def test_a_value_without_json_is_written_as_what_it_is_called(tmp_path: Path) -> None:
    import numpy as np

    written = {"array": np.arange(2), "number": np.float32(0.5), "path": tmp_path, "function": to_json, "inf": 1e999}
    read = json.loads(to_json(written))
    assert (read["array"], read["number"], read["path"]) == ([0, 1], 0.5, str(tmp_path))
    assert (read["function"], read["inf"]) == ("gym_trl.records:to_json", None)


# ---------------------------------------------------------------------------------------------------------------------
# Data sets
# ---------------------------------------------------------------------------------------------------------------------


def outcomes() -> list[dict[str, Any]]:
    """Two games with two attempts each, and one that a training was evaluated with."""
    games = [(1, 1.0), (1, -0.5), (2, 0.0), (2, 0.0)]
    records = [
        record_of(played(seed=seed, reward=reward, answer=f"{reward}", thinking="Hm.")) for seed, reward in games
    ]
    records[1]["success"] = records[2]["success"] = records[3]["success"] = False
    return [*records, record_of(played(seed=1, reward=9.0), split="eval", step=0)]


def test_conversations_are_those_that_were_solved_or_have_a_return() -> None:
    rows = sft_rows(outcomes())
    assert [row["messages"][-1] for row in rows] == [{"role": "assistant", "content": "1.0"}]
    assert len(sft_rows(outcomes(), min_return=0.0)) == 3
    assert sft_rows(outcomes(), thinking=True)[0]["messages"][-1]["content"] == "<think>\nHm.\n</think>\n\n1.0"


def test_a_pair_is_the_best_and_the_worst_episode_of_a_task() -> None:
    [pair] = preference_rows(outcomes())
    assert [message["role"] for message in pair["prompt"]] == ["system", "user"]
    assert (pair["chosen"][-1]["content"], pair["rejected"][-1]["content"]) == ("1.0", "-0.5")


def test_seats_and_other_openings_are_not_compared() -> None:
    one, other = (record_of(played(seed=1, reward=reward)) for reward in (1.0, 0.0))
    assert len(preference_rows([one, other])) == 1
    assert preference_rows([one | {"seat": 0}, other | {"seat": 1}]) == []
    assert preference_rows([one, other | {"opening": [{"role": "user", "content": "Hello."}]}]) == []
