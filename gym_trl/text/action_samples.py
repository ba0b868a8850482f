"""Actions of any space: drawn at random as a player would choose them, or spread over the space for a search."""

import math
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import singledispatch
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from gym_trl.seeding import derive_seed
from gym_trl.spaces import holds_text, sample_allowed

_LONGEST_TEXT = 16
_DIGITS = frozenset("0123456789")
_OF_NUMBERS = _DIGITS | set("+-.,eE_ ")
_AMOUNT = r"-?\d{1,3}(?:,\d{3})+(?!\d)|-?\d{1,12}"
_RANGE = re.compile(
    rf"(?<![\w.])({_AMOUNT})\s*(?:to|and|through|until|\.\.\.?|…|[-\u2013\u2014])\s*({_AMOUNT})(?!\w|\.\d)"
)
_INTERVAL = re.compile(rf"[\[(]({_AMOUNT}),\s*({_AMOUNT})[\])]")
_LIMIT = re.compile(
    rf"\b(?:at most|up to|less than|below|under|no more than|maximum(?: of)?|max)\s+({_AMOUNT})(?![\w])"
)


class Numbers(NamedTuple):
    """Range of integers, both ends included."""

    low: int
    high: int


def ranges_in(texts: Sequence[str]) -> list[Numbers]:
    """Return the ranges of integers that texts name, the widest first.

    >>> ranges_in(["Guess 1 to 1,000 in 5 tries.", "It has 3 to 5 digits, each below 10."])
    [Numbers(low=1, high=1000), Numbers(low=0, high=10), Numbers(low=3, high=5)]
    """
    ranges = set[Numbers]()
    for text in texts:
        pairs = [(one[1], one[2]) for form in (_RANGE, _INTERVAL) for one in form.finditer(text)]
        pairs += [("0", one[1]) for one in _LIMIT.finditer(text)]
        for first, second in pairs:
            low, high = (int(amount.replace(",", "")) for amount in (first, second))
            if low < high:
                ranges.add(Numbers(low, high))
    return sorted(ranges, key=lambda one: (one.low - one.high, one.low))


def holds_numbers(space: spaces.Space[Any]) -> bool:
    """Return whether the texts of ``space`` are numbers: of a charset of digits, signs and points, of any length.

    >>> holds_numbers(spaces.Text(6, charset="0123456789")), holds_numbers(spaces.Text(6))
    (True, False)

    Texts of one length, such as the four digits of a code, are not.
    """
    return (
        isinstance(space, spaces.Text)
        and _DIGITS <= space.character_set <= _OF_NUMBERS
        and space.min_length < space.max_length
    )


class ActionSampler:
    """Random actions of a space, as values.

    >>> draw = ActionSampler(spaces.Text(6, charset="0123456789"), 0)
    >>> all(10 <= int(draw(["A number from 10 to 99."])) <= 99 for _ in range(50))
    True

    Actions are drawn with the space's own ``sample``, except for Gymnasium's ``Text``, alone or in a ``Dict`` or
    ``Tuple``. Of a text of digits, an integer is drawn from the widest range that ``texts`` name; if they name none, a
    number of one digit is drawn half of the time, of two digits a quarter, and so on. Other texts have at most 16
    characters if the space allows it.

    Args:
        space: Action space; a copy is seeded.
        seed: Any integer. The generator's seed is derived from it, so that the draws are independent of those of an
            environment with the same seed.
    """

    def __init__(self, space: spaces.Space[Any], seed: int) -> None:
        self._space = deepcopy(space)
        derived = derive_seed(seed, "random actions")
        self._space.seed(derived % 2**32)
        self._rng = np.random.default_rng(derived)

    def __call__(self, texts: Sequence[str] = (), mask: Any | None = None) -> Any:
        """Draw an action.

        Args:
            texts: Texts that may name a range of numbers: the instructions and the observation.
            mask: ``info["action_mask"]``, for spaces without texts.
        """
        return self._drawn(self._space, texts) if mask is None else sample_allowed(self._space, mask)

    def _drawn(self, space: spaces.Space[Any], texts: Sequence[str]) -> Any:
        if isinstance(space, spaces.Text):
            return self._number(space, texts) if holds_numbers(space) else self._text(space)
        if isinstance(space, spaces.Dict):
            return {name: self._drawn(inner, texts) for name, inner in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._drawn(inner, texts) for inner in space.spaces)
        return space.sample()

    def _text(self, space: spaces.Text) -> str:
        longest = min(space.max_length, max(space.min_length, _LONGEST_TEXT))
        length = int(self._rng.integers(space.min_length, longest + 1))
        return "".join(
            space.character_list[place] for place in self._rng.integers(len(space.character_list), size=length)
        )

    def _number(self, space: spaces.Text, texts: Sequence[str]) -> str:
        for one in ranges_in(texts):
            if (within := fitting(space, one)) is not None:
                return written(space, int(self._rng.integers(within.low, within.high + 1)))
        shortest = max(1, space.min_length)
        length = min(space.max_length, shortest - 1 + int(self._rng.geometric(0.5)))
        first = 1 if length > 1 else 0
        digits = [self._rng.integers(first, 10), *self._rng.integers(10, size=length - 1)]
        return "".join(map(str, digits))


