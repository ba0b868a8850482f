"""Refusals of a rehearsal; what it does is in tests/compat/test_each_way.py."""

from types import SimpleNamespace

import pytest

from gym_trl.errors import ConfigError
from gym_trl.grpo.prepare import PeakMemory, prepare


def test_a_trainer_without_a_rollout_and_too_few_steps_are_refused():
    with pytest.raises(ConfigError, match="needs a trainer with a rollout_func"):
        prepare(SimpleNamespace(rollout_func=None))
    with pytest.raises(ConfigError, match="steps must be at least 2, got 1"):
        prepare(SimpleNamespace(rollout_func=print), steps=1)


def test_without_a_gpu_only_main_memory_is_told():
    assert (
        str(PeakMemory(None, None, 2**31, 10, 20, 1.5))
        == "2.0 GiB in main memory; 1.5 s a step with 10 + 20 tokens a row"
    )
