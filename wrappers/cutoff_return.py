"""A bound on what an episode that is cut off returns."""

import math
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step

_BY_WRAPPERS = ("parse_error", "invalid_action", "turn_limit")


class CutoffReturn(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Let no episode that is cut off return more than ``most``: what the worst loss returns.

    >>> import gymnasium as gym
    >>> from gym_trl.settlement import settlement
    >>> env = CutoffReturn(gym.make("CliffWalking-v1"), most=-200.0)
    >>> _ = env.reset(seed=0)
    >>> float(env.step(0)[1]), settlement(env)
    (-1.0, -199.0)

    For environments that pay less than nothing for a step or a loss and do not say so (``gym_trl.settlement``): without
    it, an episode that tokens or time cut off early would be worth more than one that is played on. It goes around all
    wrappers that change rewards or end episodes; ``GymSpec(cutoff_return=...)`` puts it there.

    Raises:
        ConfigError: ``most`` is not a finite number.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], most: float) -> None:
        if isinstance(most, bool) or not isinstance(most, int | float) or not math.isfinite(most):
            raise ConfigError(f"cutoff_return must be a finite number, got {most!r}")
        gym.utils.RecordConstructorArgs.__init__(self, most=most)
        FrozenAfterEnd.__init__(self, env)
        self.most = float(most)
        self._total = 0.0

    def settle(self, inside: float, turns: float) -> float:
        """Return what the rest of an episode that is cut off pays; see ``gym_trl.settlement``."""
        return min(inside, self.most - self._total)

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._total = 0.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        if terminated and info.get("stop_reason") in _BY_WRAPPERS and self._total > self.most:
            reward, self._total = float(reward) + self.most - self._total, self.most
        return observation, reward, terminated, truncated and not terminated, info