def fitting(space: spaces.Text, numbers: Numbers) -> Numbers | None:
    """Return the part of a range that can be written in the texts of ``space``; ``None`` if there is none.

    >>> fitting(spaces.Text(2, charset="0123456789"), Numbers(-5, 200))
    Numbers(low=0, high=99)
    """
    most = 10 ** min(space.max_length, 12) - 1
    least = -(10 ** min(space.max_length - 1, 12) - 1) if "-" in space.character_set else 0
    low, high = max(numbers.low, least), min(numbers.high, most)
    return Numbers(low, high) if low <= high else None


def written(space: spaces.Text, number: int) -> str:
    """Return an integer as a text of ``space``, with leading zeros if it has to be longer.

    >>> written(spaces.Text(4, min_length=3, charset="0123456789"), 7)
    '007'
    """
    return str(number).zfill(space.min_length)


def spread(space: spaces.Space[Any], most: int, texts: Sequence[str] = ()) -> list[Any]:
    """Return all actions of a small space, or at most ``most`` of a larger one: the first few are far apart.

    >>> [int(action) for action in spread(spaces.Discrete(3, start=1), 10)]
    [1, 2, 3]
    >>> [float(action[0]) for action in spread(spaces.Box(0, 1, (1,)), 5)]
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> spread(spaces.Text(2, charset="0123456789"), 1_000)[37]
    '37'

    Of texts of digits, these are the integers of the ranges that ``texts`` name and that the space allows.
    """
    return list(islice(_spread(space, most, texts), most))


@singledispatch
def _spread(space: spaces.Space[Any], most: int, texts: Sequence[str]) -> Iterator[Any]:
    return _sampled(space, most)


@_spread.register
def _(space: spaces.Discrete, most: int, texts: Sequence[str]) -> Iterator[Any]:
    return (space.dtype.type(int(space.start) + place) for place in _places(int(space.n), most))


@_spread.register(spaces.MultiDiscrete)
@_spread.register(spaces.MultiBinary)
@_spread.register(spaces.Box)
def _(space: Any, most: int, texts: Sequence[str]) -> Iterator[Any]:
    cells = _cells(space, most)
    return (np.asarray(one, space.dtype).reshape(space.shape) for one in _combined(cells, most))


@_spread.register
def _(space: spaces.Text, most: int, texts: Sequence[str]) -> Iterator[Any]:
    return iter(_texts(space, most, texts))


@_spread.register
def _(space: spaces.Dict, most: int, texts: Sequence[str]) -> Iterator[Any]:
    parts = [spread(inner, most, texts) for inner in space.spaces.values()]
    return (dict(zip(space.spaces, one, strict=True)) for one in _combined(parts, most))


@_spread.register(spaces.Tuple)
def _(space: Any, most: int, texts: Sequence[str]) -> Iterator[Any]:
    return _combined([spread(inner, most, texts) for inner in space.spaces], most)


