"""Interface of executors."""

from collections.abc import Callable
from typing import Protocol, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.types import EnvFailure, StepResult, Task

TextEnvironment: TypeAlias = gym.Env[str, str]
EnvFactory: TypeAlias = Callable[[str], TextEnvironment]
"""Function that makes an environment from its id."""


class EnvPool(Protocol):
    """Interface of pools, which step the environments of many episodes; ``key`` identifies the episode.

    ``collect`` returns exactly one result, a result or a failure, for every ``reset`` and ``step``.
    """

    def reset(self, key: str, task: Task) -> None:
        """Start the episode ``key`` in an idle or a new instance."""
        ...

    def step(self, key: str, action: str) -> None:
        """Step the environment of the episode ``key``."""
        ...

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        ...

    def release(self, key: str) -> None:
        """End the episode ``key``; its instance may be reused."""
        ...

    def close(self) -> None:
        """Close every instance."""
        ...


def check_timeouts(**arguments: float | None) -> None:
    """Check that each argument is ``None`` or above 0.

    >>> check_timeouts(step_timeout=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: step_timeout must be above 0, got 0
    """
    for name, value in arguments.items():
        if value is not None and not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value}")
