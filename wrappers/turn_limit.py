"""Wrapper that limits the number of turns."""

from typing import Any

import gymnasium as gym

from gym_trl.errors import check_counts
from gym_trl.spaces import AnyText
from gym_trl.text import counted
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import check_text, instructions_of, longest_observation, text_of
from gym_trl.wrappers.settlement import settlement


class TurnLimit(FrozenAfterEnd):
    r"""Wrapper that truncates an episode after ``turns`` turns.

    >>> import gymnasium as gym
    >>> env = TurnLimit(gym.make("TrlEnv/GuessNumber-v0", turns=10), turns=2, announce=True)
    >>> env.reset(seed=0)[0]
    'Guess 1 to 50 in 10 tries.\n(2 turns left)'
    >>> env.step("25")[0]
    'Higher.\n(1 turn left)'
    >>> observation, reward, terminated, truncated, info = env.step("26")
    >>> terminated, truncated, info["stop_reason"]
    (False, True, 'turn_limit')

    An episode that the environment ends in its last turn is terminated and not truncated. After the end every action
    returns the last observation and no reward. Outside of ``ParseAction`` it counts responses, inside of it only
    responses with an action. When it cuts an episode off, the reward includes the ``settlement`` of the inner
    environment: shaping rewards for progress are taken back, and the negative reward of a loss is included.
    ``announce`` adds a line to every observation and a sentence to ``instructions``.

    Gymnasium's ``TimeLimit`` may set both flags, continues after the end, and is not rebuilt as a wrapper by
    ``gym.make(env.spec)``; its own limit (``max_episode_steps``) may be below this one.

    Raises:
        ConfigError: ``turns`` is not a positive integer.
        NotTextError: ``announce`` is used with observations that are not text.
    """

    reads_text = False
    settles_turns = owes = False
    limit_only_ends = True

    def __init__(self, env: gym.Env[str, str], turns: int, announce: bool = False) -> None:
        check_counts(turns=turns)
        check_text(env, "announce", observations=announce)
        super().__init__(env, turns=turns, announce=announce)
        self.turns = turns
        self.announce = announce
        self._turns_left = turns
        self._cut_off = False
        if announce:
            # One character more, because "0 turns" is longer than "1 turn".
            self.observation_space = AnyText(longest_observation(env) + len(self._announced("")) + 1)

    @property
    def instructions(self) -> str:
        """The environment's instructions, with the limit if it is announced."""
        limit = f"You have {counted(self.turns, 'turn')}." if self.announce else ""
        return f"{instructions_of(self.env)} {limit}".strip()

    @property
    def turns_left(self) -> int:
        """Number of actions that can follow."""
        return self._turns_left

    def settle(self, inside: float, turns: float) -> float:
        """Return the settlement of an episode that is cut off now; see ``gym_trl.wrappers.settlement``."""
        return 0.0 if self._cut_off else inside

    def _restart(self, observation: str, info: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._turns_left, self._cut_off = self.turns, False
        return self._announced(observation), info

    def _step(self, action: str) -> Step:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._turns_left -= 1
        if not (terminated or truncated) and self._turns_left == 0:
            truncated, info = True, {**info, "stop_reason": "turn_limit"}
            reward = float(reward) + settlement(self.env, turns=0)
            self._cut_off = True
        return self._announced(observation), reward, terminated, truncated, info

    def _announced(self, observation: str) -> str:
        return f"{text_of(observation)}\n({counted(self._turns_left, 'turn')} left)" if self.announce else observation
