"""Wordle (Wardle 2021), with word lists of its own."""

import random
from functools import lru_cache
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_trl.envs import words
from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_OPENING = "trace"
_MARKS = "XYG"
_KINDS = 3**5
_Told: TypeAlias = tuple[tuple[str, str], ...]
"""Guesses with their marks."""


class Wordle(TextGame):
    """Find a secret word of five letters from marks for letters in the word and letters in place.

    >>> env = Wordle()
    >>> env.reset(options={"instance": 0})  # aback
    ('A word of 5 letters. 6 guesses left.', {})
    >>> print(env.step("llama")[0])
    L L A M A
    X X G X Y
    5 guesses left.
    >>> env.step("aaaaa")[0], env.step(" Aback ")[:3]
    ('Not a word of the list. 5 guesses and 10 turns left.', ('Correct.', 1.0, True))

    Every letter of a guess is marked. G: it is in this position. Y: it is in another position. X: the word has no
    (further) occurrence of it: letters in position count first, then the others from left to right, each as often as
    the word has it.

    The word is one of 1965 ``answers``; 6329 words can be guessed, among them all answers. An invalid action costs one
    of ``turns`` but none of the ``guesses``. With ``choices`` that many words are shown, one of them is the secret, and
    only they can be guessed, which needs no vocabulary; 0 means all words.

    The solver opens with "trace" and guesses the word with the most distinct marks over the possible answers (Kooi's
    criterion; ties go to a word that can be the secret, then to the smallest expected number of answers left, then to
    the first). In medium it needs 6626/1965 = 3.3720 guesses in the mean and at most 5; it wins 98.17 % of hard, and
    easy with 1.9602 guesses, at most 3. The best known mean for these lists is 3.3659; the original lists differ, and
    their optimum is 3.4212 (Bertsimas and Paskov 2024; quoted). Random words win 0.1 % of medium and 34 % of easy.
    """

    presets: ClassVar = {
        "easy": {"guesses": 4, "turns": 8, "choices": 10},
        "medium": {"guesses": 6, "turns": 12, "choices": 0},
        "hard": {"guesses": 4, "turns": 4, "choices": 0},
    }
    ranges: ClassVar = {"guesses": (1, None), "choices": (0, 100)}
    guesses: int
    choices: int
    words: tuple[str, ...]
    """Words that are shown."""

    def prepare(self) -> None:
        """Check that there are turns for all guesses, count the answers, and write the rules."""
        if self.turns < self.guesses:
            raise ConfigError(f"turns must be at least guesses, got turns={self.turns} and guesses={self.guesses}")
        count = len(words.answers())
        self.num_instances = count // self.choices * self.choices if self.choices else count
        needed = {0: 5, 10: 3}.get(self.choices, self.choices)
        self.optimal_success = 1.0 if self.guesses >= needed else None  # the solver is known to win always
        legal = "is not one of the words that are shown" if self.choices else "is not in the list of words"
        self.instructions = (
            f"Wordle: find the secret English word of 5 letters in {counted(self.guesses, 'guess')}. After each guess "
            "its letters are marked: G for a letter in the right place, Y for one that is in the word but in another "
            f"place, X for one that is not in the word (or not as often as it was guessed). A guess that {legal} costs "
            f"no guess, but a turn, as every guess does. The game is lost after {counted(self.turns, 'turn')}. "
            "Answer with a word alone, written like WORDS."
        )

    def deal(self) -> None:
        """Choose the word, and those that are shown with it, far from each other in the alphabet."""
        number = self.instance or 0
        self.secret, self.told, self.guesses_left, self.words = words.answers()[number], _Told(), self.guesses, ()
        if self.choices:
            groups = len(words.answers()) // self.choices
            self.words = words.answers()[number % groups : groups * self.choices : groups]

    def show(self) -> str:
        """Return the first observation."""
        begin = f"One of {' '.join(self.words).upper()}." if self.choices else "A word of 5 letters."
        return f"{begin} {counted(self.guesses, 'guess')} left."

    def legal(self) -> list[str] | None:
        """Words that are shown; ``None`` where all words can be guessed."""
        return [word.upper() for word in self.words] if self.choices else None

    def play(self, action: str) -> Step:
        """Guess a word."""
        word = "".join(action.split()).lower() if action.isascii() else ""
        if word not in (self.words or words.guesses()):
            return self.reject("Not one of the words." if self.choices else "Not a word of the list.")
        if word == self.secret:
            return Step("Correct.", done=True, success=True)
        number = int(_mark_all((word,), (self.secret,))[0, 0])
        marks = "".join(_MARKS[number // 3**place % 3] for place in range(5))
        self.told += ((word, marks),)
        self.guesses_left -= 1
        text = f"{' '.join(word.upper())}\n{' '.join(marks)}\n{counted(self.guesses_left, 'guess')} left."
        return self.turn(text, done=not self.guesses_left)

    def reject(self, reason: str) -> Step:
        """Use up a turn, and no guess."""
        left = f"{counted(self.guesses_left, 'guess')} and {counted(self.turns_left - 1, 'turn')} left."
        return self.turn(f"{reason} {left}", valid=False)

    def tell(self, message: str) -> str:
        """Return the marks alone."""
        return message

    def solve(self) -> str:
        """Return the word with the most distinct marks."""
        return _best(self.words, self.told).upper()

    def guess(self, rng: random.Random) -> str:
        """Return any word that can be guessed."""
        return rng.choice(self.words or words.guesses()).upper()

    def state(self) -> tuple[_Told, int]:
        """Return what was told, in whatever order, and the guesses left."""
        return tuple(sorted(set(self.told))), self.guesses_left


def _mark_all(guesses: tuple[str, ...], secrets: tuple[str, ...]) -> NDArray[np.uint8]:
    """Return the marks of all guesses for all secrets, as numbers in base three with the digits of ``_MARKS``."""
    ours, theirs = (np.frombuffer("".join(part).encode(), np.uint8).reshape(-1, 5) for part in (guesses, secrets))
    ours, theirs = ours.T[:, :, None], theirs.T[:, None, :]
    missed = [ours[place] != theirs[place] for place in range(5)]
    numbers = np.zeros((len(guesses), len(secrets)), dtype=np.uint8)
    for place in range(5):
        there = sum(((ours[place] == theirs[other]) & missed[other] for other in range(5)), np.uint8(0))
        before = sum(((ours[place] == ours[other]) & missed[other] for other in range(place)), np.uint8(0))
        numbers += np.where(missed[place], there > before, np.uint8(2)).astype(np.uint8) * np.uint8(3**place)
    return numbers


@lru_cache(2**14)
def _best(shown: tuple[str, ...], told: _Told) -> str:
    """Return the guess with the most distinct marks; ties: a possible word, then the least sum of squares."""
    if not shown and not told:
        return _OPENING
    answers, legal = shown or words.answers(), shown or words.guesses()
    possible = answers
    for guess, marks in told:
        number = sum(_MARKS.index(mark) * 3**place for place, mark in enumerate(marks))
        possible = tuple(np.array(possible)[_mark_all((guess,), possible)[0] == number].tolist())
    if len(possible) <= 2:
        return possible[0]
    numbers = _mark_all(legal, possible) + (np.arange(len(legal)) * _KINDS)[:, None]
    sizes = np.bincount(numbers.ravel(), minlength=len(legal) * _KINDS).reshape(-1, _KINDS)
    parts = 2 * np.count_nonzero(sizes, axis=1) + np.isin(legal, possible)
    equal = np.flatnonzero(parts == parts.max())
    return legal[int(equal[np.argmin((sizes[equal] ** 2).sum(1))])]
