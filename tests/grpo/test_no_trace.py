# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""A training leaves no trace in TRL and Transformers, and a failed one changes no later one."""

import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import for_traces
import pytest
import warm
from for_traces import FEATURES, PLACES
from hypothesis import HealthCheck, example, given, settings, strategies as st
from lanes import examples

pytestmark = [pytest.mark.trl]
ERRORS = (RuntimeError, KeyboardInterrupt)
FAILING = st.tuples(st.sampled_from(sorted(FEATURES)), st.sampled_from(PLACES), st.sampled_from(ERRORS), st.booleans())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the rows of a stock training in a process of its own."""
    return warm.run_ranks(Path(for_traces.__file__), tmp_path_factory.mktemp("alone"))[0]


@settings(examples(15), suppress_health_check=list(HealthCheck))
@given(trainings=st.lists(FAILING, min_size=1, max_size=3))
@example(trainings=[("plain", "logs", RuntimeError, False)])
@example(trainings=[("credit", "reward", KeyboardInterrupt, False), ("both", "nowhere", RuntimeError, True)])
def test_a_training_that_fails_anywhere_changes_no_later_one(alone, trainings):
    before = for_traces.attributes()
    assert not for_traces.ours(before)
    with tempfile.TemporaryDirectory() as folder:
        for feature, place, error, evaluates in trainings:
            ends = () if place == "nowhere" else (AttributeError,) if place == "logs" else (error,)
            with pytest.raises(ends) if ends else nullcontext():
                for_traces.train(Path(folder), feature, place, error("on purpose"), evaluates=evaluates)
            after = for_traces.attributes()
            assert not [name for name, value in before.items() if after.get(name) is not value != after.get(name)]
            assert not for_traces.ours(after)
        assert for_traces.stock(Path(folder)) == alone


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("processes", [1, 2])
def test_a_trainer_attached_in_its_first_batch_trains_as_one_attached_before(tmp_path, processes):
    for report in warm.run_ranks(Path(__file__).parent / "train_attached.py", tmp_path, processes=processes):
        for feature in FEATURES:
            early, late = report[feature]["logs"]
            assert early == late
            assert len(early) == 2
            assert report[feature]["weights"], feature


SETTINGS = """
from gym_trl.training.options import choose
from gym_trl.training.run import grpo_config

grpo_config(choose("TrlEnv/Echo-v0"))
import for_traces

assert not for_traces.ours(for_traces.attributes())
"""


@pytest.mark.full
def test_making_the_settings_of_a_run_leaves_trl_as_it_is_imported():
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(for_traces.__file__).parent), *sys.path])}
    ran = subprocess.run([sys.executable, "-c", SETTINGS], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
