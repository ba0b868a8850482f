"""Base class of wrappers: a wrapper says what it does to an episode, and this class what every episode keeps."""

from collections.abc import Hashable
from typing import Any, ClassVar, SupportsFloat, TypeAlias

import gymnasium as gym
from gymnasium.error import ResetNeeded

from gym_trl.errors import ActionTypeError

Step: TypeAlias = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Reset: TypeAlias = tuple[Any, dict[str, Any]]


class TextWrapper(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that defines ``act`` in place of ``step``, and ``begin`` to reset its own state.

    >>> class Fee(TextWrapper):  # the first action costs 0.5
    ...     def begin(self, observation, info):
    ...         self.due = 0.5
    ...         return observation, info
    ...     def act(self, action):
    ...         observation, reward, *rest = self.env.step(action)
    ...         reward, self.due = reward - self.due, 0.0
    ...         return observation, reward, *rest
    ...     def lost(self, inside, turns):
    ...         return inside - 0.5
    ...     def part(self):
    ...         return self.due
    >>> env = Fee(gym.make("TrlEnv/GuessNumber-v0"))
    >>> _ = env.reset(seed=0)
    >>> env.step("1")[1]
    -0.5

    After the end of an episode every action returns the last observation, with a reward of 0. A terminated episode is
    not truncated as well. A subclass passes its arguments to ``__init__``, so that ``gym.make(env.spec)`` rebuilds it.

    A wrapper that changes rewards defines ``lost``. One that remembers what later steps depend on defines ``part``, for
    credit per turn.

    Raises:
        ActionTypeError: An action is not text.
        gymnasium.error.ResetNeeded: ``step`` is called before the first ``reset``.
    """

    reads_text: ClassVar[bool] = True
    """True if actions that are not text are refused."""

    def __init__(self, env: gym.Env[Any, Any], **arguments: Any) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, env)
        self.last_info: dict[str, Any] | None = None
        """``info`` of the last reset or step."""
        self._end: Step | None = None

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Reset the wrapper's own state, and return what a reset shows."""
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action in an episode that is not over."""
        return self.env.step(action)

    def lost(self, inside: float | None, turns: float) -> float | None:
        """Return the lowest reward of the rest of an episode that is lost (``gym_trl.wrappers.loss_return``).

        Args:
            inside: That of the wrapped environment; ``None`` if it is not known.
            turns: Most turns of the rest.
        """
        return inside

    def part(self) -> Hashable:
        """Return what later steps depend on, beside the state inside; ``None`` if there is nothing.

        Raises:
            AttributeError: It is not known.
        """
        return None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._end = None
        observation, self.last_info = self.begin(observation, info)
        return observation, self.last_info

    def step(self, action: Any) -> Step:
        """Play an action."""
        if self.reads_text and not isinstance(action, str):
            raise ActionTypeError(f"{type(self).__name__} reads text, got {type(action).__name__}: {action!r:.100}")
        if self.last_info is None:
            raise ResetNeeded(f"{type(self).__name__} has not been reset: call reset() before step()")
        if self._end is not None:
            observation, _, terminated, truncated, info = self._end
            return observation, 0.0, terminated, truncated, dict(info)
        observation, reward, terminated, truncated, info = self.act(action)
        truncated = truncated and not terminated
        self.last_info = info
        if terminated or truncated:
            self._end = observation, 0.0, terminated, truncated, dict(info)
        return observation, reward, terminated, truncated, info
