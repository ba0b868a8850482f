import pytest
from hypothesis import given, strategies as st

from gym_trl.episode import Episode, Segment
from gym_trl.errors import TaskError, TranscriptError
from gym_trl.types import StopReason, Task

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
@pytest.mark.parametrize("turns", [0, 2])
def test_only_faults_outside_the_model_leave_an_episode_without_a_score(reason, turns):
    episode = Episode(Task("A", 0), declares_success=True)
    for _ in range(turns):
        episode.answer("go")
    episode.stop(reason)
    outside = reason in (StopReason.ENV_ERROR, StopReason.CANCELLED, StopReason.UNPLAYED)
    assert episode.scored == (not outside and turns > 0)
    assert (episode.episode_return, episode.success) == ((0.0, False) if episode.scored else (None, None))


def test_sampled_ids_need_their_logprobs():
    with pytest.raises(TranscriptError):
        Segment([0]).add([1, 2], [0.0])
