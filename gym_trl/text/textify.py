r"""Conversion of values of any Gymnasium space to text, and of text to actions of any space.

>>> from gymnasium import spaces
>>> space = spaces.Dict({"door": spaces.Discrete(2), "speed": spaces.Box(0, 9, (2,))})
>>> print(render(space, {"door": 1, "speed": [0.5, 2.25]}))
door: 1
speed: 0.5 2.25
>>> parse(space, '{"door": 1, "speed": [0.5, 2]}')["speed"]
array([0.5, 2. ], dtype=float32)
>>> explain(spaces.Dict({"door": spaces.Discrete(2), "gas": spaces.Box(0, 1)}))
'a JSON object with door (an integer from 0 to 1) and gas (a number from 0 to 1), such as {"door": 0, "gas": [0.5]}'
"""

import json
import math
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cache, singledispatch
from importlib import import_module
from typing import Any

import numpy as np
from gymnasium import spaces

from gym_trl.errors import NotTextError

_CELLS = 512
"""Maximum number of elements in an array that is shown as text; larger ones are images."""
_LONGEST = 65_536
"""Maximum number of characters of an action."""
_LISTED = 8
"""Maximum number of different bounds that are listed."""
_OF_NUMBERS = (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)
_COMPOSED = (spaces.Dict, spaces.Sequence, spaces.Graph, spaces.OneOf)


class UnreadableActionError(ValueError):
    """Text that is not an action of the space; the message explains the valid ones."""


def counted(number: int, thing: str) -> str:
    """Return a number and the noun that it counts.

    >>> counted(1, "turn"), counted(2, "turn"), counted(3, "try"), counted(0, "guess")
    ('1 turn', '2 turns', '3 tries', '0 guesses')
    """
    return f"1 {thing}" if number == 1 else f"{number} {_plural(thing)}"


@cache
def _plural(thing: str) -> str:
    if thing.endswith("y"):
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith("s") else f"{thing}s"


# ---------------------------------------------------------------------------------------------------------------------
# Observations
# ---------------------------------------------------------------------------------------------------------------------


@singledispatch
def render(space: spaces.Space[Any], value: Any, names: Sequence[str] = ()) -> str:
    r"""Return a value of ``space`` as text; ``names`` are those of its values, or of its fields.

    >>> render(spaces.Discrete(2), 1, ["stick", "hit"])
    'hit'
    >>> render(spaces.Box(-1, 1, (2,)), [0.12345, -1], ["position", "velocity"])
    'position: 0.12345\nvelocity: -1'
    >>> space = spaces.Dict(hero=spaces.Dict(x=spaces.Discrete(9), pack=spaces.Sequence(spaces.Text(9))))
    >>> print(render(space, {"hero": {"x": 3, "pack": ("key", "map")}}))
    hero:
      x: 3
      pack:
        - key
        - map

    Different values have different texts. A number is the shortest text that its type reads back as the same number. A
    text alone is unchanged. Parts of more than one line are indented below their name or after ``-``; parts of a
    ``Tuple`` in one line are separated by commas, in brackets inside of another ``Tuple``, and a text among them that
    has commas, brackets, quotes or surrounding spaces is a JSON string.

    Raises:
        NotTextError: the space cannot be shown as text, such as one of images.
    """
    return "" if value is None else str(value)  # assumed to be another project's text space


@render.register
def _(space: spaces.Discrete, value: Any, names: Sequence[str] = ()) -> str:
    place = int(value) - int(space.start)
    return names[place] if 0 <= place < len(names) else str(int(value))


@render.register(spaces.MultiDiscrete)
@render.register(spaces.MultiBinary)
@render.register(spaces.Box)
def _(space: spaces.Space[Any], value: Any, names: Sequence[str] = ()) -> str:
    array = np.asarray(value)
    check_shape(array.shape)
    cells = np.array(_numbers(space, array), dtype=object).reshape(array.shape)
    if len(names) == array.size:
        return "\n".join(f"{name}: {cell}" for name, cell in zip(names, cells.ravel(), strict=True))
    return "\n".join(map(" ".join, cells)) if array.ndim == 2 else " ".join(cells.ravel())


