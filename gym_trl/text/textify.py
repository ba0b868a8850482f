r"""Conversion of values of any Gymnasium space to text, and of text to actions of any space.

>>> from gymnasium import spaces
>>> space = spaces.Dict({"door": spaces.Discrete(2), "speed": spaces.Box(0, 9, (2,))})
>>> print(render(space, {"door": 1, "speed": [0.5, 2.25]}))
door: 1
speed: 0.5 2.25
>>> parse(space, '{"door": 1, "speed": [0.5, 2]}')["speed"]
array([0.5, 2. ], dtype=float32)
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
from gym_trl.text.action_description import CELLS, LONGEST, explain, is_row, number_texts, shortest

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
    cells = np.array(number_texts(space, array), dtype=object).reshape(array.shape)
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
    if math.prod(shape) > CELLS or len(shape) > 2:
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
        if len(text) > LONGEST:  # its beginning would be another action
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
    return " ".join(number_texts(space, action)) if is_row(space) else json.dumps(jsonable(space, action))


@singledispatch
def jsonable(space: spaces.Space[Any], action: Any) -> Any:
    """Return an action as a JSON value."""
    return action.tolist() if isinstance(action, np.ndarray | np.generic) else action  # another project's text space


@jsonable.register(spaces.Discrete)
@jsonable.register(spaces.MultiDiscrete)
@jsonable.register(spaces.MultiBinary)
@jsonable.register(spaces.Box)
def _(space: spaces.Space[Any], action: Any) -> Any:
    return shortest(space, action)


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
    if is_row(space):
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


import_module("gym_trl.text.nested_spaces")  # registers the spaces with any number of parts; it imports this module
