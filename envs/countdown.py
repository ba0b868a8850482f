"""Countdown and the 24 game: make a target from given numbers."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from itertools import combinations
from math import gcd
from operator import add, mul, sub
from typing import Any, ClassVar, TypeAlias

from gym_trl.envs.arithmetic import calculate
from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_LARGE = (25, 50, 75, 100)
_LONGEST = 200
_DRAWS = 2_000
_DRAWS_OF_MANY = 200
"""Draws of 5 or 6 numbers, for which proving a target unreachable takes up to 40 ms."""

_Number: TypeAlias = int | Fraction

_STEP = re.compile(r"\s*([0-9]{1,40}(?:/[0-9]{1,40})?)\s*([-+*/])\s*([0-9]{1,40}(?:/[0-9]{1,40})?)\s*")
_EXPRESSION = re.compile(r"[-+*/()0-9\s]*")
_NUMBER = re.compile(r"[0-9]+")
_BY_ZERO = "Division by zero."
_NO_EXPRESSION = "Not an expression of whole numbers, + - * / and parentheses."
_OPERATIONS: dict[str, Callable[[Any, Any], _Number]] = {"+": add, "-": sub, "*": mul, "/": Fraction}
_PLAIN = str.maketrans("\u00d7\u00f7\u2212", "*/-")
"""Operators that are also read as typeset."""
_STATE = re.compile(r"Numbers: ([0-9/, ]+)\. Target: ([0-9]+)\.")

_Rational: TypeAlias = tuple[int, int]
"""Non-negative number as numerator and denominator in lowest terms; faster than ``Fraction``."""
_Step: TypeAlias = tuple[_Rational, str, _Rational, _Rational]
"""Left side, operator, right side and result."""
_Values: TypeAlias = dict[_Rational, "tuple[int, _Rational, str, _Rational] | None"]
"""Values that some of the numbers make, each with its part of the left side, left side, operator, right side."""


class Countdown(Puzzle):
    """Make ``target`` from the numbers with + - * /, each used at most once (in the 24 game, exactly once).

    >>> env = Countdown(form="expression")
    >>> env.reset(seed=3)[0]
    'Numbers: 2, 3, 4, 11. Target: 24. Turns left: 6.'
    >>> env.step("2 + 3 + 4 + 11")[0]
    'That is 20. Numbers: 2, 3, 4, 11. Target: 24. Turns left: 5.'
    >>> env.step("2 * (3 + 11) - 4")[:3]
    ('That is 24. Solved.', 1.0, True)

    ``form="steps"``: an action is one operation, such as ``7 - 4``, whose result replaces the two numbers; the episode
    is won when the result is the target, and lost when a single other number is left. Results are exact fractions and
    never below zero, which excludes no solution. ``form="expression"``: an action is a whole expression with
    parentheses, and a wrong one shows its value. Only solvable instances are dealt.

    The medium preset is the 24 game, the hard one the numbers round of the television show.

    Args:
        numbers: Number of numbers.
        low: Lowest number.
        high: Highest number.
        repeats: Most times that a number may be dealt.
        large: Number of them that are distinct numbers out of 25, 50, 75 and 100 instead.
        target_low: Lowest target.
        target_high: Highest target.
        use_all: Require all numbers to be used.
        form: ``"steps"`` or ``"expression"``.
        reward: ``"efficient"`` pays the fewest operations with these numbers, divided by the turns taken (an expression
            takes one). The potential of ``"shaped"`` is, in the form of steps, 0 where the target can no longer be
            made, else ``1 / (1 + operations needed)``.

    24 can be made of 1362 of the 1820 hands of four cards from 1 to 13, and of 566 of 715 from 1 to 10 (computed in
    the tests). The solver searches all expressions, so it always wins, with the fewest operations.

    Raises:
        ConfigError: at reset, no solvable game among 2000 deals (200 of 5 or 6 numbers).
    """

    presets: ClassVar = {
        "easy": {
            "numbers": 3, "low": 1, "high": 5, "repeats": 3, "large": 0, "target_low": 1, "target_high": 10,
            "use_all": False, "form": "steps", "turns": 4
        },
        "medium": {
            "numbers": 4, "low": 1, "high": 13, "repeats": 4, "large": 0, "target_low": 24, "target_high": 24,
            "use_all": True, "form": "steps", "turns": 6
        },
        "hard": {
            "numbers": 6, "low": 1, "high": 10, "repeats": 2, "large": 2, "target_low": 100, "target_high": 999,
            "use_all": False, "form": "steps", "turns": 8
        },
    }  # fmt: skip
    ranges: ClassVar = {
        "numbers": (2, 6), "low": (1, None), "high": (1, 100), "repeats": (1, None), "large": (0, len(_LARGE)),
        "target_low": (1, None), "target_high": (None, 10**9), "form": ("steps", "expression"), "turns": (1, None)
    }  # fmt: skip
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "1 + + 1"
    optimal_success = 1.0

    numbers: int
    low: int
    high: int
    repeats: int
    large: int
    target_low: int
    target_high: int
    use_all: bool
    form: str

    after_message: ClassVar[str] = " "
    _dealt: tuple[int, ...] = ()

    def _check_arguments(self) -> None:
        super()._check_arguments()
        for low, high in (("low", "high"), ("target_low", "target_high"), ("large", "numbers")):
            lowest, highest = getattr(self, low), getattr(self, high)
            if lowest > highest:
                raise ConfigError(f"{low} must not be above {high}, got {low}={lowest} and {high}={highest}")
        if (self.high - self.low + 1) * self.repeats < self.numbers - self.large:
            raise ConfigError(
                f"numbers must not be more than can be dealt, got numbers={self.numbers} of {self.low} to "
                f"{self.high} with repeats={self.repeats}"
            )
        if self.use_all and self.form == "steps" and self.turns < self.numbers - 1:
            raise ConfigError(f"turns must be at least numbers - 1 to use all, got {self.turns}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example's numbers are never dealt."""
        each = "each exactly once" if self.use_all else "each at most once"
        top = max(self.high, *_LARGE)
        if self.form == "steps":
            win = "the target is the only number left" if self.use_all else "a result is the target"
            return (
                f"Make the target of the numbers with + - * /, {each}. In each turn give one operation on two of the "
                "numbers; its result takes their place. Results are exact fractions (written like 8/3) and must not be "
                f"negative. You win when {win}, within {counted(self.turns, 'turn')}; anything else costs a turn. "
                f"Answer with the operation alone, with spaces around the operator, like: {top + 9} - {top + 2}"
            )
        return (
            f"Make the target of the numbers with + - * / and parentheses, {each}. Fractions are exact. Answer with "
            "one expression and nothing else; if it does not make the target you are told its value and may try again, "
            f"in {counted(self.turns, 'turn')} in all. Anything else costs a turn. For example: "
            f"({top + 9} - {top + 2}) * {top + 1}"
        )

    @property
    def constant_action(self) -> str:
        """Sum of the dealt numbers, or of two of them."""
        dealt = [str(number) for number in self._dealt or [self.low] * self.numbers]
        return " + ".join(dealt[:2] if self.form == "steps" else dealt)

    def solver(self) -> Policy:
        """Return a policy that searches all expressions for one with the fewest operations: it always wins."""
        return Steady(partial(_solve, self.use_all, self.form), _STATE.search)

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that plays any operation on two numbers, or adds numbers in any order."""
        rng = random.Random(seed)
        return lambda observation: self._random_step(rng) if self.form == "steps" else self._random_expression(rng)

    def _random_step(self, rng: random.Random) -> str:
        left = self._left
        while True:
            first, second = rng.sample(range(len(left)), 2) if len(left) > 1 else (0, 0)
            sign = rng.choice("+-*/")
            if not (sign == "-" and left[first] < left[second]) and not (sign == "/" and not left[second]):
                return f"{self._names[first]} {sign} {self._names[second]}"

    def _random_expression(self, rng: random.Random) -> str:
        count = self.numbers if self.use_all else rng.randint(2, self.numbers)
        text, *others = map(str, rng.sample(self._dealt, count))
        for other in others:
            # Zero may be the dividend only.
            pair = [f"({text})", other]
            sign = rng.choice("+-*/")
            if sign != "/":
                rng.shuffle(pair)
            text = f"{pair[0]} {sign} {pair[1]}"
        return text

    def _deal(self, instance: int | None) -> None:
        draws = _DRAWS if self.numbers < 5 else _DRAWS_OF_MANY
        for _ in range(draws):
            numbers, target = self._draw()
            fewest = self._fewest(numbers, target)
            if fewest is not None and (fewest <= self.turns or self.form == "expression"):
                break
        else:
            raise ConfigError(f"of {draws} deals with these arguments none can be won")
        self._dealt, self._target = numbers, target
        self._left: list[_Number] = list(numbers)
        self._names = [str(number) for number in numbers]

    def _draw(self) -> tuple[tuple[int, ...], int]:
        rng = self.np_random
        numbers = [_LARGE[place] for place in rng.permutation(len(_LARGE))[: self.large]] if self.large else []
        small: list[int] = []
        while len(small) < self.numbers - self.large:
            number = int(rng.integers(self.low, self.high + 1))
            if small.count(number) < self.repeats:
                small.append(number)
        return tuple(sorted(small + numbers)), int(rng.integers(self.target_low, self.target_high + 1))

    def _fewest(self, numbers: tuple[int, ...], target: int) -> int | None:
        """Return the fewest operations that make the target, or ``None`` if there are none or it is dealt itself."""
        if target in numbers and not self.use_all:
            return None
        steps = _solution(tuple((number, 1) for number in numbers), target, self.use_all)
        return None if steps is None else len(steps)

    def _act(self, action: str) -> Outcome:
        action = action if action.isascii() else action.translate(_PLAIN)
        return self._operate(action) if self.form == "steps" else self._evaluate(action)

    def _operate(self, action: str) -> Outcome:
        read = _STEP.fullmatch(action)
        if read is None:
            return self._reject("Not one operation on two numbers.")
        names, left = list(self._names), list(self._left)
        values = []
        for name in (read[1], read[3]):
            if name not in names:
                return self._reject(f"There is no {name:.20} left.")
            place = names.index(name)
            del names[place]
            values.append(left.pop(place))
        result = _apply(values[0], read[2], values[1])
        if result is None or result < 0:
            return self._reject(_BY_ZERO if result is None else "The result would be negative.")
        self._left, self._names = [*left, result], [*names, str(result)]
        if result == self._target and (len(self._left) == 1 or not self.use_all):
            return Outcome(f"{self._names[-1]}. Solved.", done=True, success=True)
        if len(self._left) == 1:
            return Outcome(f"{self._names[-1]} is left, not {self._target}.", done=True)
        return self._end_turn()

    def _snapshot(self) -> tuple[str, ...]:
        return tuple(self._names)

    def _evaluate(self, action: str) -> Outcome:
        if len(action.strip()) > _LONGEST or _EXPRESSION.fullmatch(action) is None:
            return self._reject(_NO_EXPRESSION)
        used, dealt = Counter(map(int, _NUMBER.findall(action))), Counter(self._dealt)
        if used - dealt:
            return self._reject("It uses a number that is not there, or too often.")
        if self.use_all and dealt - used:
            return self._reject("It does not use all numbers.")
        try:
            value = calculate(" ".join(action.split()), signs=False)
        except (ValueError, ZeroDivisionError) as error:
            return self._reject(_BY_ZERO if isinstance(error, ZeroDivisionError) else _NO_EXPRESSION)
        if value == self._target:
            return Outcome(f"That is {value}. Solved.", done=True, success=True)
        return self._end_turn(f"That is {value}.")

    def _fewest_actions(self) -> float:
        """Return the fewest operations that make the target, or 1 for expressions."""
        return 1 if self.form == "expression" else self._fewest(self._dealt, self._target) or 1

    def _potential(self) -> float:
        """Return 0 in a dead end, otherwise more the fewer operations are needed."""
        if self.form == "expression":
            return 0.0
        numbers = tuple(sorted((number.numerator, number.denominator) for number in self._left))
        steps = _solution(numbers, self._target, self.use_all)
        return 0.0 if steps is None else 1 / (1 + len(steps))

    def _observe(self) -> str:
        return f"Numbers: {', '.join(self._names)}. Target: {self._target}. Turns left: {self._turns_left}."


def _solve(use_all: bool, form: str, observation: str) -> str:
    """Return the first step of a solution with the fewest operations, or all of it as an expression."""
    shown = _STATE.search(observation)
    assert shown is not None
    numbers = tuple(sorted(_rational(name) for name in shown[1].split(", ")))
    steps = _solution(numbers, int(shown[2]), use_all)
    if not steps:  # a dead end that earlier actions of another policy led to
        return " + ".join(map(_text, numbers[:2] if form == "steps" else numbers))
    return f"{_text(steps[0][0])} {steps[0][1]} {_text(steps[0][2])}" if form == "steps" else _as_expression(steps)


def _apply(left: _Number, sign: str, right: _Number) -> _Number | None:
    """Return the result of an operation, or ``None`` for a division by zero."""
    if sign == "/" and not right:
        return None
    result = _OPERATIONS[sign](left, right)
    return result.numerator if result.denominator == 1 else result


def _rational(name: str) -> _Rational:
    over, _, under = name.partition("/")
    return int(over), int(under or 1)


def _text(number: _Rational) -> str:
    return str(number[0]) if number[1] == 1 else f"{number[0]}/{number[1]}"


def _as_expression(steps: Sequence[_Step]) -> str:
    """Return the steps nested into one expression."""
    made: list[tuple[_Rational, str]] = []

    def take(number: _Rational) -> str:
        # Take the latest result first, so that equal numbers are not confused.
        for place in range(len(made) - 1, -1, -1):
            if made[place][0] == number:
                return f"({made.pop(place)[1]})"
        return _text(number)

    for left, sign, right, result in steps:
        after, before = take(right), take(left)
        made.append((result, f"{before} {sign} {after}"))
    return made[-1][1]


@lru_cache(maxsize=4096)
def _solution(numbers: tuple[_Rational, ...], target: int, use_all: bool) -> tuple[_Step, ...] | None:
    """Return the fewest operations that make ``target``, or ``None``; no negative value is ever needed."""
    search = _Solutions(numbers)
    count = len(numbers)
    for size in [count] if use_all else range(1, count + 1):
        for chosen in combinations(range(count), size):
            steps = search.find(sum(1 << place for place in chosen), (target, 1))
            if steps is not None:
                return tuple(steps)
    return None


class _Solutions:
    """Table of all values of small sets of the numbers, with a search for larger sets.

    Values of up to 3 numbers (4, if there are more than 4 in all) are tabulated. For larger sets, one side of the last
    operation has few numbers, and each value of that side determines the value that the other side must have.
    """

    def __init__(self, numbers: Sequence[_Rational]) -> None:
        self._numbers = numbers
        self._few = 3 if len(numbers) <= 4 else 4
        self._made: dict[int, _Values] = {}
        self._failed: set[tuple[int, _Rational]] = set()

    def find(self, part: int, target: _Rational) -> list[_Step] | None:
        """Return the operations that make ``target`` from all numbers of ``part``, a set of bits."""
        if part.bit_count() <= self._few:
            return self._trace(part, target) if target in self._values(part) else None
        if (part, target) in self._failed:
            return None
        for small in _parts(part):
            if small.bit_count() * 2 > part.bit_count():
                continue
            for value in self._values(small):
                for needed, sign, swapped in _inverses(target, value):
                    steps = self.find(part ^ small, needed)
                    if steps is not None:
                        last = (value, sign, needed, target) if swapped else (needed, sign, value, target)
                        return [*steps, *self._trace(small, value), last]
        self._failed.add((part, target))
        return None

    def _values(self, part: int) -> _Values:
        if part in self._made:
            return self._made[part]
        values: _Values = {self._numbers[part.bit_length() - 1]: None} if part.bit_count() == 1 else {}
        for side in _parts(part):
            if side > part ^ side:  # each split once
                continue
            for one in self._values(side):
                for other in self._values(part ^ side):
                    for result, sign, swapped in _results(one, other):
                        if result not in values:
                            values[result] = (part ^ side, other, sign, one) if swapped else (side, one, sign, other)
        self._made[part] = values
        return values

    def _trace(self, part: int, value: _Rational) -> list[_Step]:
        made = self._values(part)[value]
        if made is None:
            return []
        side, left, sign, right = made
        return [*self._trace(side, left), *self._trace(part ^ side, right), (left, sign, right, value)]


def _parts(part: int) -> Iterator[int]:
    """Return all non-empty proper subsets of the bits of ``part``."""
    inside = (part - 1) & part
    while inside:
        yield inside
        inside = (inside - 1) & part


def _lowest(over: int, under: int) -> _Rational:
    if under == 1:
        return over, 1
    shared = gcd(over, under)
    return over // shared, under // shared


def _results(one: _Rational, other: _Rational) -> list[tuple[_Rational, str, bool]]:
    """Return the non-negative results of two numbers, each with its sign and whether the other one comes first."""
    (a, b), (c, d) = one, other
    over, less = a * d, c * b
    results = [
        (_lowest(over + less, b * d), "+", False),
        (_lowest(abs(over - less), b * d), "-", over < less),
        (_lowest(a * c, b * d), "*", False),
    ]
    if c:
        results.append((_lowest(over, less), "/", False))
    if a:
        results.append((_lowest(less, over), "/", True))
    return results


def _inverses(target: _Rational, value: _Rational) -> list[tuple[_Rational, str, bool]]:
    """Return the numbers that make the target with this one, with the sign and whether this one comes first."""
    (a, b), (c, d) = target, value
    over, less = a * d, c * b
    numbers = [(_lowest(over + less, b * d), "-", False)]
    if over >= less:
        numbers.append((_lowest(over - less, b * d), "+", False))
    else:
        numbers.append((_lowest(less - over, b * d), "-", True))
    if c:
        numbers.append((_lowest(over, less), "*", False))
        numbers.append((_lowest(a * c, b * d), "/", False))
        if a:
            numbers.append((_lowest(less, over), "/", True))
    return numbers
