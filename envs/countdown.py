"""Countdown and the 24 game: make a target from given numbers."""

import random
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import cache, lru_cache
from itertools import product
from math import gcd
from operator import add, mul, sub, truediv
from typing import ClassVar, TypeAlias

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_LARGE = (25, 50, 75, 100)
_OPERATION = re.compile(r"\s*([0-9]{1,40}(?:/[0-9]{1,40})?)\s*([-+*/])\s*([0-9]{1,40}(?:/[0-9]{1,40})?)\s*")
_SIGNS = {"+": add, "-": sub, "*": mul, "/": truediv}
_UNDONE = {"+": "-", "-": "+", "*": "/", "/": "*"}
_PLAIN = str.maketrans("\u00d7\u00f7\u2212", "*/-")  # as typeset
_Rational: TypeAlias = tuple[int, int]  # numerator and denominator in lowest terms; faster than Fraction
_Operation: TypeAlias = tuple[_Rational, str, _Rational]


class Countdown(TextGame):
    """Make ``target`` from the numbers with + - * /, each used at most once (in the 24 game, exactly once).

    >>> env = Countdown()
    >>> env.reset(seed=3)[0]
    'Numbers: 2, 3, 4, 11. Target: 24. Turns left: 6.'
    >>> [env.step(action)[0] for action in ("3 + 11", "2 * 14", "28 - 4")]
    ['Numbers: 2, 4, 14. Target: 24. Turns left: 5.', 'Numbers: 4, 28. Target: 24. Turns left: 4.', '24. Solved.']

    The result of an operation on two numbers takes their place; the game is won when it is the target, and lost when a
    single other number is left. Results are exact fractions and never below zero, which excludes no solution. Numbers
    are up to ``high``, each at most ``repeats`` times, but ``large`` of them distinct ones of 25, 50, 75 and 100; with
    ``use_all`` each must be used. Only games that can be won in time are dealt; of arguments without such games a reset
    raises ``ConfigError``. Medium is the 24 game, hard the numbers round of the television show.

    The solver searches all expressions, so it always wins, with the fewest operations.
    """

    presets: ClassVar = {
        "easy": {"numbers": 3, "high": 5, "repeats": 3, "large": 0, "target_low": 1, "target_high": 10,
                 "use_all": False, "turns": 4},
        "medium": {"numbers": 4, "high": 13, "repeats": 4, "large": 0, "target_low": 24, "target_high": 24,
                   "use_all": True, "turns": 6},
        "hard": {"numbers": 6, "high": 10, "repeats": 2, "large": 2, "target_low": 100, "target_high": 999,
                 "use_all": False, "turns": 8},
    }  # fmt: skip
    ranges: ClassVar = {
        "numbers": (2, 6), "high": (1, 100), "repeats": (1, None), "large": (0, len(_LARGE)), "target_low": (1, None),
        "target_high": (None, 10**9)
    }  # fmt: skip
    between = " "
    optimal_success = 1.0
    numbers: int
    high: int
    repeats: int
    large: int
    target_low: int
    target_high: int
    use_all: bool

    def prepare(self) -> None:
        """Check that so many numbers can be dealt and used, and write the rules, whose example is never dealt."""
        most = min(self.large + self.high * self.repeats, self.turns + 1 if self.use_all else 6)
        if self.target_low > self.target_high or not self.large <= self.numbers <= most:
            raise ConfigError(f"target_low must be at most target_high, and numbers from {self.large} to {most}")
        each, top = "each exactly once" if self.use_all else "each at most once", max(self.high, *_LARGE)
        win = "the target is the only number left" if self.use_all else "a result is the target"
        self.instructions = (
            f"Make the target of the numbers with + - * /, {each}. In each turn give one operation on two of the "
            "numbers; its result takes their place. Results are exact fractions (written like 8/3) and must not be "
            f"negative. You win when {win}, within {counted(self.turns, 'turn')}; anything else costs a turn. "
            f"Answer with the operation alone, with spaces around the operator, like: {top + 9} - {top + 2}"
        )

    def deal(self) -> None:
        """Draw numbers and a target until it can be made in time."""
        rng, draws = self.np_random, 2000 if self.numbers < 5 else 200
        for _ in range(draws):
            dealt = [_LARGE[place] for place in rng.permutation(len(_LARGE))[: self.large]] if self.large else []
            while len(dealt) < self.numbers:
                number = int(rng.integers(1, self.high + 1))
                if dealt[self.large :].count(number) < self.repeats:
                    dealt.append(number)
            self.hand = sorted(map(Fraction, dealt))
            self.target = int(rng.integers(self.target_low, self.target_high + 1))
            if 0 < len(self._solution()) <= self.turns:
                return
        raise ConfigError(f"of {draws} deals with these arguments none can be won")

    def show(self) -> str:
        """Return the numbers, the target and the turns left."""
        return f"Numbers: {', '.join(map(str, self.hand))}. Target: {self.target}. Turns left: {self.turns_left}."

    def play(self, action: str) -> Step:
        """Replace two numbers by their result."""
        read = _OPERATION.fullmatch(action.translate(_PLAIN))
        if read is None:
            return self.reject("Not one operation on two numbers.")
        names, used = [str(number) for number in self.hand], list[Fraction]()
        for name in (read[1], read[3]):
            if name not in names:
                return self.reject(f"There is no {name:.20} left.")
            names.remove(name)
            used.append(Fraction(name))
        if read[2] == "/" and not used[1]:
            return self.reject("Division by zero.")
        if (result := _SIGNS[read[2]](*used)) < 0:
            return self.reject("The result would be negative.")
        self.hand = [*map(Fraction, names), result]
        if result == self.target and not (names and self.use_all):
            return Step(f"{result}. Solved.", done=True, success=True)
        return self.turn() if names else Step(f"{result} is left, not {self.target}.", done=True)

    def solve(self) -> str:
        """Return the first operation of a solution, or any in a dead end."""
        steps = self._solution()
        left, sign, right = steps[0] if steps else (self.hand[0], "+", self.hand[-1])
        return f"{left} {sign} {right}"

    def guess(self, rng: random.Random) -> str:
        """Return any operation on two numbers."""
        one, other = rng.sample(self.hand, 2) if len(self.hand) > 1 else self.hand * 2
        sign = rng.choice("+*" + "-" * (one >= other) + "/" * (other > 0))
        return f"{one} {sign} {other}"

    def state(self) -> tuple[str, ...]:
        """Return the numbers."""
        return tuple(map(str, self.hand))

    def _solution(self) -> list[tuple[Fraction, str, Fraction]]:
        numbers = tuple(sorted(number.as_integer_ratio() for number in self.hand))
        steps = _solution(numbers, self.target, self.use_all) or ()
        return [(Fraction(*left), sign, Fraction(*right)) for left, sign, right in steps]