@_spread.register(spaces.OneOf)
def _(space: Any, most: int, texts: Sequence[str]) -> Iterator[Any]:
    share = max(1, most // max(1, len(space.spaces)))
    kinds = enumerate(space.spaces)
    return ((np.int64(kind), one) for kind, inner in kinds for one in spread(inner, share, texts))


def _sampled(space: spaces.Space[Any], most: int) -> Iterator[Any]:
    draw = ActionSampler(space, 0)
    return (draw() for _ in range(most))


def _places(count: int, most: int) -> list[int]:
    """Return indices of a list: all of a short one, else ``most`` that are spread; the first of them are far apart.

    >>> _places(4, 10), _places(1_000, 5)
    ([0, 1, 2, 3], [0, 249, 499, 749, 999])
    """
    number = min(count, most)
    evenly = [place * (count - 1) // max(1, number - 1) for place in range(number)]
    return evenly if number <= 32 else [evenly[place] for place in _coarse_first(number)]


def _coarse_first(count: int) -> list[int]:
    """Return the numbers below ``count``, such that those of each beginning are spread evenly.

    >>> _coarse_first(5)
    [0, 4, 2, 1, 3]
    """
    bits = max(1, (count - 1).bit_length())
    order = (int(f"{place:0{bits}b}"[::-1], 2) for place in range(2**bits))
    return [place for place in order if place < count]


def _cells(space: spaces.MultiDiscrete | spaces.MultiBinary | spaces.Box, most: int) -> list[list[Any]]:
    """Return values of each cell of an array: all, or as many as can be combined."""
    count = math.prod(space.shape or ())
    each = max(2, int(most ** (1 / max(1, count)) + 1e-9))
    if isinstance(space, spaces.MultiBinary):
        return [[0, 1]] * count
    if isinstance(space, spaces.MultiDiscrete):
        first, sizes = np.ravel(space.start).tolist(), np.ravel(space.nvec).tolist()
        return [[low + place for place in _places(size, each)] for low, size in zip(first, sizes, strict=True)]
    bounds = zip(np.ravel(space.low).tolist(), np.ravel(space.high).tolist(), strict=True)
    return [_levels(low, high, each, whole=space.dtype.kind not in "f") for low, high in bounds]


def _levels(low: float, high: float, number: int, *, whole: bool) -> list[Any]:
    """Return values between two bounds; an infinite one is replaced by a near one."""
    if whole:
        low, high = int(low), int(high)
        return [low + place for place in _places(high - low + 1, number)]
    low = low if math.isfinite(low) else min(-2.0, high - 4.0) if math.isfinite(high) else -2.0
    high = high if math.isfinite(high) else max(2.0, low + 4.0)
    number -= number % 2 == 0 and number > 2  # so that the middle is one of them
    evenly = [low + (high - low) * (place / (number - 1)) for place in range(number)]
    return evenly if number <= 32 else [evenly[place] for place in _coarse_first(number)]


def _combined(parts: Sequence[Sequence[Any]], most: int) -> Iterator[tuple[Any, ...]]:
    """Yield all combinations, or else ``most``: the same place in all parts, changes of one part, and random ones."""
    if not all(parts):
        return
    if math.prod(map(len, parts)) <= most:
        yield from product(*parts)
        return
    longest = max(map(len, parts))
    middle = [part[len(part) // 2] for part in parts]
    for place in range(longest):
        yield tuple(part[place * len(part) // longest] for part in parts)
    for index in _places(len(parts), most):
        for value in parts[index][:: max(1, len(parts[index]) // 8)]:
            yield (*middle[:index], value, *middle[index + 1 :])
    rng = np.random.default_rng(derive_seed("spread"))
    while True:
        yield tuple(part[int(rng.integers(len(part)))] for part in parts)


def _texts(space: spaces.Text, most: int, texts: Sequence[str]) -> list[str]:
    characters = space.character_list
    if holds_numbers(space):
        return [written(space, number) for number in numbers_within(_allowed(space, texts), most)]
    lengths = range(space.min_length, space.max_length + 1)
    if space.max_length <= 64 and sum(len(characters) ** length for length in lengths) <= most:
        return ["".join(one) for length in lengths for one in product(characters, repeat=length)]
    same = [character * max(1, space.min_length) for character in characters][: most // 2]
    return list(dict.fromkeys([*same, *islice(_sampled(space, most), most - len(same))]))


def _allowed(space: spaces.Text, texts: Sequence[str]) -> list[Numbers]:
    """Return the ranges of integers that texts name, as far as they can be written, or all that the space allows."""
    named = [within for one in ranges_in(texts) if (within := fitting(space, one)) is not None]
    whole = fitting(space, Numbers(-(10**12), 10**12))
    return named or ([whole] if whole is not None else [])


def numbers_within(ranges: Sequence[Numbers], most: int) -> list[int]:
    """Return integers of some ranges: all, or at most ``most``, which are small ones and ones spread over the ranges.

    >>> numbers_within([Numbers(3, 6), Numbers(5, 7)], 10)
    [3, 4, 5, 6, 7]
    >>> len(numbers_within([Numbers(0, 10**6)], 100)), 7 in numbers_within([Numbers(0, 10**6)], 100)
    (100, True)
    """
    if sum(high - low + 1 for low, high in ranges) <= most:
        return list(dict.fromkeys(number for low, high in ranges for number in range(low, high + 1)))
    numbers = dict[int, None]()
    for low, high in ranges:
        share = most // len(ranges)
        near = min(max(low, 0), high)  # small numbers are more frequent than large ones
        numbers |= dict.fromkeys(range(near, min(high, near + share // 2) + 1))
        numbers |= dict.fromkeys(low + place for place in _places(high - low + 1, share - share // 2))
    return list(numbers)[:most]


def is_free_text(space: spaces.Space[Any]) -> bool:
    """Return whether the actions of ``space`` are texts of no declared kind, so that random ones mean nothing.

    >>> from gym_trl.spaces import AnyText
    >>> is_free_text(AnyText()), is_free_text(spaces.Text(6, charset="0123456789")), is_free_text(spaces.Discrete(2))
    (True, False, False)
    """
    return holds_text(space) and not holds_numbers(space)
