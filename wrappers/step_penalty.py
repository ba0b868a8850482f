"""Wrapper that penalizes every action."""

from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_penalty


class StepPenalty(FrozenAfterEnd):
    """Wrapper that subtracts a penalty from every reward, so that the shortest solution has the highest return.

    >>> import gymnasium as gym
    >>> env = StepPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.125)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [-0.125, -0.125, 0.875]

    A quick failure then costs less than a long solution: keep the penalty of a whole episode well below the reward.

    Raises:
        ConfigError: The penalty is negative or not finite.
    """

    reads_text = False
    optimal_return: ClassVar[None] = None
    """Unknown, because the length of optimal play is unknown."""

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.01) -> None:
        check_penalty(penalty)
        super().__init__(env, penalty=penalty)
        self.penalty = penalty

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        return inside - self.penalty * turns  # the slowest loss

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) - self.penalty, terminated, truncated, info
