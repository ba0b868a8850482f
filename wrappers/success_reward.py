"""A reward for solving the task and for nothing else."""

from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step


class SuccessReward(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Pay 1.0 once the task is solved, and 0.0 for everything else.

    >>> import gymnasium as gym
    >>> env = SuccessReward(gym.make("TrlEnv/GuessNumber-v0", reward="shaped"))
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [0.0, 0.0, 1.0]

    Whether it is solved is what ``info`` says; an episode that goes on after that is not paid again.

    Args:
        env: Any environment that says so.
        key: Where ``info`` says so, such as ``"is_success"`` or ``"won"``.

    Raises:
        ConfigError: in a step, an episode that ends by its own rules without saying whether it was a success: its
            reward would be 0.0 whatever was done.
    """

    reads_text = False
    settles_turns: ClassVar[bool] = False
    settlement: ClassVar[float] = 0.0
    """Nothing is paid for how far the game has come, and nothing for a loss."""

    def __init__(self, env: gym.Env[Any, Any], key: str = "success") -> None:
        gym.utils.RecordConstructorArgs.__init__(self, key=key)
        FrozenAfterEnd.__init__(self, env)
        self.key = key
        self._paid = False

    @property
    def optimal_return(self) -> float | None:
        """The share of games that perfect play wins."""
        known = self.env.has_wrapper_attr("optimal_success")
        share: float | None = self.env.get_wrapper_attr("optimal_success") if known else None
        return share

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._paid = False
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, _, terminated, truncated, info = self.env.step(action)
        # What cut the episode off names its reason, and solved nothing.
        if terminated and self.key not in info and "stop_reason" not in info:
            raise ConfigError(
                f"{self.env} ended without info[{self.key!r}], and has {sorted(map(str, info))}: "
                "SuccessReward(env, key=...) names another one"
            )
        solved = bool(info.get(self.key)) and not self._paid
        self._paid = self._paid or solved
        return observation, float(solved), terminated, truncated and not terminated, info
