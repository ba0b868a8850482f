"""A training leaves no trace in TRL and Transformers, and a failed one changes no later one."""

import os
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from support import warm
from support.lanes import examples

from grpo import failing_trainings
from grpo.failing_trainings import FEATURES, PLACES

ERRORS = (RuntimeError, KeyboardInterrupt)
FAILING = st.tuples(st.sampled_from(sorted(FEATURES)), st.sampled_from(PLACES), st.sampled_from(ERRORS), st.booleans())


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return the rows of a stock training in a process of its own."""
    return warm.run_ranks(Path(failing_trainings.__file__), tmp_path_factory.mktemp("alone"))[0]


@settings(examples(8), suppress_health_check=list(HealthCheck))
@given(trainings=st.lists(FAILING, min_size=1, max_size=2))
@example(trainings=[("plain", "logs", RuntimeError, False)])
@example(trainings=[("credit", "reward", KeyboardInterrupt, False), ("both", "nowhere", RuntimeError, True)])
@example(trainings=[("stock", "loss", RuntimeError, False), ("stock", "nowhere", RuntimeError, True)])
def test_a_training_that_fails_anywhere_changes_no_later_one(alone, trainings):
    before = failing_trainings.attributes()
    assert not failing_trainings.ours(before)
    with tempfile.TemporaryDirectory() as folder:
        for feature, place, error, evaluates in trainings:
            ends = () if place == "nowhere" else (AttributeError,) if place == "logs" else (error,)
            with pytest.raises(ends) if ends else nullcontext():
                failing_trainings.train(Path(folder), feature, place, error("on purpose"), evaluates=evaluates)
            after = failing_trainings.attributes()
            assert not [name for name, value in before.items() if after.get(name) is not value != after.get(name)]
            assert not failing_trainings.ours(after)
        assert failing_trainings.stock(Path(folder)) == alone


SETTINGS = """
from pathlib import Path

from gym_trl.training import _grpo_config, choose

_grpo_config(Path("run"), choose("TrlEnv/Echo-v0"))
from grpo import failing_trainings

assert not failing_trainings.ours(failing_trainings.attributes())
"""


@pytest.mark.slow
def test_making_the_settings_of_a_run_leaves_trl_as_it_is_imported():
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(failing_trainings.__file__).parents[1]), *sys.path]),
    }
    ran = subprocess.run([sys.executable, "-c", SETTINGS], env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
