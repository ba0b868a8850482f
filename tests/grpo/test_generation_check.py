"""Obstacles to generation are named before a model is loaded."""

from typing import Any

import pytest
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("temperature", {"temperature": 0.0}),
        ("use_transformers_continuous_batching", {"use_transformers_continuous_batching": True}),
        ("vllm_tensor_parallel_size", {"use_vllm": True, "vllm_tensor_parallel_size": 2}),
    ],
)
def test_what_cannot_sample_is_refused_before_a_model_is_loaded(name: str, settings: dict[str, Any]) -> None:
    """Law 22."""
    args = GRPOConfig(report_to=[], use_cpu=True, bf16=False, vllm_mode="colocate", **settings)
    with pytest.raises(ConfigError, match=name):
        GymGRPOTrainer("no such model", args=args, spec=GymSpec("TrlEnv/Echo-v0"))
