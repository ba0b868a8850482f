"""Interface of executors."""

from abc import abstractmethod
from collections.abc import Callable
from typing import TypeAlias

import gymnasium as gym

from gym_trl.bases import Closing
from gym_trl.types import EnvFailure, StepResult, Task

TextEnvironment: TypeAlias = gym.Env[str, str]
EnvFactory: TypeAlias = Callable[[str], TextEnvironment]
"""Function that makes an environment from its id."""
Result: TypeAlias = StepResult | EnvFailure
"""Result of a reset or a step."""


class EnvPool(Closing):
    """Base class of pools, which step the environments of many episodes; ``key`` identifies the episode.

    A pool serves one event loop at a time. A call that is cancelled leaves the other episodes alone. It can be used
    again after ``close``.
    """

    @abstractmethod
    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset (with a task) or step (with an action) the environment of an episode.

        Raises:
            ConfigError: The environment raised it: a mistake of the user's, which ends more than an episode.
        """

    @abstractmethod
    def release(self, key: str) -> None:
        """End an episode; its instance may be used again."""
