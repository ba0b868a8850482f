"""Mastermind."""

import math
import random
import re
from collections import Counter
from collections.abc import Mapping
from functools import cache, cached_property, lru_cache
from itertools import permutations, product
from operator import eq
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_MOST_CODES = 100_000
_WEIGH_ALL_UP_TO = 4096
_WEIGHED_OTHERWISE = 200
_ANSWER = re.compile(r": ([0-9]) black, ([0-9]) white\.")

_Indices: TypeAlias = NDArray[np.intp]
_Answers: TypeAlias = NDArray[np.uint8]


class Mastermind(Puzzle):
    """Find a secret code from the number of right numbers and of those in the right place in each guess.

    >>> env = Mastermind()
    >>> env.reset(options={"instance": 7})  # 1 1 2 2
    ('A code of 4 numbers from 1 to 6. 10 guesses left.', {})
    >>> env.step("2 2 1 3")[0]
    '2 2 1 3: 0 black, 3 white. 9 guesses left.'
    >>> env.step("2217")[0]
    'Not 4 numbers from 1 to 6. 8 guesses left.'
    >>> env.step("1122")
    ('Correct.', 1.0, True, False, {'action_valid': True, 'success': True})

    A code has ``pegs`` numbers from 1 to ``colors``; with ``repeats=False`` they are all different, also in guesses.
    Black counts the positions where guess and code agree, white the other numbers that can be paired, each of them
    once. Spaces between the numbers may be left out. ``reward="efficient"`` divides the solver's number of guesses for
    this code by the number taken, and the potential of ``reward="shaped"`` is the share of the bits that are known.

    Of up to 4096 codes the solver plays Knuth's strategy: the guess, of all codes, that minimizes the largest number of
    codes that can be left; ties go to a code that is still possible, then to the first. For more codes it compares at
    most 200 that are still possible, evenly spaced, by the expected number of codes left (Irving's criterion). Exact
    means over all codes ("diff" is without repeats):

    ============ ===== =================== ==================================
    code         codes mean                after 1, 2, 3... guesses
    ============ ===== =================== ==================================
    2 of 4       16    45/16 = 2.8125      1 4 8 3
    4 of 6       1296  5801/1296 = 4.4761  1 6 62 533 694, at most 5
    2 of 4, diff 12    30/12 = 2.5         1 4 7
    4 of 6, diff 360   1490/360 = 4.1389   1 3 53 191 112
    4 of 8, diff 1680  8042/1680 = 4.7869  1 2 56 463 931 227
    5 of 8       32768 5.5523              1 19 244 2255 11852 15961 2366 70
    ============ ===== =================== ==================================

    The tests play all codes but those of the last two. The least mean for 4 of 6 is 5625/1296 = 4.3403 (Koyama and Lai
    1993; quoted). The least mean for 5 of 8 is unknown, but 10 guesses are enough, as the solver always wins in
    8. Random codes win ``1 - (1 - 1/codes)**turns``.
    """

    presets: ClassVar = {
        "easy": {"pegs": 2, "colors": 4, "repeats": True, "turns": 6},
        "medium": {"pegs": 4, "colors": 6, "repeats": True, "turns": 10},
        "hard": {"pegs": 5, "colors": 8, "repeats": True, "turns": 10},
    }
    ranges: ClassVar = {"pegs": (1, 9), "colors": (1, 9), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "0 0 0 0"

    pegs: int
    colors: int
    repeats: bool

    after_message: ClassVar[str] = " "

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if not self.repeats and self.pegs > self.colors:
            problem = f"pegs={self.pegs} and colors={self.colors}"
            raise ConfigError(f"without repeats pegs must be at most colors, got {problem}")
        if self.num_instances > _MOST_CODES:
            problem = f"pegs={self.pegs} and colors={self.colors} make {self.num_instances}"
            raise ConfigError(f"there must be at most {_MOST_CODES} codes, and {problem}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example has a number that no code has."""
        different = "which may repeat" if self.repeats else "all different"
        return (
            f"Mastermind: find the secret code of {self.pegs} numbers from 1 to {self.colors}, {different}, in "
            f"{counted(self.turns, 'guess')}. After each you are told how many of its numbers are in the code and in "
            "the right place (black) and how many others are in the code but in another place (white). Anything that "
            f"is no code costs a guess. Answer with a code alone, written like {' '.join('0' * self.pegs)} (which is "
            "none: 0 is never in a code)."
        )

    @property
    def num_instances(self) -> int:
        """The number of codes."""
        return int(self.colors**self.pegs) if self.repeats else math.perm(self.colors, self.pegs)

    @property
    def optimal_success(self) -> float | None:
        """1.0 if the solver always wins, ``1 / num_instances`` for one turn, otherwise ``None``."""
        if self.turns == 1:
            return 1 / self.num_instances
        return 1.0 if self.turns >= self._book.most_guesses else None

    @property
    def constant_action(self) -> str:
        """The first code."""
        return " ".join(_codes(self.pegs, self.colors, self.repeats)[0])

    def solver(self) -> Policy:
        """Return a policy with Knuth's strategy, or Irving's for more than 4096 codes; see the table of the class."""
        return _Strategy(self._book)

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that guesses uniformly random codes."""
        rng, codes = random.Random(seed), _codes(self.pegs, self.colors, self.repeats)
        return lambda observation: " ".join(rng.choice(codes))

    def _deal(self, instance: int | None) -> None:
        self._secret = _codes(self.pegs, self.colors, self.repeats)[instance or 0]
        self._answers: list[tuple[str, int]] = []

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        return f"A code of {counted(self.pegs, 'number')} from 1 to {self.colors}. {super()._start(instance, options)}"

    def _act(self, action: str) -> Outcome:
        guess = "".join(action.split())
        spaced = _spaced(self.pegs, self.colors, self.repeats).get(guess)
        if spaced is None:
            different = "" if self.repeats else "different "
            return self._reject(f"Not {self.pegs} {different}numbers from 1 to {self.colors}.")
        if guess == self._secret:
            return Outcome("Correct.", done=True, success=True)
        black, paired = _compare(guess, self._secret)
        self._answers.append((guess, black * (self.pegs + 1) + paired))
        return self._end_turn(f"{spaced}: {black} black, {paired - black} white.")

    def _observe(self) -> str:
        return f"{counted(self._turns_left, 'guess')} left."

    def _snapshot(self) -> tuple[tuple[str, int], ...]:
        return tuple(sorted(set(self._answers)))

    def _fewest_actions(self) -> float:
        """Return the number of guesses that the solver takes for this code."""
        return self._book.guesses_for(self._secret)

    def _potential(self) -> float:
        """Return the share of the bits that are known."""
        possible = np.ones(self.num_instances, dtype=bool)
        for guess, answer in self._answers:
            possible &= self._book.marks_of(guess) == answer
        return 1.0 - math.log(np.count_nonzero(possible)) / math.log(possible.size) if possible.size > 1 else 0.0

    @property
    def _book(self) -> "_CodeBook":
        return _code_book(self.pegs, self.colors, self.repeats)


class _Strategy:
    """Policy that guesses by the code book, from the marks alone."""

    def __init__(self, book: "_CodeBook") -> None:
        self._book = book
        self._answers: tuple[int, ...] = ()

    def __call__(self, observation: str) -> str:
        if answer := _ANSWER.search(observation):
            black, white = int(answer[1]), int(answer[2])
            self._answers += (black * (self._book.pegs + 1) + black + white,)
        return " ".join(self._book.codes[self._book.guess(self._answers)])


class _CodeBook:
    """All codes, and the guesses of the strategy computed so far, shared by all instances.

    The marks of a guess are one number, ``black * (pegs + 1) + black + white``.
    """

    def __init__(self, pegs: int, colors: int, repeats: bool) -> None:
        self.pegs = pegs
        self.codes = _codes(pegs, colors, repeats)
        self._digits = np.array([[int(digit) for digit in code] for code in self.codes], dtype=np.uint8).T.copy()
        self._counts = np.array([(self._digits == color).sum(0) for color in range(1, colors + 1)], dtype=np.uint8)
        self._all: _Indices = np.arange(len(self.codes))
        self._guesses: dict[tuple[int, ...], int] = {}

    def guess(self, answers: tuple[int, ...]) -> int:
        """Return the next guess after these marks of the strategy's own guesses."""
        if answers not in self._guesses:
            possible = self._all
            for turn, answer in enumerate(answers):
                possible = possible[self._compare(self.guess(answers[:turn]), possible) == answer]
            self._guesses[answers] = self._choose(possible)
        return self._guesses[answers]

    def guesses_for(self, secret: str) -> int:
        """Return the number of guesses that the strategy takes for a secret."""
        answers: tuple[int, ...] = ()
        while (guess := self.codes[self.guess(answers)]) != secret:
            black, paired = _compare(guess, secret)
            answers += (black * (self.pegs + 1) + paired,)
        return len(answers) + 1

    @cached_property
    def most_guesses(self) -> int:
        """Largest number of guesses that the strategy takes, found by playing against all codes at once."""
        most = 0
        open_: list[tuple[tuple[int, ...], _Indices]] = [((), self._all)]
        while open_:
            answers, possible = open_.pop()
            if answers not in self._guesses:
                self._guesses[answers] = self._choose(possible)
            feedback = self._compare(self._guesses[answers], possible)
            for answer in np.unique(feedback).tolist():
                if answer == self.pegs * (self.pegs + 2):
                    most = max(most, len(answers) + 1)
                else:
                    open_.append(((*answers, answer), possible[feedback == answer]))
        return most

    def _choose(self, possible: _Indices) -> int:
        if possible.size <= 2:
            return int(possible[0])
        weighed = self._worth_weighing(possible)
        sizes = self._sizes(weighed, possible)
        if self._all.size > _WEIGH_ALL_UP_TO:
            return int(weighed[np.argmin((sizes * sizes).sum(1))])
        most_left = sizes.max(1)
        best = weighed[most_left == most_left.min()]
        both = best[np.isin(best, possible)]
        return int(both[0] if both.size else best[0])

    def _worth_weighing(self, possible: _Indices) -> _Indices:
        if possible.size == self._all.size:
            # The first guess: by symmetry of numbers and positions, one guess of each kind is enough.
            steps = np.diff(self._digits.astype(int), axis=0)
            return np.flatnonzero((self._digits[0] == 1) & (steps >= 0).all(0) & (steps <= 1).all(0))
        if self._all.size <= _WEIGH_ALL_UP_TO:
            return self._all
        if possible.size <= _WEIGHED_OTHERWISE:
            return possible
        places: _Indices = np.arange(_WEIGHED_OTHERWISE) * possible.size // _WEIGHED_OTHERWISE
        return possible[places]

    def _sizes(self, guesses: _Indices, possible: _Indices) -> NDArray[np.intp]:
        """Return the number of codes left by each guess and marks."""
        kinds = (self.pegs + 1) ** 2
        table = self._compare(guesses[:, None], possible).astype(np.intp)
        table += (np.arange(guesses.size) * kinds)[:, None]
        return np.bincount(table.ravel(), minlength=guesses.size * kinds).reshape(guesses.size, kinds)

    def _compare(self, guess: int | _Indices, possible: _Indices) -> _Answers:
        """Return the marks of guesses for possible codes."""
        digits, counts = self._digits[:, guess], self._counts[:, guess]
        black = sum((one == other[possible] for one, other in zip(digits, self._digits, strict=True)), np.uint8(0))
        paired = sum(
            (np.minimum(one, other[possible]) for one, other in zip(counts, self._counts, strict=True)), np.uint8(0)
        )
        answers: _Answers = np.asarray(black * np.uint8(self.pegs + 1) + paired, dtype=np.uint8)
        return answers

    @lru_cache(256)  # noqa: B019 -- there are few books, which are never freed
    def marks_of(self, guess: str) -> _Answers:
        """Return the marks of a guess for every code."""
        return self._compare(self.codes.index(guess), self._all)


@cache
def _code_book(pegs: int, colors: int, repeats: bool) -> _CodeBook:
    return _CodeBook(pegs, colors, repeats)


def _compare(guess: str, secret: str) -> tuple[int, int]:
    """Return the blacks, and the blacks and whites together."""
    colors, several = _colors(secret)
    paired = len(colors.intersection(guess))
    for color, times in several:
        if color in guess:
            paired += min(guess.count(color), times) - 1
    return [*map(eq, guess, secret)].count(True), paired


@lru_cache(4096)
def _colors(code: str) -> tuple[frozenset[str], tuple[tuple[str, int], ...]]:
    """Return a code's colors, and the number of occurrences of each that occurs more than once."""
    return frozenset(code), tuple((color, times) for color, times in Counter(code).items() if times > 1)


@cache
def _codes(pegs: int, colors: int, repeats: bool) -> list[str]:
    """Return all codes in lexicographic order."""
    digits = "123456789"[:colors]
    return ["".join(code) for code in (product(digits, repeat=pegs) if repeats else permutations(digits, pegs))]


@cache
def _spaced(pegs: int, colors: int, repeats: bool) -> dict[str, str]:
    """Return each code as it is shown, with spaces."""
    return {code: " ".join(code) for code in _codes(pegs, colors, repeats)}
