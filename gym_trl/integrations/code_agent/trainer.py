"""TRL's ``GRPOTrainer`` with the argument ``environment``."""

from typing import Any

from gym_trl.errors import ConfigError, needs
from gym_trl.integrations.code_agent.environments import Environment

with needs("train", "GRPOTrainer"):
    from trl import GRPOConfig, GRPOTrainer as _GRPOTrainer

__all__ = ["GRPOConfig", "GRPOTrainer"]


class GRPOTrainer(_GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
    """TRL's ``GRPOTrainer`` with an argument ``environment``, whose ``rollout_func`` it uses.

    Raises:
        ConfigError: both ``environment`` and ``rollout_func`` are given.
    """

    def __init__(self, *args: Any, environment: Environment | None = None, **options: Any) -> None:
        if environment is not None:
            if options.get("rollout_func") is not None:
                raise ConfigError("give environment or rollout_func: an environment brings its own")
            options["rollout_func"] = environment.rollout_func
        super().__init__(*args, **options)