@render.register
def _(space: spaces.Text, value: Any, names: Sequence[str] = ()) -> str:
    return "" if value is None else str(value)


@render.register
def _(space: spaces.Dict, value: Any, names: Sequence[str] = ()) -> str:
    present = ((name, inner) for name, inner in space.spaces.items() if value[name] is not None)
    return "\n".join(field(name, render(inner, value[name])) for name, inner in present)


@render.register(spaces.Tuple)
def _(space: Any, value: Any, names: Sequence[str] = ()) -> str:
    parts = [render(inner, part) for inner, part in zip(space.spaces, value, strict=True)]
    if len(names) == len(parts):
        return "\n".join(map(field, names, parts))
    if not _is_in_line(space) or any("\n" in part for part in parts):
        return "\n".join(map(item, parts))
    return ", ".join(map(_in_line, space.spaces, parts))


def _numbers(space: spaces.Space[Any], value: Any) -> list[str]:
    """Return the shortest texts that the space's type reads back as the same numbers."""
    array = np.asarray(value)
    if space.dtype is not None and np.can_cast(array.dtype, space.dtype):
        array = array.astype(space.dtype)
    return list(map(_number, array.ravel()))


def _number(value: Any) -> str:
    if not isinstance(value, np.floating):
        return str(int(value))
    return str(value).removesuffix(".0") if value else "0"  # not "-0", which is the same number


def field(name: str, text: str) -> str:
    """Return a named part: in one line, or with its lines indented below the name."""
    label = str(name)
    if not label or label != label.strip() or "\n" in label:
        label = json.dumps(label)
    return f"{label}:\n{_indented(text)}" if "\n" in text else f"{label}: {text}"


def item(text: str) -> str:
    """Return a part without a name, after a dash."""
    return f"- {_indented(text)[2:]}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))


def _is_in_line(space: spaces.Space[Any]) -> bool:
    """Return whether values of a space are a part of one line: numbers, texts without line breaks, tuples of these."""
    if isinstance(space, spaces.Tuple):
        return all(map(_is_in_line, space.spaces))
    return not isinstance(space, _COMPOSED) and len(space.shape or ()) < 2


def _in_line(space: spaces.Space[Any], text: str) -> str:
    """Return the text of a part of a tuple so that its end is recognisable."""
    if isinstance(space, spaces.Tuple):
        return f"({text})"
    bare = isinstance(space, _OF_NUMBERS) or (text == text.strip() != "" and not set(',()"') & set(text))
    return text if bare else json.dumps(text, ensure_ascii=False)


def check_shape(shape: tuple[int, ...]) -> None:
    """Refuse an array of too many numbers."""
    if math.prod(shape) > _CELLS or len(shape) > 2:
        raise NotTextError(f"an array of shape {shape} is too large for text; describe it with observe=")


# ---------------------------------------------------------------------------------------------------------------------
# Actions
# ---------------------------------------------------------------------------------------------------------------------

_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")


def parse(space: spaces.Space[Any], text: str, names: Sequence[str] = ()) -> Any:
    """Return the action of ``space`` that ``text`` describes; ``names`` are those of a ``Discrete`` space's actions.

    >>> int(parse(spaces.Discrete(2), " Hit ", ["stick", "hit"]))
    1
    >>> parse(spaces.Discrete(2), "fold", ["stick", "hit"])
    Traceback (most recent call last):
        ...
    gym_trl.text.textify.UnreadableActionError: Not an action. Answer with stick or hit.

    Raises:
        UnreadableActionError: the text is not an action; the message explains the valid ones.
        NotTextError: actions of the space cannot be written as text.
    """
    try:
        if len(text) > _LONGEST:  # its beginning would be another action
            raise ValueError
        return from_plain(space, _plain(space, text), names)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError) as error:
        if isinstance(error, NotTextError):
            raise
        raise UnreadableActionError(f"Not an action. Answer with {explain(space, names)}.") from error


def write(space: spaces.Space[Any], action: Any, names: Sequence[str] = ()) -> str:
    """Return the text that ``parse`` converts to ``action``, with numbers as short as in ``render``.

    >>> write(spaces.Discrete(2), 1, ["stick", "hit"]), write(spaces.MultiDiscrete([2, 5]), [1, 4])
    ('hit', '1 4')
    """
    if isinstance(space, spaces.Text):
        return str(action)
    if isinstance(space, spaces.Discrete):
        return render(space, action, names)
    return " ".join(_numbers(space, action)) if _is_row(space) else json.dumps(jsonable(space, action))


