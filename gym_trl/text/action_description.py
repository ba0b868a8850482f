"""Description of how actions of a space are written as text, with an example.

>>> explain(spaces.Dict({"door": spaces.Discrete(2), "gas": spaces.Box(0, 1)}))
'a JSON object with door (an integer from 0 to 1) and gas (a number from 0 to 1), such as {"door": 0, "gas": [0.5]}'
"""

import json
import math
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np
from gymnasium import spaces

from gym_trl.errors import NotTextError

CELLS = 512
"""Maximum number of elements in an array that is shown as text; larger ones are images."""
LONGEST = 65_536
"""Maximum number of characters of an action."""
_LISTED = 8
"""Maximum number of different bounds that are listed, or of parts."""


def explain(space: spaces.Space[Any], names: Sequence[str] = ()) -> str:
    """Return a description of how to write actions of ``space``, for the end of "Answer with".

    >>> explain(spaces.Discrete(3)), explain(spaces.MultiDiscrete([5, 5]))
    ('an integer from 0 to 2', '2 integers from 0 to 4 such as 4 4')
    >>> explain(spaces.Tuple([spaces.Discrete(6)] * 2))
    'a JSON list of 2 parts, each an integer from 0 to 5, such as [0, 0]'
    """
    if isinstance(space, spaces.Discrete) and names:
        return _listed(names)
    if is_row(space):
        return f"{_kind(space)} such as {' '.join(number_texts(space, np.asarray(example(space), space.dtype)))}"
    if (kind := _kind(space)) is not None:
        return kind
    what = "object" if isinstance(space, spaces.Dict) else "list"
    return f"a JSON {what}{_parts(space)} such as {json.dumps(example(space))}"


def _kind(space: spaces.Space[Any]) -> str | None:
    """Return a description of the values of a space of numbers or texts; ``None`` for other spaces."""
    if isinstance(space, spaces.Text):
        return f"text of at most {min(space.max_length, LONGEST)} characters"
    if not isinstance(space, spaces.Discrete) and not is_row(space):
        return None
    kind = "number" if isinstance(space, spaces.Box) and space.dtype.kind == "f" else "integer"
    count = math.prod(space.shape or ())
    noun = f"{'an' if kind == 'integer' else 'a'} {kind}" if count == 1 else f"{count} {kind}s"
    return f"{noun}{_bounds(space)}"


def _parts(space: spaces.Space[Any]) -> str:
    """Return a description of the parts of an object or a list, if they are a few numbers or texts."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return ""
    inner = list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)
    kinds = [kind for one in inner if (kind := _kind(one)) is not None]
    if not 0 < len(kinds) == len(inner) <= _LISTED:
        return ""
    if isinstance(space, spaces.Dict):
        named = [f"{name} ({kind})" for name, kind in zip(space.spaces, kinds, strict=True)]
        return f" with {_listed(named, 'and')},"
    if len(kinds) > 1 and len(set(kinds)) == 1:
        return f" of {len(kinds)} parts, each {kinds[0]},"
    return f" of {_listed(kinds, 'and')},"


def _bounds(space: spaces.Space[Any]) -> str:
    """Return the bounds of a space's numbers: one pair for all, or one for each of a few."""
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.MultiBinary):
        low, high = np.array(0), np.array(1)
    else:
        assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
        low = np.asarray(space.start)
        high = low + np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1
    each = list(map(_between, low.flat, high.flat))
    if len(set(each)) < 2:
        return "".join(each[:1])
    return f" ({','.join(each).strip()})" if len(each) <= _LISTED else ""


def _between(low: Any, high: Any) -> str:
    """Return one number's bounds, of which the greatest of its type are none."""
    largest = _largest(low)
    if -largest < low and high < largest:
        return f" from {number_text(low)} to {number_text(high)}"
    if -largest < low:
        return f" of at least {number_text(low)}"
    return f" of at most {number_text(high)}" if high < largest else ""


def _largest(number: Any) -> float:
    """Return the largest finite number of the type of a number or an array; infinity for integers."""
    return float(np.finfo(number.dtype).max) if number.dtype.kind == "f" else math.inf


def _listed(names: Sequence[str], last: str = "or") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def is_row(space: spaces.Space[Any]) -> bool:
    """Return whether the actions are numbers in a row, which are written without brackets."""
    numbers = isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary)
    return numbers and len(space.shape or ()) < 2


def shortest(space: spaces.Space[Any], value: Any) -> Any:
    """Return numbers as a JSON value, whose text is as short as in ``number_texts``."""
    numbers = [float(text) if set(text) & set(".en") else int(text) for text in number_texts(space, value)]
    return np.array(numbers, dtype=object).reshape(np.shape(value)).tolist()


def number_texts(space: spaces.Space[Any], value: Any) -> list[str]:
    """Return the shortest texts that the space's type reads back as the same numbers."""
    array = np.asarray(value)
    if space.dtype is not None and np.can_cast(array.dtype, space.dtype):
        array = array.astype(space.dtype)
    return list(map(number_text, array.ravel()))


def number_text(value: Any) -> str:
    """Return the shortest text that a number's type reads back as the same number."""
    if not isinstance(value, np.floating):
        return str(int(value))
    return str(value).removesuffix(".0") if value else "0"  # not "-0", which is the same number


def example(space: spaces.Space[Any]) -> Any:
    """Return an example of an action as a JSON value, always the same one."""
    if math.prod(space.shape or ()) > CELLS:
        raise NotTextError(f"an action of shape {space.shape} is too large for text; parse it with act=")
    return of_space(space)


@singledispatch
def of_space(space: spaces.Space[Any]) -> Any:
    """Return an example of an action of any size as a JSON value."""
    return "text"  # assumed to be another project's text space


@of_space.register
def _(space: spaces.Discrete) -> Any:
    return int(space.start)


@of_space.register
def _(space: spaces.MultiDiscrete) -> Any:
    return (np.asarray(space.start) + np.asarray(space.nvec) - 1).tolist()


@of_space.register
def _(space: spaces.MultiBinary) -> Any:
    return np.ones(space.shape, dtype=int).tolist()


@of_space.register
def _(space: spaces.Box) -> Any:
    largest = _largest(space.low)  # which bounds nothing either
    from_below, from_above = space.low > -largest, space.high < largest
    low = np.where(from_below, space.low, np.where(from_above, space.high - 1.0, -1.0))
    high = np.where(from_above, space.high, low + 2.0)
    middle = low / 2 + high / 2
    if space.dtype.kind != "f":
        return np.floor(middle).astype(space.dtype if space.dtype.kind != "b" else int).tolist()
    rounded = np.round(middle, 3)
    return shortest(space, np.where((low <= rounded) & (rounded <= high), rounded, middle).astype(space.dtype))


@of_space.register
def _(space: spaces.Text) -> Any:
    return "text"[: space.max_length].ljust(space.min_length, "t")


@of_space.register
def _(space: spaces.Dict) -> Any:
    return {str(name): example(inner) for name, inner in space.spaces.items()}


@of_space.register(spaces.Tuple)
def _(space: Any) -> Any:
    return [example(inner) for inner in space.spaces]
