import re
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import TaskError, TranscriptError
from gym_trl.types import Answer, EpisodeResult, StopReason, Task, TokenTrace, Turn

texts = st.text(max_size=20)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(texts, st.integers(min_value=0), st.dictionaries(texts, json_values, max_size=3))
def test_a_task_survives_its_string(env_id, seed, options):
    task = Task(env_id, seed, options)
    assert Task.from_json(task.to_json()) == task


@pytest.mark.parametrize("text", ["", "7", "[]", "{}", '{"env_id": 1, "seed": 2}', '{"env_id": "A", "seed": "2"}'])
def test_what_is_no_task_is_named(text):
    with pytest.raises(TaskError, match="a task"):
        Task.from_json(text)


@pytest.mark.parametrize("reason", StopReason)
def test_only_faults_outside_the_model_leave_an_episode_without_a_score(reason):
    faults = {StopReason.ENV_ERROR, StopReason.TIMEOUT, StopReason.STRAGGLER, StopReason.CANCELLED}
    assert reason.scored == (reason not in faults | {StopReason.UNPLAYED})  # which has no turn to score


@pytest.mark.parametrize(
    ("ids", "mask", "logprobs"), [([1], [1, 1], [0.0]), ([1, 2], [1, 1], [0.0]), ([1, 2], [1, 0], [0.0, 0.0])]
)
def test_a_trajectory_whose_lists_disagree_cannot_be_made(ids, mask, logprobs):
    with pytest.raises(TranscriptError):
        EpisodeResult(Task("A", 0), StopReason.SUCCESS, (), (), TokenTrace([0], ids, mask, logprobs))


def test_the_table_of_stop_reasons_has_all_of_them_and_which_are_scored():
    page = (Path(__file__).parents[1] / "docs" / "concepts" / "groups.md").read_text(encoding="utf-8")
    documented: dict[str, str] = {}
    for names, scored in re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| ((?:yes|no)(?:, (?:yes|no))?) \|", page, re.MULTILINE):
        reasons, answers = re.findall(r"\w+", names), scored.split(", ")
        documented |= dict(zip(reasons, answers * len(reasons) if len(answers) == 1 else answers, strict=True))
    assert documented == {reason.value: "yes" if reason.scored else "no" for reason in StopReason}


@pytest.mark.parametrize(("reason", "count"), [(StopReason.ENV_ERROR, 2), (StopReason.SUCCESS, 0)])
def test_an_episode_without_a_scored_reason_or_a_turn_has_no_score(reason, count):
    turns = (Turn("", Answer("", ""), 1.0, True, 0, 0),) * count
    played = EpisodeResult(Task("A", 0), reason, turns, ())
    assert (played.scored, played.success, played.episode_return) == (False, None, None)
