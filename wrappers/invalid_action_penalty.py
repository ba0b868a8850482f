"""Wrapper that penalizes invalid actions."""

from typing import Any

import gymnasium as gym

from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_penalty


class InvalidActionPenalty(FrozenAfterEnd):
    """Wrapper that subtracts a penalty from the reward of an invalid action.

    >>> import gymnasium as gym
    >>> env = InvalidActionPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("1000", "x", "25")]
    [-0.5, -0.5, 1.0]

    An action is invalid if ``info["action_valid"]`` is false. If the environment does not set it, a text action is
    invalid if it is not in the list of actions before it (see ``AdmissibleActions``; case and spacing are ignored), and
    the wrapper sets ``info["action_valid"]``. ``ParseAction`` has its own penalty, which also applies to unreadable
    responses: use only one of the two.

    Raises:
        ConfigError: The penalty is negative or not finite.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.1) -> None:
        check_penalty(penalty)
        super().__init__(env, penalty=penalty)
        self.penalty = penalty
        self._listed: list[str] | None = None

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._listed = listed_actions(self.env, info)
        return observation, info

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        return inside - self.penalty * turns  # a loss with invalid actions only

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "action_valid" not in info and self._listed is not None and isinstance(action, str):
            info = {**info, "action_valid": _plain(action) in map(_plain, self._listed)}
        self._listed = listed_actions(self.env, info)
        if not info.get("action_valid", True):
            reward = float(reward) - self.penalty
        return observation, reward, terminated, truncated, info


def _plain(action: str) -> str:
    return " ".join(action.split()).casefold()
