"""Smallest learnable game: repeat the word that is shown."""

import random
import string
from typing import ClassVar

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_MOST_CHARACTERS = 1000


class Echo(TextGame):
    """Repeat the word that is shown; a turn is worth the share of its positions that were repeated.

    >>> env = Echo()
    >>> env.reset(seed=0)[0]
    'woadw'
    >>> env.step("woaxx")[:3]
    ('3 of 5 right.', 0.6, True)

    Surplus characters count as wrong positions. Each of the turns is worth ``1 / turns``; it is a success if all were
    exact. Random letters get ``1 / len(alphabet)``.
    """

    presets: ClassVar = {"medium": {"turns": 1, "alphabet": string.ascii_lowercase, "word_length": 5}}
    ranges: ClassVar = {"word_length": (1, None)}
    optimal_success = 1.0
    alphabet: str
    word_length: int

    def prepare(self) -> None:
        """Check the arguments, count the sequences of words, and write the rules."""
        if self.turns * self.word_length > _MOST_CHARACTERS:
            raise ConfigError(f"turns * word_length must be at most {_MOST_CHARACTERS}")
        if not self.alphabet or len(set(self.alphabet) - set(string.whitespace)) < len(self.alphabet):
            raise ConfigError(f"alphabet must hold different characters and no whitespace, got {self.alphabet!r}")
        self.num_instances = int(len(self.alphabet) ** (self.word_length * self.turns))
        turns = "" if self.turns == 1 else f" in each of {self.turns} turns"
        shown = counted(self.word_length, "character")
        self.instructions = f"You are shown {shown}{turns}. Answer with exactly these characters and nothing else."

    def deal(self) -> None:
        """Write the instance in base ``len(alphabet)``; each digit is a letter."""
        rest, letters = self.instance or 0, []
        for _ in range(self.turns * self.word_length):
            rest, letter = divmod(rest, len(self.alphabet))
            letters.append(self.alphabet[letter])
        self.letters = "".join(letters)
        self.all_exact = True

    def show(self) -> str:
        """Return the word of the turn."""
        begin = (self.turns - self.turns_left) * self.word_length
        return self.letters[begin : begin + self.word_length]

    def play(self, action: str) -> Step:
        """Compare the action with the word; what is too long is no action, and worth nothing."""
        word = self.show()
        right = sum(said == meant for said, meant in zip(action, word, strict=False))
        self.all_exact &= action == word
        return self.turn(
            f"{right} of {len(word)} right.",
            success=self.all_exact and self.turns_left == 1,
            reward=right / max(len(word), len(action)) / self.turns,
        )

    def reject(self, reason: str) -> Step:
        """End a turn that is worth nothing."""
        self.all_exact = False
        return super().reject(reason)

    def tell(self, message: str) -> str:
        """Return the next word, and after the last one how much of it was right."""
        return self.show() or message

    def solve(self) -> str:
        """Repeat the word."""
        return self.show()

    def guess(self, rng: random.Random) -> str:
        """Return random letters."""
        return "".join(rng.choices(self.alphabet, k=self.word_length))

    def state(self) -> bool:
        """Return whether all words so far were repeated exactly."""
        return self.all_exact
