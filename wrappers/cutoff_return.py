"""Wrapper that bounds the return of an episode that is cut off."""

import math
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step

_BY_WRAPPERS = ("parse_error", "invalid_action", "turn_limit")


class CutoffReturn(FrozenAfterEnd):
    """Wrapper that limits the return of an episode that is cut off to ``most``, the return of the worst loss.

    >>> import gymnasium as gym
    >>> from gym_trl.wrappers.settlement import settlement
    >>> env = CutoffReturn(gym.make("CliffWalking-v1"), most=-200.0)
    >>> _ = env.reset(seed=0)
    >>> float(env.step(0)[1]), settlement(env)
    (-1.0, -199.0)

    Use it for environments with negative rewards for a step or a loss that do not declare a
    ``gym_trl.wrappers.settlement``. Otherwise an episode that tokens or time cut off early would have a higher return
    than one that is continued. Put it outside of all wrappers that change rewards or end episodes, as
    ``GymSpec(cutoff_return=...)`` does.

    Raises:
        ConfigError: ``most`` is not a finite number.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], most: float) -> None:
        if isinstance(most, bool) or not isinstance(most, int | float) or not math.isfinite(most):
            raise ConfigError(f"cutoff_return must be a finite number, got {most!r}")
        super().__init__(env, most=most)
        self.most = float(most)
        self._total = 0.0

    @property
    def state_part(self) -> float:
        """Return so far, on which the reward at the end depends."""
        return self._total

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        return min(inside, self.most - self._total)

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._total = 0.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        if terminated and info.get("stop_reason") in _BY_WRAPPERS and self._total > self.most:
            reward, self._total = float(reward) + self.most - self._total, self.most
        return observation, reward, terminated, truncated, info