@lru_cache(4096)
def _solution(numbers: tuple[_Rational, ...], target: int, use_all: bool) -> tuple[_Operation, ...] | None:
    """Return the fewest operations that make ``target``; no negative value is ever needed.

    Values of few numbers are tabulated. Of more, one side of the last operation has few numbers, and each value of that
    side determines the value that the other side must have. Sets of numbers are bits of an integer.
    """
    whole, few = (1 << len(numbers)) - 1, 3 if len(numbers) < 5 else 4

    @cache
    def values(part: int) -> dict[_Rational, tuple[_Operation, ...]]:
        if part.bit_count() == 1:
            return {numbers[part.bit_length() - 1]: ()}
        found: dict[_Rational, tuple[_Operation, ...]] = {}
        for side in _sides(part):
            for (one, first), (other, then) in product(values(side).items(), values(part ^ side).items()):
                for sign, result in _results(one, other):
                    if result not in found:
                        found[result] = (*first, *then, (one, sign, other))
        return found

    @cache
    def find(part: int, wanted: _Rational) -> tuple[_Operation, ...] | None:
        if part.bit_count() <= few:
            return values(part).get(wanted)
        for side in _sides(part):
            for value, first in values(side).items() if 2 * side.bit_count() <= part.bit_count() else ():
                for needed, last in _inverses(wanted, value):
                    if (then := find(part ^ side, needed)) is not None:
                        return (*first, *then, last)
        return None

    parts = [whole] if use_all else sorted(range(1, whole + 1), key=int.bit_count)
    return next((steps for part in parts if (steps := find(part, (target, 1))) is not None), None)


def _sides(part: int) -> list[int]:
    """Return all non-empty proper subsets of the bits of ``part``."""
    return [side for side in range(1, part) if side | part == part]


def _lowest(over: int, under: int) -> _Rational:
    shared = gcd(over, under)
    return over // shared, under // shared


def _results(one: _Rational, other: _Rational) -> Iterator[tuple[str, _Rational]]:
    """Yield the operations on two numbers in this order whose results are not negative."""
    (a, b), (c, d) = one, other
    over, less = a * d, c * b
    if over <= less:
        yield "+", _lowest(over + less, b * d)
        yield "*", _lowest(a * c, b * d)
    if over >= less:
        yield "-", _lowest(over - less, b * d)
    if c:
        yield "/", _lowest(over, less)


def _inverses(wanted: _Rational, value: _Rational) -> Iterator[tuple[_Rational, _Operation]]:
    """Yield the numbers that make the wanted one with ``value``, and the operations that do."""
    for one, other in ((wanted, value), (value, wanted)):
        for sign, needed in _results(one, other):
            if value[0] or sign in "+-":
                undone = sign in "+*" or other is value
                yield needed, (needed, _UNDONE[sign], value) if undone else (value, sign, needed)
