"""Rewards on the way that change nothing about what is best."""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_gamma, load_function

Potential = Callable[[Any], float]
"""How far a game has come, from the environment without its wrappers."""


class PotentialShaping(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Add to each reward how much a potential has grown, so that progress is paid when it is made.

    >>> import gymnasium as gym
    >>> env = PotentialShaping(gym.make("FrozenLake-v1", is_slippery=False), potential=lambda lake: lake.s / 16)
    >>> _ = env.reset(seed=0)
    >>> [float(env.step(action)[1]) for action in (1, 1, 2, 2, 1, 2)]  # down, down, right, right, down, right
    [0.25, 0.25, 0.0625, 0.0625, 0.25, 0.125]

    A step from a state s to s' earns ``gamma * potential(s') - potential(s)`` beside its reward, and the potential of
    every end is 0, so that with ``gamma=1`` an episode's sum is what it was less the potential of its start, whatever
    was done: going in circles earns nothing, and the members of a group, who share their start, are ranked as before
    (Ng, Harada and Russell, 1999). That holds for every end: where an episode is cut off (by ``TurnLimit`` or
    ``ParseAction`` around this wrapper, by tokens, context, time or a crash), the potential is taken back.

    Args:
        env: Any environment.
        potential: A function of the unwrapped environment, which is called after each reset and each step; also by
            name, as ``"package.module:function"``, which a spec can hold as JSON.
        gamma: What the trainer discounts with; GRPO does not discount.

    Raises:
        ConfigError: a function that cannot be found, or ``gamma`` outside of 0 to 1; in a step, a potential that is no
            finite number.
    """

    reads_text = False
    settles_turns = False
    optimal_return: ClassVar[None] = None
    """Nobody knows the potential at the start."""

    def __init__(self, env: gym.Env[Any, Any], potential: Potential | str, gamma: float = 1.0) -> None:
        check_gamma(gamma)
        gym.utils.RecordConstructorArgs.__init__(self, potential=potential, gamma=gamma)
        FrozenAfterEnd.__init__(self, env)
        self.gamma = gamma
        self._potential = load_function(potential)
        self._before = 0.0

    def settle(self, inside: float, turns: float) -> float:
        """Return what the rest of an episode that is cut off pays; see ``gym_trl.settlement``."""
        return inside - self._before

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._before = self._now()
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._before = self._before, 0.0 if terminated or truncated else self._now()
        shaped = float(reward) + self.gamma * self._before - before
        return observation, shaped, terminated, truncated and not terminated, info

    def _now(self) -> float:
        value = float(self._potential(self.unwrapped))
        if not math.isfinite(value):
            raise ConfigError(f"a potential must be a finite number, got {value}")
        return value
