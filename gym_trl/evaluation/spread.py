"""Actions of a space that are far apart, which the search of blind play offers."""

import math
from collections.abc import Sequence
from itertools import chain, product
from typing import Any

import numpy as np
from gymnasium import spaces

from gym_trl.text.samples import holds_numbers, ranges_in, sampler
from gym_trl.text.spaces import ARRAYS, bounds_of, example


def spread(space: spaces.Space[Any], most: int, texts: Sequence[str] = ()) -> list[Any]:
    """Return all actions of a small space, or at most ``most`` of a larger one; the first of many are far apart.

    >>> [int(action) for action in spread(spaces.Discrete(3, start=1), 10)]
    [1, 2, 3]
    >>> [float(action[0]) for action in spread(spaces.Box(0, 1, (1,)), 5)]
    [0.0, 0.25, 0.5, 0.75, 1.0]
    >>> spread(spaces.Text(2, charset="0123456789"), 1_000)[37]
    '37'

    Real numbers are evenly spaced. Of texts of digits, these are the integers of the ranges that ``texts`` name and
    that the space allows. Where there are too many actions, all but an example are random.
    """
    if isinstance(space, spaces.Text) and holds_numbers(space):
        ranges = ranges_in(texts, space) or ranges_in([f"({1 - 10**12}, {10**12 - 1})"], space)
        return [str(number).zfill(space.min_length) for number in numbers_within(ranges, most)]
    if isinstance(space, spaces.Discrete):
        return [space.start + space.dtype.type(place) for place in _places(int(space.n), most)]
    if (grid := _grid(space, most)) is not None:
        return [grid[place] for place in _places(len(grid), most)]
    draw = sampler(space, 0)
    return [example(space), *(draw() for _ in range(most - 1))]


def _grid(space: spaces.Space[Any], most: int) -> list[Any] | None:  # noqa: PLR0911 -- a case for each kind of space
    """Return all values of a space, with real numbers evenly spaced; ``None`` if there are more than ``most``."""
    if isinstance(space, spaces.OneOf):
        kinds = [spread(inner, max(1, most // len(space.spaces))) for inner in space.spaces]
        return [(np.int64(kind), one) for kind, some in enumerate(kinds) for one in some]
    if isinstance(space, spaces.Text):
        lengths = range(space.min_length, min(space.max_length, 64) + 1)
        if space.max_length > 64 or sum(len(space.character_list) ** length for length in lengths) > most:
            return None
        return ["".join(one) for length in lengths for one in product(space.character_list, repeat=length)]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        parts: list[Any] = [spread(one, most) for one in inner]
    elif isinstance(space, ARRAYS):
        low, high = bounds_of(space)
        if low.dtype.kind == "f":
            low = np.where(np.isfinite(low), low, np.minimum(-2.0, np.where(np.isfinite(high), high, 2.0) - 4.0))
            high = np.where(np.isfinite(high), high, np.maximum(2.0, low + 4.0))  # near ones in place of infinite ones
            number = int(most ** (1 / max(1, low.size)) + 1e-9)
            number -= number % 2 == 0 and number > 2  # so that the middle is one of them
            parts = [np.linspace(*ends, max(2, number)).tolist() for ends in zip(low.flat, high.flat, strict=True)]
        else:
            parts = [range(int(one), int(other) + 1) for one, other in zip(low.flat, high.flat, strict=True)]
    else:
        return None
    if math.prod(map(len, parts)) > most:
        return None
    rows = product(*parts)
    if isinstance(space, spaces.Dict):
        return [dict(zip(space.spaces, row, strict=True)) for row in rows]
    return (
        list(rows)
        if isinstance(space, spaces.Tuple)
        else [np.reshape(row, low.shape).astype(space.dtype) for row in rows]
    )


def numbers_within(ranges: Sequence[range], most: int) -> list[int]:
    """Return integers of some ranges: all, or at most ``most``, which are small ones and ones spread over the ranges.

    >>> numbers_within([range(3, 7), range(5, 8)], 10)
    [3, 4, 5, 6, 7]
    >>> len(numbers_within([range(10**6)], 100)), 7 in numbers_within([range(10**6)], 100)
    (100, True)
    """
    if sum(map(len, ranges)) <= most:
        return list(dict.fromkeys(chain.from_iterable(ranges)))
    numbers, share = dict[int, None](), most // len(ranges)
    for one in ranges:
        near = min(max(one.start, 0), one.stop - 1)  # small numbers are more frequent than large ones
        numbers |= dict.fromkeys(range(near, min(one.stop, near + share // 2 + 1)))
        numbers |= dict.fromkeys(one[place] for place in _places(len(one), share - share // 2))
    return list(numbers)[:most]


def _places(count: int, most: int) -> list[int]:
    """Return indices of a list: all of a short one, else ``most`` that are spread; the first of many are far apart.

    >>> _places(4, 10), _places(1_000, 5), _places(100, 40)[:4]
    ([0, 1, 2, 3], [0, 249, 499, 749, 999], [0, 81, 40, 20])
    """
    number = min(count, most)
    evenly = [place * (count - 1) // max(1, number - 1) for place in range(number)]
    digits = max(1, (number - 1).bit_length())
    apart = sorted(range(number), key=lambda place: f"{place:0{digits}b}"[::-1])
    return evenly if number <= 32 else [evenly[place] for place in apart]
