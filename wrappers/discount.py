"""Rewards that are worth less the later they come."""

from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_gamma


class Discount(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Multiply the reward of the n-th action by ``gamma ** (n - 1)``, so that the plain sum is the discounted return.

    >>> import gymnasium as gym
    >>> env = Discount(gym.make("TrlEnv/GuessNumber-v0"), gamma=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [0.0, 0.0, 0.25]

    GRPO sums an episode's rewards without a discount; this is how to have one.

    Raises:
        ConfigError: ``gamma`` outside of 0 to 1.
    """

    reads_text = False
    settles_turns = False
    optimal_return: ClassVar[None] = None
    """Nobody knows how many actions perfect play takes."""

    def __init__(self, env: gym.Env[Any, Any], gamma: float = 0.99) -> None:
        check_gamma(gamma)
        gym.utils.RecordConstructorArgs.__init__(self, gamma=gamma)
        FrozenAfterEnd.__init__(self, env)
        self.gamma = gamma
        self._weight = self._last_weight = 1.0

    def settle(self, inside: float, turns: float) -> float:
        """Return what the rest of an episode that is cut off pays; see ``gym_trl.settlement``."""
        return min(inside * self._last_weight, 0.0)  # as if the last action had ended it: a loss costs most at once

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._weight = self._last_weight = 1.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        discounted = float(reward) * self._weight
        self._last_weight, self._weight = self._weight, self._weight * self.gamma
        return observation, discounted, terminated, truncated and not terminated, info
