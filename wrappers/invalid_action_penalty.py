"""A price for actions that the rules do not allow."""

from typing import Any

import gymnasium as gym

from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_penalty


class InvalidActionPenalty(FrozenAfterEnd, gym.utils.RecordConstructorArgs):
    """Make an action cost something where the environment calls it invalid.

    >>> import gymnasium as gym
    >>> env = InvalidActionPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("1000", "x", "25")]
    [-0.5, -0.5, 1.0]

    Invalid is what ``info["action_valid"]`` denies. Where an environment does not say, it is an action in words that is
    none of those that were listed before it (see ``AdmissibleActions`` for where they are looked for; case and spacing
    do not matter), and ``info["action_valid"]`` says so then. ``ParseAction`` has a penalty of its own, which falls on
    answers that cannot be read as well: one of the two is enough.

    Raises:
        ConfigError: a penalty that is negative or no finite number.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.1) -> None:
        check_penalty(penalty)
        gym.utils.RecordConstructorArgs.__init__(self, penalty=penalty)
        FrozenAfterEnd.__init__(self, env)
        self.penalty = penalty
        self._listed: list[str] | None = None

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._listed = listed_actions(self.env, info)
        return observation, info

    def settle(self, inside: float, turns: float) -> float:
        """Return what the rest of an episode that is cut off pays; see ``gym_trl.settlement``."""
        return inside - self.penalty * turns  # a loss by nothing but invalid actions

    def _step(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "action_valid" not in info and self._listed is not None and isinstance(action, str):
            info = {**info, "action_valid": _plain(action) in map(_plain, self._listed)}
        self._listed = listed_actions(self.env, info)
        if not info.get("action_valid", True):
            reward = float(reward) - self.penalty
        return observation, reward, terminated, truncated and not terminated, info


def _plain(action: str) -> str:
    return " ".join(action.split()).casefold()
