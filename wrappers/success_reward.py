"""Wrapper with a reward for success only."""

from typing import Any, ClassVar

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import attribute_of


class SuccessReward(FrozenAfterEnd):
    """Wrapper with a reward of 1.0 when the task is solved, and 0.0 for everything else.

    >>> import gymnasium as gym
    >>> env = SuccessReward(gym.make("TrlEnv/GuessNumber-v0", reward="shaped"))
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [0.0, 0.0, 1.0]

    The reward is given once per episode, even if the episode continues after success.

    Args:
        env: Environment that declares success in ``info``.
        key: Key of success in ``info``, such as ``"is_success"`` or ``"won"``.

    Raises:
        ConfigError: In a step, the environment ends an episode without declaring success, so that the reward would
            always be 0.0.
    """

    reads_text = False
    settles_turns: ClassVar[bool] = False
    owes: ClassVar[bool] = False
    settlement: ClassVar[float] = 0.0
    """Always 0, because neither progress nor a loss changes the reward."""

    def __init__(self, env: gym.Env[Any, Any], key: str = "success") -> None:
        super().__init__(env, key=key)
        self.key = key
        self._paid = False
        self._return = 0.0  # of the environment, on which success may depend

    @property
    def state_part(self) -> tuple[bool, float]:
        """Payment of success, and the environment's own return so far, by which ``DeclareSuccess`` may judge."""
        return self._paid, self._return

    @property
    def optimal_return(self) -> float | None:
        """Success rate of optimal play."""
        share: float | None = attribute_of(self.env, "optimal_success")
        return share

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._paid, self._return = False, 0.0
        return observation, info

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._return += float(reward)
        # An episode with a stop_reason was ended by a wrapper and is not solved.
        if terminated and self.key not in info and "stop_reason" not in info:
            raise ConfigError(
                f"{self.env} ended without info[{self.key!r}], and has {sorted(map(str, info))}: "
                "SuccessReward(env, key=...) names another key"
            )
        solved = bool(info.get(self.key)) and not self._paid
        self._paid = self._paid or solved
        return observation, float(solved), terminated, truncated, info
