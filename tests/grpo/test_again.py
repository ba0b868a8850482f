"""Same seed, same process, again: the same result."""

import json
from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from support import warm

from gym_trl.errors import ConfigError
from gym_trl.grpo.checkpoints import check_batches

SCRIPT = Path(__file__).parent / "train_again.py"

pytestmark = [pytest.mark.trl, pytest.mark.processes]

# A generation lasts two steps, and the checkpoint is of the third: in the middle of one.
REUSED = {"per_device_train_batch_size": 4, "steps_per_generation": 4, "gradient_accumulation_steps": 2, "max_steps": 6}
CHANGED = [{"steps_per_generation": 8}, {"steps_per_generation": 2}, {"gradient_accumulation_steps": 1}]


@pytest.fixture(scope="module", params=["tasks", "plain prompts"])
def report(request, tmp_path_factory):
    tasks = request.param == "tasks"
    options = {"grpo": REUSED, "save_steps": 3, "changed": CHANGED} if tasks else {"plain": True, "exact": False}
    [report] = warm.run_ranks(SCRIPT, tmp_path_factory.mktemp("again"), json.dumps(options))
    return report


@pytest.mark.full
def test_a_spec_that_trains_twice_plays_the_same_episodes_token_by_token(report):
    assert len(report["first"]) >= 2
    assert report["second"] == report["first"]


@pytest.mark.full
def test_two_evaluations_at_one_step_play_and_count_the_same(report):
    first, again = report["evaluations"]
    assert len(first[0]) == 2
    assert again == first
    tasks = [task for _, _, tasks, _ in first[0] for task in tasks]
    assert len(set(tasks)) == 3


@pytest.mark.full
@pytest.mark.parametrize("trainer", ["resumed", "resumed itself"])
def test_a_resume_in_the_same_process_plays_what_the_whole_training_did(report, trainer):
    begun = min(step for _, step, *_ in report[trainer])
    assert begun >= 2
    assert report[trainer] == [rollout for rollout in report["first"] if rollout[1] >= begun]


@pytest.mark.full
def test_a_resume_that_would_split_groups_is_refused_before_it_plays(report):
    names = ["steps_per_generation=4 and it is 8", "steps_per_generation=4 and it is 2"]
    names += ["gradient_accumulation_steps=2 and it is 1"]
    for (played, said), name in zip(report["refused"], names, strict=False):
        assert played == 0
        assert name in said


SETTINGS = st.fixed_dictionaries(
    {
        "per_device_train_batch_size": st.sampled_from([4, 8]),
        "gradient_accumulation_steps": st.sampled_from([1, 2, 4]),
        "steps_per_generation": st.sampled_from([1, 2, 4]),
        "num_iterations": st.sampled_from([1, 2]),
        "num_generations": st.sampled_from([2, 4]),
        "num_processes": st.sampled_from([1, 2]),
    }
)


def rows_of(settings, step):
    """Return the rows of the tasks' order that a step trains on, in their groups."""
    pieces, iterations = settings["steps_per_generation"], settings["num_iterations"]
    size = settings["per_device_train_batch_size"] * settings["num_processes"]
    rows = []
    for micro in range(settings["gradient_accumulation_steps"]):
        generation, piece = divmod(step * settings["gradient_accumulation_steps"] + micro, pieces * iterations)
        first = (generation * pieces + piece % pieces) * size
        rows += [(row, row // settings["num_generations"]) for row in range(first, first + size)]
    return sorted(rows)


@given(SETTINGS, SETTINGS, st.integers(0, 12))
def test_what_is_accepted_trains_on_the_same_tasks_in_the_same_groups(saved, now, step):
    if (said := refusal(saved, now, step)) is None:
        assert all(rows_of(saved, later) == rows_of(now, later) for later in range(step, step + 8))
    else:
        for name in saved:
            assert (f"{name}={saved[name]} and it is {now[name]} now" in said) == (saved[name] != now[name])


def refusal(saved, now, step):
    try:
        check_batches(saved, now, step)
    except ConfigError as error:
        return str(error)
    return None


@given(SETTINGS, st.integers(0, 12))
def test_the_same_settings_are_always_accepted(settings, step):
    check_batches(settings, dict(settings), step)
