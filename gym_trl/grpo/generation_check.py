"""Check of the options of generation, before a model is loaded."""

from collections.abc import Mapping
from typing import Any

from gym_trl.errors import ConfigError


def check_generation(config: Mapping[str, Any]) -> None:
    """Check that a trainer whose ``GRPOConfig`` has these fields can generate.

    >>> check_generation({"use_vllm": False, "use_transformers_continuous_batching": True})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: use_transformers_continuous_batching=True is not supported: ...

    Raises:
        ConfigError: It would generate with Transformers' continuous batching, or with one vLLM in several processes.
    """
    if not config.get("use_vllm"):
        if config.get("use_transformers_continuous_batching"):
            raise ConfigError(
                "use_transformers_continuous_batching=True is not supported: it has no seed per request and no stop "
                "strings. Leave it out: requests join and leave the running batch without it, too"
            )
        return
    processes = config.get("vllm_tensor_parallel_size") or 1
    if config.get("vllm_mode", "colocate") == "colocate" and processes > 1:
        raise ConfigError(
            f"vllm_tensor_parallel_size={processes} is not supported: each process plays episodes of its own. Give a "
            "large model to `vllm serve --tensor-parallel-size`, with vllm_mode='server'"
        )
