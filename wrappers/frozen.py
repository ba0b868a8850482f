"""Base class that makes a finished episode ignore further steps."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, SupportsFloat, TypeAlias

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError
from gym_trl.wrappers.text_wrapper import TextWrapper

Step: TypeAlias = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]


class FrozenAfterEnd(TextWrapper, ABC):
    """Wrapper that repeats the last observation and flags after the end of an episode, with a reward of 0.

    Gymnasium does not define steps after the end; some environments continue and give rewards. A subclass defines
    ``_step`` instead of ``step``, and ``_restart`` to reset its own state. It passes its arguments to ``__init__``,
    which records them so that ``gym.make(env.spec)`` rebuilds it. A terminated episode is not truncated as well.

    Raises:
        ActionTypeError: An action is not a string.
        gymnasium.error.ResetNeeded: ``step`` is called before the first ``reset``.
    """

    reads_text: ClassVar[bool] = True
    """True if actions that are not strings are rejected."""

    def __init__(self, env: gym.Env[Any, Any], **arguments: Any) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, env)
        self.last_info: Mapping[str, Any] = {}
        """``info`` of the last reset or step, for policies that choose among the actions that it lists."""
        self._started = False
        self._end: tuple[Any, bool, bool, dict[str, Any]] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._started, self._end = True, None
        observation, self.last_info = self._restart(observation, info)
        return observation, self.last_info

    def step(self, action: str) -> Step:
        """Play an action."""
        if not isinstance(action, str) and self.reads_text:
            name = type(self).__name__
            raise ActionTypeError(f"{name} reads text, got {type(action).__name__}: {action!r:.100}")
        if not self._started:
            raise ResetNeeded(f"{type(self).__name__} has not been reset: call reset() before step()")
        if self._end is not None:
            observation, terminated, truncated, info = self._end
            return observation, 0.0, terminated, truncated, dict(info)
        observation, reward, terminated, truncated, info = self._step(action)
        truncated = truncated and not terminated
        if terminated or truncated:
            self._end = observation, terminated, truncated, dict(info)
        self.last_info = info
        return observation, reward, terminated, truncated, info

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return observation, info

    @abstractmethod
    def _step(self, action: str) -> Step: ...
