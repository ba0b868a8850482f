"""Interface of executors."""

from collections.abc import Callable
from typing import Protocol, Self, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.types import EnvFailure, StepResult, Task

TextEnvironment: TypeAlias = gym.Env[str, str]
EnvFactory: TypeAlias = Callable[[str], TextEnvironment]
"""Function that makes an environment from its id."""
Result: TypeAlias = StepResult | EnvFailure
"""Result of a reset or a step."""


class EnvPool(Protocol):
    """Interface of pools, which step the environments of many episodes; ``key`` identifies the episode.

    A pool serves one event loop at a time. A call that is cancelled leaves the other episodes alone.
    """

    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset (with a task) or step (with an action) the environment of an episode."""
        ...

    def release(self, key: str) -> None:
        """End an episode; its instance may be reused."""
        ...

    def close(self) -> None:
        """Close every environment."""
        ...

    def __enter__(self) -> Self:
        """Return the pool, which the ``with`` block closes."""
        ...

    def __exit__(self, *_: object) -> None:
        """Close the pool."""
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
