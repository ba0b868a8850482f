"""Wrapper that discounts rewards."""

from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_gamma


class Discount(FrozenAfterEnd):
    """Wrapper that multiplies the reward of the n-th action by ``gamma ** (n - 1)``; the sum is the discounted return.

    >>> import gymnasium as gym
    >>> env = Discount(gym.make("TrlEnv/GuessNumber-v0"), gamma=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [0.0, 0.0, 0.25]

    GRPO itself sums an episode's rewards without a discount.

    Raises:
        ConfigError: ``gamma`` is not between 0 and 1.
    """

    reads_text = False
    settles_turns = owes = False
    optimal_return: ClassVar[None] = None
    """Unknown, because the length of optimal play is unknown."""

    def __init__(self, env: gym.Env[Any, Any], gamma: float = 0.99) -> None:
        check_gamma(gamma)
        super().__init__(env, gamma=gamma)
        self.gamma = gamma
        self._weight = self._last_weight = 1.0

    @property
    def state_part(self) -> float:
        """Weight of the next reward."""
        return self._weight

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        return min(inside * self._last_weight, 0.0)  # as if the last action had lost: an immediate loss costs most

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._weight = self._last_weight = 1.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        discounted = float(reward) * self._weight
        self._last_weight, self._weight = self._weight, self._weight * self.gamma
        return observation, discounted, terminated, truncated, info
