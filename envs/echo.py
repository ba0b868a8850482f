"""Smallest learnable game: repeat the observed word."""

import random
import re
import string
from collections.abc import Mapping
from typing import Any, Literal

from gym_trl.envs.arguments import check_integers
from gym_trl.envs.text_env import Outcome, Steady, TextEnv
from gym_trl.errors import ConfigError
from gym_trl.spaces import MAX_LENGTH
from gym_trl.text import counted
from gym_trl.types import Policy

_MOST_CHARACTERS = 1000


class Echo(TextEnv):
    """Repeat the word that is shown, or, with ``reward="length"``, give a long response.

    >>> env = Echo()
    >>> word, _ = env.reset(seed=0)
    >>> word
    'woadw'
    >>> env.step("woaxx")
    ('3 of 5 right.', 0.6, True, False, {'action_valid': True, 'success': False})

    ``reward="repetition"``: the observation is a word of ``word_length`` random letters of ``alphabet``, and a turn is
    worth the share of its positions that were repeated; surplus characters count as wrong positions. It is a success if
    every turn was exact. A constant policy scores the same as a random one: ``1 / len(alphabet)``.

    ``reward="length"``: a turn is worth the action's length as a share of ``max_length`` characters, and the action is
    returned as the observation, as in OpenEnv's Echo (which pays 0.1 per character without a limit). It is a success if
    every action was long enough. A constant policy solves it: it tests a training setup and teaches nothing.

    An episode has ``turns`` turns, each worth ``1 / turns``, so perfect play returns 1.0 either way.

    Raises:
        ConfigError: an unknown ``reward``, a number that is no integer of at least 1, more than 1000 characters to
            repeat in an episode, a ``max_length`` above the limit of an action, 65,536 characters, or an alphabet that
            is not a string, is empty, or has whitespace or repeated characters.
    """

    reward_modes = ("repetition", "length")
    optimal_success = 1.0
    optimal_return = 1.0

    def __init__(
        self,
        *,
        reward: Literal["repetition", "length"] = "repetition",
        turns: int = 1,
        alphabet: str = string.ascii_lowercase,
        word_length: int = 5,
        max_length: int = 100,
        render_mode: str | None = None,
    ) -> None:
        super().__init__(reward=reward, render_mode=render_mode)
        check_integers(turns=turns, word_length=word_length, at_least=1)
        check_integers(max_length=max_length, at_least=1, at_most=MAX_LENGTH)
        if reward == "repetition" and turns * word_length > _MOST_CHARACTERS:
            raise ConfigError(f"turns * word_length must be at most {_MOST_CHARACTERS}, got {turns * word_length}")
        if not isinstance(alphabet, str):
            raise ConfigError(f"alphabet must be a string of letters, got {alphabet!r}")
        if not alphabet or len(set(alphabet)) < len(alphabet) or any(char.isspace() for char in alphabet):
            raise ConfigError(f"alphabet must hold different characters and no whitespace, got {alphabet!r}")
        self.turns = turns
        self.alphabet = alphabet
        self.word_length = word_length
        self.max_length = max_length
        self._words: list[str] = []
        self._turn = 0
        self._all_exact = True

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        if self.reward == "length":
            turns = "" if self.turns == 1 else f" {self.turns} times"
            return f"Say something{turns}. The longer the better, up to {counted(self.max_length, 'character')}."
        turns = "" if self.turns == 1 else f" in each of {self.turns} turns"
        return (
            f"You are shown {counted(self.word_length, 'character')}{turns}. Answer with exactly these characters and "
            "nothing else."
        )

    @property
    def num_instances(self) -> int:
        """Number of word sequences of an episode; one where no word is shown."""
        return 1 if self.reward == "length" else len(self.alphabet) ** (self.word_length * self.turns)

    @property
    def constant_action(self) -> str:
        """The first letter, repeated."""
        return self.alphabet[0] * self.word_length

    def solver(self) -> Policy:
        """Return a policy that repeats the observed word, or gives the longest response that pays."""
        if self.reward == "length":
            return lambda observation: "a" * self.max_length
        # A wrapper may append lines below the word.
        return Steady(
            lambda observation: observation.partition("\n")[0], re.compile(rf"\S{{{self.word_length}}}(?:\n|\Z)").match
        )

    def random_policy(self, seed: int) -> Policy:
        """Return a policy of random letters: as many as the word has, or any number up to ``max_length``."""
        rng = random.Random(seed)

        def say(observation: str) -> str:
            length = rng.randint(0, self.max_length) if self.reward == "length" else self.word_length
            return "".join(rng.choices(self.alphabet, k=length))

        return say

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        self._turn, self._all_exact = 0, True
        if self.reward == "length":
            return "Say something."
        self._words = [self._word(instance or 0, turn) for turn in range(self.turns)]
        return self._words[0]

    def _word(self, instance: int, turn: int) -> str:
        """Return the word of a turn: the instance written in base ``len(alphabet)``, cut into words."""
        base = len(self.alphabet)
        digits = instance // base ** (self.word_length * turn)
        return "".join(self.alphabet[digits // base**place % base] for place in range(self.word_length))

    def _act(self, action: str) -> Outcome:
        if self.reward == "length":
            share = min(len(action), self.max_length) / self.max_length
            return self._end_turn(share, shown=action)
        word = self._words[self._turn]
        right = sum(said == meant for said, meant in zip(action, word, strict=False))
        share = right / max(len(word), len(action))
        return self._end_turn(share, shown=f"{right} of {len(word)} right.")

    def _snapshot(self) -> tuple[int, bool]:
        return self._turn, self._all_exact

    @property
    def turns_left(self) -> float:
        """Most actions that can follow."""
        return self.turns - self._turn

    def _reject(self, reason: str) -> Outcome:
        return self._end_turn(0.0, shown=reason, valid=False)

    def _end_turn(self, share: float, *, shown: str, valid: bool = True) -> Outcome:
        self._turn += 1
        self._all_exact = self._all_exact and share == 1.0
        done = self._turn == self.turns
        if self.reward == "repetition" and not done:
            shown = self._words[self._turn]
        return Outcome(shown, share / self.turns, done, success=done and self._all_exact, valid=valid)
