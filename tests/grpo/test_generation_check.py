"""Obstacles to generation are named before a model is loaded."""

import pytest

from gym_trl.errors import ConfigError
from gym_trl.grpo.generation_check import check_generation


def test_one_vllm_in_several_processes_is_refused() -> None:
    with pytest.raises(ConfigError, match="vllm_tensor_parallel_size"):
        check_generation({"use_vllm": True, "vllm_tensor_parallel_size": 2})


def test_continuous_batching_is_refused_before_a_model_is_loaded() -> None:
    from trl import GRPOConfig

    from gym_trl import GymGRPOTrainer, GymSpec

    args = GRPOConfig(report_to=[], use_cpu=True, bf16=False, use_transformers_continuous_batching=True)
    with pytest.raises(ConfigError, match="use_transformers_continuous_batching"):
        GymGRPOTrainer("no such model", args=args, spec=GymSpec("TrlEnv/Echo-v0"))