def explain(space: spaces.Space[Any], names: Sequence[str] = ()) -> str:
    """Return a description of how to write actions of ``space``, for the end of "Answer with".

    >>> explain(spaces.Discrete(3)), explain(spaces.MultiDiscrete([5, 5]))
    ('an integer from 0 to 2', '2 integers from 0 to 4 such as 4 4')
    >>> explain(spaces.Tuple([spaces.Discrete(6)] * 2))
    'a JSON list of 2 parts, each an integer from 0 to 5, such as [0, 0]'
    """
    if isinstance(space, spaces.Discrete) and names:
        return _listed(names)
    if _is_row(space):
        return f"{_kind(space)} such as {' '.join(_numbers(space, np.asarray(example(space), space.dtype)))}"
    if (kind := _kind(space)) is not None:
        return kind
    what = "object" if isinstance(space, spaces.Dict) else "list"
    return f"a JSON {what}{_parts(space)} such as {json.dumps(example(space))}"


def _kind(space: spaces.Space[Any]) -> str | None:
    """Return a description of the values of a space of numbers or texts; ``None`` for other spaces."""
    if isinstance(space, spaces.Text):
        return f"text of at most {min(space.max_length, _LONGEST)} characters"
    if not isinstance(space, spaces.Discrete) and not _is_row(space):
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
        return f" from {_number(low)} to {_number(high)}"
    if -largest < low:
        return f" of at least {_number(low)}"
    return f" of at most {_number(high)}" if high < largest else ""


def _largest(number: Any) -> float:
    """Return the largest finite number of the type of a number or an array; infinity for integers."""
    return float(np.finfo(number.dtype).max) if number.dtype.kind == "f" else math.inf


def _listed(names: Sequence[str], last: str = "or") -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


def _is_row(space: spaces.Space[Any]) -> bool:
    """Return whether the actions are numbers in a row, which are written without brackets."""
    numbers = isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary)
    return numbers and len(space.shape or ()) < 2


def _shortest(space: spaces.Space[Any], value: Any) -> Any:
    """Return numbers as a JSON value, whose text is as short as in ``_numbers``."""
    numbers = [float(text) if set(text) & set(".en") else int(text) for text in _numbers(space, value)]
    return np.array(numbers, dtype=object).reshape(np.shape(value)).tolist()


@singledispatch
def jsonable(space: spaces.Space[Any], action: Any) -> Any:
    """Return an action as a JSON value."""
    return action.tolist() if isinstance(action, np.ndarray | np.generic) else action  # another project's text space


@jsonable.register(spaces.Discrete)
@jsonable.register(spaces.MultiDiscrete)
@jsonable.register(spaces.MultiBinary)
@jsonable.register(spaces.Box)
def _(space: spaces.Space[Any], action: Any) -> Any:
    return _shortest(space, action)


@jsonable.register
def _(space: spaces.Dict, action: Any) -> Any:
    return {str(name): jsonable(inner, action[name]) for name, inner in space.spaces.items()}


@jsonable.register(spaces.Tuple)
def _(space: Any, action: Any) -> Any:
    return list(map(jsonable, space.spaces, action))


def _plain(space: spaces.Space[Any], text: str) -> Any:
    """Return the content of a text as a JSON value: a number, a string, a list or an object."""
    text = text.strip() if not isinstance(space, spaces.Text) else text
    if isinstance(space, spaces.Discrete | spaces.Text):
        return text
    if _is_row(space):
        numbers = [float(part) if "." in part or "e" in part.lower() else int(part) for part in _NUMBER.findall(text)]
        if _NUMBER.sub("", text).strip(" \t\r\n,;[]()"):
            raise ValueError(text)
        return numbers
    return json.loads(text)


@singledispatch
def from_plain(space: spaces.Space[Any], plain: Any, names: Sequence[str] = ()) -> Any:
    """Return the action that a JSON value describes; anything but a ``NotTextError`` says that it is none."""
    if not isinstance(plain, str):  # assumed to be another project's text space
        raise ValueError(plain)
    return inside(space, plain)


