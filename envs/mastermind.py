"""Mastermind."""

import random
from functools import cache, lru_cache
from itertools import product
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_MOST_CODES = 100_000
_WEIGH_ALL_UP_TO = 4096
_WEIGHED_OTHERWISE = 200
_MOST_GUESSES = {(2, 4): 4, (4, 6): 5, (5, 8): 8}
"""Most guesses that the solver needs, by pegs and colors, where it was played out."""
_Told: TypeAlias = tuple[tuple[str, int, int], ...]
"""Guesses, each with its black, and its black and white together."""


class Mastermind(TextGame):
    """Find a secret code from the number of right numbers and of those in the right place in each guess.

    >>> env = Mastermind()
    >>> env.reset(options={"instance": 7})  # 1 1 2 2
    ('A code of 4 numbers from 1 to 6. 10 guesses left.', {})
    >>> env.step("2 2 1 3")[0]
    '2 2 1 3: 0 black, 3 white. 9 guesses left.'
    >>> env.step("2217")[0], env.step("1122")[:3]
    ('Not 4 numbers from 1 to 6. 8 guesses left.', ('Correct.', 1.0, True))

    A code has ``pegs`` numbers from 1 to ``colors``, which may repeat. Black counts the positions where guess and code
    agree, white the other numbers that can be paired, each of them once. Spaces between the numbers may be left out.

    Of up to 4096 codes the solver plays Knuth's strategy: the guess, of all codes, that minimizes the largest number of
    codes that can be left; ties go to a code that is still possible, then to the first. For more codes it compares at
    most 200 that are still possible, evenly spaced, by the expected number of codes left (Irving's criterion). It needs
    45/16 = 2.8125 guesses of easy in the mean, 5801/1296 = 4.4761 of medium (the least is 5625/1296; Koyama and Lai
    1993, quoted) and 5.5523 of hard, and at most 4, 5 and 8. Random codes win ``1 - (1 - 1/codes)**turns``.
    """

    presets: ClassVar = {
        "easy": {"pegs": 2, "colors": 4, "turns": 6},
        "medium": {"pegs": 4, "colors": 6, "turns": 10},
        "hard": {"pegs": 5, "colors": 8, "turns": 10},
    }
    ranges: ClassVar = {"pegs": (1, 9), "colors": (1, 9)}
    between = " "
    pegs: int
    colors: int

    def prepare(self) -> None:
        """Check the number of codes, and write the rules, whose example has a number that no code has."""
        self.num_instances = codes = int(self.colors**self.pegs)
        if codes > _MOST_CODES:
            raise ConfigError(f"pegs and colors must make at most {_MOST_CODES} codes, got {codes}")
        self.optimal_success = 1.0 if self.turns >= _MOST_GUESSES.get((self.pegs, self.colors), codes) else None
        self.instructions = (
            f"Mastermind: find the secret code of {self.pegs} numbers from 1 to {self.colors}, which may repeat, in "
            f"{counted(self.turns, 'guess')}. After each you are told how many of its numbers are in the code and in "
            "the right place (black) and how many others are in the code but in another place (white). Anything that "
            f"is no code costs a guess. Answer with a code alone, written like {' '.join('0' * self.pegs)} (which is "
            "none: 0 is never in a code)."
        )

    def deal(self) -> None:
        """Choose the code."""
        self.secret = _codes(self.pegs, self.colors)[self.instance or 0]
        self.told: _Told = ()

    def show(self) -> str:
        """Return the guesses left; first the kind of code."""
        first = f"A code of {counted(self.pegs, 'number')} from 1 to {self.colors}. " if self._last is None else ""
        return f"{first}{counted(self.turns_left, 'guess')} left."

    def play(self, action: str) -> Step:
        """Guess a code."""
        guess = "".join(action.split())
        if len(guess) != self.pegs or not set(guess) <= set("123456789"[: self.colors]):
            return self.reject(f"Not {self.pegs} numbers from 1 to {self.colors}.")
        if guess == self.secret:
            return Step("Correct.", done=True, success=True)
        black = sum(map(str.__eq__, guess, self.secret))
        paired = sum(min(guess.count(color), self.secret.count(color)) for color in set(guess))
        self.told += ((guess, black, paired),)
        return self.turn(f"{' '.join(guess)}: {black} black, {paired - black} white.")

    def solve(self) -> str:
        """Return the next guess of the strategy."""
        return " ".join(_best(self.pegs, self.colors, self.told))

    def guess(self, rng: random.Random) -> str:
        """Return any code."""
        return " ".join(rng.choice(_codes(self.pegs, self.colors)))

    def state(self) -> _Told:
        """Return what was told, in whatever order."""
        return tuple(sorted(set(self.told)))


@cache
def _codes(pegs: int, colors: int) -> list[str]:
    """Return all codes in lexicographic order."""
    return ["".join(code) for code in product("123456789"[:colors], repeat=pegs)]


@cache
def _digits(pegs: int, colors: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return the numbers of all codes by position, and how often each code has each color."""
    numbers = np.array([[int(number) for number in code] for code in _codes(pegs, colors)], dtype=np.uint8).T.copy()
    return numbers, np.array([(numbers == color).sum(0) for color in range(1, colors + 1)], dtype=np.uint8)


def _compare(pegs: int, colors: int, guesses: Any, others: Any) -> NDArray[np.intp]:
    """Return the marks of guesses for other codes, black * (pegs + 1) + black and white."""
    numbers, counts = _digits(pegs, colors)
    black = sum((row[guesses] == row[others] for row in numbers), np.uint8(0))
    paired = sum((np.minimum(row[guesses], row[others]) for row in counts), np.uint8(0))
    return np.asarray(black * np.uint8(pegs + 1) + paired, dtype=np.intp)


@lru_cache(2**16)
def _best(pegs: int, colors: int, told: _Told) -> str:
    """Return the next guess after guesses and their marks."""
    codes = _codes(pegs, colors)
    every: NDArray[np.intp] = np.arange(len(codes))
    possible, few = every, len(codes) <= _WEIGH_ALL_UP_TO
    for guess, black, paired in told:
        marks = _compare(pegs, colors, codes.index(guess), possible)
        possible = possible[marks == black * (pegs + 1) + paired]
    if possible.size <= 2:
        return codes[int(possible[0])]
    weighed = every if few else possible
    if possible.size == len(codes):  # the first guess: by symmetry, one code of each kind is enough
        steps = np.diff(_digits(pegs, colors)[0].astype(int), axis=0)
        weighed = np.flatnonzero((_digits(pegs, colors)[0][0] == 1) & (steps >= 0).all(0) & (steps <= 1).all(0))
    elif not few and possible.size > _WEIGHED_OTHERWISE:
        weighed = possible[np.arange(_WEIGHED_OTHERWISE) * possible.size // _WEIGHED_OTHERWISE]
    kinds = (pegs + 1) ** 2
    table = _compare(pegs, colors, weighed[:, None], possible) + (np.arange(weighed.size) * kinds)[:, None]
    left = np.bincount(table.ravel(), minlength=weighed.size * kinds).reshape(weighed.size, kinds)
    if not few:
        return codes[int(weighed[np.argmin((left * left).sum(1))])]
    equal = weighed[left.max(1) == left.max(1).min()]
    both = equal[np.isin(equal, possible)]
    return codes[int((both if both.size else equal)[0])]
