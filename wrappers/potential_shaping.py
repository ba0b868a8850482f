"""Wrapper for potential-based reward shaping, which does not change the optimal policy."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.kinds import load_function
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_gamma

Potential = Callable[[Any], float]
"""Function from the unwrapped environment to a number that measures progress."""


class PotentialShaping(FrozenAfterEnd):
    """Wrapper that adds the increase of a potential to each reward, so that progress is rewarded immediately.

    >>> import gymnasium as gym
    >>> env = PotentialShaping(gym.make("FrozenLake-v1", is_slippery=False), potential=lambda lake: lake.s / 16)
    >>> _ = env.reset(seed=0)
    >>> [float(env.step(action)[1]) for action in (1, 1, 2, 2, 1, 2)]  # down, down, right, right, down, right
    [0.25, 0.25, 0.0625, 0.0625, 0.25, 0.125]

    A step from a state s to s' gets ``gamma * potential(s') - potential(s)`` in addition to its reward. The potential
    of every end is 0, so with ``gamma=1`` an episode's return is the original return minus the potential of its start,
    independent of the actions: cycles gain nothing, and the members of a group, which have the same start, are ranked
    as before (Ng, Harada and Russell, 1999). This includes episodes that are cut off (by ``TurnLimit`` or
    ``ParseAction`` around this wrapper, by tokens, context, time or a crash): the potential is then subtracted.

    Args:
        env: Any environment.
        potential: Function of the unwrapped environment, called after each reset and each step; or its name,
            ``"package.module:function"``, which can be stored in a spec as JSON.
        gamma: Discount factor of the trainer; GRPO does not discount.

    Raises:
        ConfigError: The function does not exist, or ``gamma`` is not between 0 and 1; in a step, the potential is not
            finite.
    """

    reads_text = False
    settles_turns = False
    optimal_return: ClassVar[None] = None
    """Unknown, because the potential at the start is unknown."""

    def __init__(self, env: gym.Env[Any, Any], potential: Potential | str, gamma: float = 1.0) -> None:
        check_gamma(gamma)
        super().__init__(env, potential=potential, gamma=gamma)
        self.gamma = gamma
        self._potential = load_function(potential)
        self._before = 0.0

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        return inside - self._before

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._before = self._now()
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._before = self._before, 0.0 if terminated or truncated else self._now()
        shaped = float(reward) + self.gamma * self._before - before
        return observation, shaped, terminated, truncated, info

    def _now(self) -> float:
        value = float(self._potential(self.unwrapped))
        if not math.isfinite(value):
            raise ConfigError(f"a potential must be a finite number, got {value}")
        return value
