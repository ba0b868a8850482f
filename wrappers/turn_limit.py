"""Wrapper that limits the number of turns."""

from typing import Any

import gymnasium as gym

from gym_trl.errors import check_counts
from gym_trl.spaces import AnyText
from gym_trl.text import counted
from gym_trl.wrappers.inner import check_text, instructions_of, longest_observation, text_of
from gym_trl.wrappers.loss_return import loss_return_of
from gym_trl.wrappers.text_wrapper import Reset, Step, TextWrapper


class TurnLimit(TextWrapper):
    r"""Wrapper that truncates an episode after ``turns`` turns.

    >>> env = TurnLimit(gym.make("TrlEnv/GuessNumber-v0", turns=10), turns=2, announce=True)
    >>> env.reset(seed=0)[0]
    'Guess 1 to 50 in 10 tries.\n(2 turns left)'
    >>> env.step("25")[0]
    'Higher.\n(1 turn left)'
    >>> observation, reward, terminated, truncated, info = env.step("26")
    >>> terminated, truncated, info["stop_reason"]
    (False, True, 'turn_limit')

    An episode that the environment ends in its last turn is terminated and not truncated. One that is truncated is
    charged what a loss would still cost (``gym_trl.wrappers.loss_return``). Outside of ``ParseAction`` it counts
    responses, inside of it only responses with an action. ``announce`` adds a line to every observation and a sentence
    to ``instructions``.

    Raises:
        ConfigError: ``turns`` is not a positive integer.
        NotTextError: ``announce`` is used with observations that are not text.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], turns: int, announce: bool = False) -> None:
        check_counts(turns=turns)
        super().__init__(env, turns=turns, announce=announce)
        self.turns, self.announce = turns, announce
        self.turns_left = turns
        if announce:
            check_text(env, "announce", env.observation_space)
            # One character more, because "0 turns" is longer than "1 turn".
            self.observation_space = AnyText(longest_observation(env) + len(self._announced("")) + 1)

    @property
    def instructions(self) -> str:
        """The environment's instructions, with the limit if it is announced."""
        limit = f"You have {counted(self.turns, 'turn')}." if self.announce else ""
        return f"{instructions_of(self.env)} {limit}".strip()

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Start to count."""
        self.turns_left = self.turns
        return self._announced(observation), info

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.turns_left -= 1
        if self.turns_left == 0 and not (terminated or truncated):
            truncated, info = True, {**info, "stop_reason": "turn_limit"}
            reward = float(reward) + min(0.0, loss_return_of(self.env, turns=0) or 0.0)
        return self._announced(observation), reward, terminated, truncated, info

    def _announced(self, observation: Any) -> Any:
        return f"{text_of(observation)}\n({counted(self.turns_left, 'turn')} left)" if self.announce else observation