@from_plain.register
def _(space: spaces.Discrete, plain: Any, names: Sequence[str] = ()) -> Any:
    if isinstance(plain, str):
        if plain in names:  # names may differ in case only
            return space.start + space.dtype.type(names.index(plain))
        spoken = " ".join(plain.split()).casefold()
        places = {" ".join(name.split()).casefold(): place for place, name in enumerate(names)}
        if spoken in places:
            return space.start + space.dtype.type(places[spoken])
        if not _INTEGER.fullmatch(spoken):
            raise ValueError(plain)
        plain = int(spoken)
    return inside(space, space.dtype.type(whole(plain)))


@from_plain.register(spaces.MultiDiscrete)
@from_plain.register(spaces.MultiBinary)
def _(space: spaces.Space[Any], plain: Any, names: Sequence[str] = ()) -> Any:
    return inside(space, np.asarray(each(whole, plain), dtype=space.dtype).reshape(space.shape or ()))


@from_plain.register
def _(space: spaces.Box, plain: Any, names: Sequence[str] = ()) -> Any:
    if space.dtype.kind == "b":  # astype would convert every number but 0 to true
        plain = each(lambda cell: bool((0, 1).index(whole(cell))), plain)
        return np.asarray(plain, dtype=space.dtype).reshape(space.shape)
    if space.dtype.kind != "f":
        return inside(space, np.asarray(each(whole, plain), dtype=space.dtype).reshape(space.shape))
    with np.errstate(over="ignore"):
        array = np.asarray(each(_real, plain), dtype=space.dtype).reshape(space.shape)
    if not np.isfinite(array).all():  # the value exceeds the type's range
        raise ValueError(plain)
    return inside(space, array)


@from_plain.register
def _(space: spaces.Text, plain: Any, names: Sequence[str] = ()) -> Any:
    # The declared alphabet is nearly always wrong (by default it has no space), so it is not enforced.
    if not isinstance(plain, str) or len(plain) > space.max_length:
        raise ValueError(plain)
    return plain


@from_plain.register
def _(space: spaces.Dict, plain: Any, names: Sequence[str] = ()) -> Any:
    if not isinstance(plain, Mapping) or plain.keys() != {str(name) for name in space.spaces}:
        raise ValueError(plain)
    return OrderedDict((name, from_plain(inner, plain[str(name)])) for name, inner in space.spaces.items())


@from_plain.register(spaces.Tuple)
def _(space: Any, plain: Any, names: Sequence[str] = ()) -> Any:
    if not isinstance(plain, list) or len(plain) != len(space.spaces):
        raise ValueError(plain)
    return tuple(from_plain(inner, part) for inner, part in zip(space.spaces, plain, strict=True))


def inside(space: spaces.Space[Any], value: Any) -> Any:
    """Return a value after checking that the space contains it."""
    if not space.contains(value):
        raise ValueError(value)
    return value


def each(convert: Callable[[Any], Any], plain: Any) -> Any:
    """Return a JSON value with all its numbers converted."""
    return [each(convert, part) for part in plain] if isinstance(plain, list) else convert(plain)


def whole(value: Any) -> int:
    """Return a number after checking that it is an integer."""
    if isinstance(value, bool) or value != int(value):
        raise ValueError(value)
    return int(value)


def _real(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(value)
    return float(value)


def example(space: spaces.Space[Any]) -> Any:
    """Return an example of an action as a JSON value, always the same one."""
    if math.prod(space.shape or ()) > _CELLS:
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
    return _shortest(space, np.where((low <= rounded) & (rounded <= high), rounded, middle).astype(space.dtype))


@of_space.register
def _(space: spaces.Text) -> Any:
    return "text"[: space.max_length].ljust(space.min_length, "t")


@of_space.register
def _(space: spaces.Dict) -> Any:
    return {str(name): example(inner) for name, inner in space.spaces.items()}


@of_space.register(spaces.Tuple)
def _(space: Any) -> Any:
    return [example(inner) for inner in space.spaces]


import_module("gym_trl.text.nested_spaces")  # registers the spaces with any number of parts; it imports this module
