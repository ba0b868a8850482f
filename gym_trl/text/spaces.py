r"""Values of any Gymnasium space as text, and texts as actions of any space.

>>> space = spaces.Dict({"door": spaces.Discrete(2), "speed": spaces.Box(0, 9, (2,))})
>>> print(render(space, {"door": 1, "speed": [0.5, 2.25]}))
door: 1
speed: 0.5 2.25
>>> parse(space, '{"door": 1, "speed": [0.5, 2]}')["speed"]
array([0.5, 2. ], dtype=float32)
>>> write(space, {"door": 1, "speed": [0.5, 2]})
'{"door": 1, "speed": [0.5, 2]}'
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from gym_trl.errors import NotTextError
from gym_trl.spaces import holds_text
from gym_trl.text import counted

MOST_NUMBERS = 512
"""Most numbers of an array that is shown or written; larger ones are pictures."""
LONGEST = 65_536
"""Most characters of an action."""
ARRAYS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)


class UnreadableActionError(ValueError):
    """Text that is not an action of the space; the message explains the valid ones."""


def check(space: spaces.Space[Any], most_dimensions: float = 2) -> None:
    """Check that values of ``space`` can be shown as text, without a sample: a declared text may be very long.

    >>> check(spaces.Dict(picture=spaces.Box(0, 255, (9, 9, 3), np.uint8)))
    Traceback (most recent call last):
        ...
    gym_trl.errors.NotTextError: an array of shape (9, 9, 3) is too large for text; convert it with observe= or act=

    A space that is not one of Gymnasium's is assumed to contain text.

    Raises:
        NotTextError: They cannot.
    """
    shape, inner = space.shape or (), list[Any]()
    if isinstance(space, ARRAYS) and (math.prod(shape) > MOST_NUMBERS or len(shape) > most_dimensions):
        raise NotTextError(f"an array of shape {shape} is too large for text; convert it with observe= or act=")
    if isinstance(space, spaces.Dict | spaces.Tuple | spaces.OneOf):
        inner = list(space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces)
    elif isinstance(space, spaces.Sequence):
        inner = [space.feature_space]
    elif isinstance(space, spaces.Graph):
        inner = [space.node_space, *filter(None, [space.edge_space])]
    for one in inner:
        check(one, most_dimensions)


def check_actions(space: spaces.Space[Any]) -> None:
    """Check that actions of ``space`` can be written as text, by writing and reading one.

    Raises:
        NotTextError: They cannot.
    """
    check(space, math.inf)
    try:
        parse(space, write(space, example(space)))
    except Exception as error:  # Gymnasium raises many types for spaces that it cannot stack
        raise NotTextError(f"actions of {space} cannot be written as text ({error}); convert them with act=") from error


def render(space: spaces.Space[Any], value: Any, names: Sequence[str] = ()) -> str:
    r"""Return a value as text; ``names`` are those of the values of a ``Discrete`` space, or of numbers in a row.

    >>> render(spaces.Discrete(2), 1, ["stick", "hit"])
    'hit'
    >>> render(spaces.Box(-1, 1, (2,)), [0.12345, -1], ["position", "velocity"])
    'position: 0.12345\nvelocity: -1'
    >>> space = spaces.Dict(hero=spaces.Dict(x=spaces.Discrete(9), pack=spaces.Sequence(spaces.Text(9))))
    >>> print(render(space, {"hero": {"x": 3, "pack": ("key", "map")}}))
    hero:
      x: 3
      pack: ["key", "map"]

    Different values have different texts. A number is the shortest text that its type reads back as the same number. A
    text is unchanged. A ``Dict`` has a line for each part; parts of several lines are indented below their name, and
    those that are ``None`` are left out. Values of other spaces are JSON.
    """
    if isinstance(space, spaces.Discrete):
        place = int(value) - int(space.start)
        return names[place] if 0 <= place < len(names) else str(int(value))
    if isinstance(space, ARRAYS):
        array = np.asarray(value)
        cells = np.array(_number_texts(space, array), dtype=object).reshape(array.shape)
        if len(names) == array.size:
            return "\n".join(f"{name}: {cell}" for name, cell in zip(names, cells.ravel(), strict=True))
        return "\n".join(map(" ".join, cells)) if array.ndim == 2 else " ".join(cells.ravel())
    if isinstance(space, spaces.Dict):
        lines = []
        for name, inner in space.spaces.items():
            if value[name] is not None:
                label = str(name)
                if not label or label != label.strip() or "\n" in label:
                    label = json.dumps(label)
                text = render(inner, value[name])
                lines.append(f"{label}:" + (f"\n{text}".replace("\n", "\n  ") if "\n" in text else f" {text}"))
        return "\n".join(lines)
    return ("" if value is None else str(value)) if holds_text(space) else _json(space, value)


def write(space: spaces.Space[Any], action: Any, names: Sequence[str] = ()) -> str:
    """Return the text that ``parse`` converts to ``action``, with numbers as short as in ``render``.

    >>> write(spaces.Discrete(2), 1, ["stick", "hit"]), write(spaces.MultiDiscrete([2, 5]), [1, 4])
    ('hit', '1 4')
    """
    simple = isinstance(space, spaces.Discrete) or _is_row(space) or holds_text(space)
    return render(space, action, names) if simple else _json(space, action)


def _is_row(space: spaces.Space[Any]) -> bool:
    return isinstance(space, ARRAYS) and len(space.shape or ()) < 2


def _number_texts(space: spaces.Space[Any], value: Any) -> list[str]:
    """Return the shortest texts that the space's type reads back as the same numbers."""
    array = np.asarray(value)
    if space.dtype is not None and np.can_cast(array.dtype, space.dtype):
        array = array.astype(space.dtype)
    return list(map(_number_text, array.ravel()))


def _number_text(number: Any) -> str:
    if not isinstance(number, np.floating):
        return str(int(number))
    return str(number).removesuffix(".0") if number else "0"  # not "-0", which is the same number


def _json(space: spaces.Space[Any], value: Any) -> str:
    return json.dumps(_data(space, value), ensure_ascii=False)


def _data(space: spaces.Space[Any], value: Any) -> Any:  # noqa: PLR0911 -- a case for each kind of space
    """Return a value as JSON holds it."""
    if isinstance(space, spaces.Discrete):
        return int(value)
    if isinstance(space, ARRAYS):
        numbers = [float(one) if set(one) & set(".enif") else int(one) for one in _number_texts(space, value)]
        return np.array(numbers, dtype=object).reshape(np.shape(value)).tolist()
    if isinstance(space, spaces.Dict):
        return {str(name): _data(inner, value[name]) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return list(map(_data, space.spaces, value))
    if isinstance(space, spaces.Sequence):
        parts = iterate(space.stacked_feature_space, value) if space.stack else value
        return [_data(space.feature_space, part) for part in parts]
    if isinstance(space, spaces.OneOf):
        return [int(value[0]), _data(space.spaces[int(value[0])], value[1])]
    if isinstance(space, spaces.Graph):
        edges = None
        if space.edge_space is not None and value.edges is not None:
            edges = [_data(space.edge_space, edge) for edge in value.edges]
        links = None if value.edge_links is None else np.asarray(value.edge_links).tolist()
        return {"nodes": [_data(space.node_space, node) for node in value.nodes], "edges": edges, "edge_links": links}
    return None if value is None else str(value)


def _stack(space: spaces.Space[Any], parts: Sequence[Any]) -> Any:
    empty: Any = create_empty_array(space, len(parts))
    return concatenate(space, parts, empty) if parts else empty


_NUMBER = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")


def parse(space: spaces.Space[Any], text: str, names: Sequence[str] = ()) -> Any:
    """Return the action that ``text`` describes; ``names`` are those of the actions of a ``Discrete`` space.

    >>> int(parse(spaces.Discrete(2), " Hit ", ["stick", "hit"])), parse(spaces.MultiBinary(2), "[0, 1]").tolist()
    (1, [0, 1])
    >>> parse(spaces.Discrete(2), "fold", ["stick", "hit"])
    Traceback (most recent call last):
        ...
    gym_trl.text.spaces.UnreadableActionError: Not an action. Answer with stick or hit.

    Raises:
        UnreadableActionError: The text is not an action; the message explains the valid ones.
    """
    try:
        if len(text) > LONGEST:  # its beginning would be another action
            raise ValueError(text)
        data: Any = text if holds_text(space) else text.strip()
        if isinstance(space, spaces.Discrete):
            spoken, *known = (" ".join(name.split()).casefold() for name in (text, *names))
            if data in names or spoken in known:  # names may differ in case only
                place = names.index(data) if data in names else known.index(spoken)
                return space.start + space.dtype.type(place)
            if not _INTEGER.fullmatch(data):
                raise ValueError(text)
            data = int(data)
        elif _is_row(space):
            if _NUMBER.sub("", data).strip(" \t\r\n,;[]()"):
                raise ValueError(text)
            data = [float(one) if set(one) & set(".eE") else int(one) for one in _NUMBER.findall(data)]
        elif not holds_text(space):
            data = json.loads(data)
        return _from_json(space, data)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError) as error:
        raise UnreadableActionError(f"Not an action. Answer with {explain(space, names)}.") from error


def _from_json(space: spaces.Space[Any], data: Any) -> Any:
    """Return the action that a JSON value describes; any error says that it is none."""
    made: Any = data
    if isinstance(space, spaces.Discrete):
        made = space.dtype.type(_number(data, int))
    elif isinstance(space, ARRAYS):
        kind = float if space.dtype.kind == "f" else int
        numbers = [_number(one, kind) for one in _flat(data)]
        if space.dtype.kind == "b" and not set(numbers) <= {0, 1}:  # every other number would become true
            raise ValueError(data)
        with np.errstate(over="ignore"):
            made = np.array(numbers, dtype=space.dtype).reshape(space.shape or ())
        if kind is float and not np.isfinite(made).all():  # a number exceeds the range of the type
            raise ValueError(data)
    elif isinstance(space, spaces.Dict):
        if data.keys() != {str(name) for name in space.spaces}:
            raise ValueError(data)
        return {name: _from_json(inner, data[str(name)]) for name, inner in space.spaces.items()}
    elif isinstance(space, spaces.Tuple):
        return tuple(_from_json(inner, one) for inner, one in zip(space.spaces, _list(data), strict=True))
    elif isinstance(space, spaces.Sequence):
        parts = tuple(_from_json(space.feature_space, one) for one in _list(data))
        return _stack(space.feature_space, parts) if space.stack else parts
    elif isinstance(space, spaces.OneOf):
        place, one = _list(data)
        chosen = range(len(space.spaces)).index(_number(place, int))  # a negative one is none
        return np.int64(chosen), _from_json(space.spaces[chosen], one)
    elif isinstance(space, spaces.Graph):
        nodes = _stack(space.node_space, [_from_json(space.node_space, one) for one in _list(data["nodes"])])
        edges = links = None
        if space.edge_space is not None and data.get("edges") is not None:
            parts = tuple(_from_json(space.edge_space, one) for one in _list(data["edges"]))
            edges = _stack(space.edge_space, parts)
            links = np.array([_number(one, int) for one in _flat(data["edge_links"])], np.int32).reshape(len(parts), 2)
        made = spaces.GraphInstance(nodes, edges, links)
    elif isinstance(space, spaces.Text) and isinstance(data, str) and len(data) <= space.max_length:
        return data  # the declared alphabet is nearly always wrong (by default it has no space), so it is not enforced
    if not space.contains(made):
        raise ValueError(data)
    return made


def _flat(data: Any) -> list[Any]:
    return [one for part in data for one in _flat(part)] if isinstance(data, list) else [data]


def _list(data: Any) -> list[Any]:
    if not isinstance(data, list):
        raise TypeError(data)
    return data


def _number(data: Any, kind: type[int] | type[float]) -> Any:
    """Return a number of JSON after checking that it is one, finite, and whole where integers are wanted."""
    if isinstance(data, bool) or not isinstance(data, int | float) or (number := kind(data)) != data:
        raise ValueError(data)
    return number


def explain(space: spaces.Space[Any], names: Sequence[str] = ()) -> str:
    """Return a description of how to write actions of ``space``, for the end of "Answer with".

    >>> explain(spaces.Discrete(3)), explain(spaces.MultiDiscrete([5, 5])), explain(spaces.Discrete(2), ["stay", "go"])
    ('an integer from 0 to 2', '2 integers from 0 to 4 such as 4 4', 'stay or go')
    >>> explain(spaces.Dict({"door": spaces.Discrete(2), "gas": spaces.Box(0, 1)}))
    'a JSON object with door (an integer from 0 to 1) and gas (a number from 0 to 1) such as {"door": 0, "gas": [0.5]}'
    >>> explain(spaces.Tuple([spaces.Discrete(6)] * 2))
    'a JSON list of 2 parts (each an integer from 0 to 5) such as [0, 0]'
    """
    if isinstance(space, spaces.Discrete) and names:
        return _listed(names, "or")
    if isinstance(space, spaces.Discrete) or holds_text(space):
        return _kind(space)
    return f"{_kind(space)} such as {write(space, example(space))}"


_MOST_LISTED = 8
"""Most parts that a description lists, and most different bounds."""


def _kind(space: Any) -> str:  # noqa: PLR0911 -- a case for each kind of space
    """Return a description of values: how many numbers, of which kind and with which bounds, or the parts in JSON."""
    if holds_text(space):
        return f"text of at most {min(getattr(space, 'max_length', LONGEST), LONGEST)} characters"
    if isinstance(space, spaces.Dict):
        parts = [f"{name} ({_kind(inner)})" for name, inner in space.items()]
        return f"a JSON object with {_listed(parts, 'and')}" if 0 < len(parts) <= _MOST_LISTED else "a JSON object"
    if isinstance(space, spaces.Tuple) and len(space):
        parts = list(map(_kind, space))
        if len(set(parts)) == 1:
            return f"a JSON list of {counted(len(parts), 'part')} (each {parts[0]})"
        return f"a JSON list of {_listed(parts, 'and')}" if len(parts) <= _MOST_LISTED else "a JSON list"
    if not isinstance(space, spaces.Discrete) and not _is_row(space):
        return f"a JSON {'object' if isinstance(space, spaces.Graph) else 'list'}"
    low, high = bounds_of(space)
    bounds = []
    for least, most in zip(low.flat, high.flat, strict=True):
        if np.isfinite(least) and np.isfinite(most):
            bounds.append(f" from {_number_text(least)} to {_number_text(most)}")
        elif np.isfinite(least):
            bounds.append(f" of at least {_number_text(least)}")
        else:
            bounds.append(f" of at most {_number_text(most)}" if np.isfinite(most) else "")
    one, many = ("a number", "numbers") if low.dtype.kind == "f" else ("an integer", "integers")
    noun = one if low.size == 1 else f"{low.size} {many}"
    if len(set(bounds)) < 2:
        return noun + "".join(bounds[:1])
    return f"{noun} ({','.join(bounds).strip()})" if len(bounds) <= _MOST_LISTED else noun


def bounds_of(space: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the least and the greatest value of each number."""
    if isinstance(space, spaces.Box):
        return space.low, space.high
    if isinstance(space, spaces.MultiBinary):
        return np.zeros(space.shape, int), np.ones(space.shape, int)
    low = np.asarray(space.start)
    return low, low + np.asarray(space.n if isinstance(space, spaces.Discrete) else space.nvec) - 1


def _listed(words: Sequence[str], last: str) -> str:
    return f"{', '.join(words[:-1])} {last} {words[-1]}" if len(words) > 1 else words[0]


def example(space: spaces.Space[Any]) -> Any:  # noqa: PLR0911 -- a case for each kind of space
    """Return an example of an action, always the same one.

    >>> example(spaces.Dict(gas=spaces.Box(0, 1), say=spaces.Text(3)))
    {'gas': array([0.5], dtype=float32), 'say': 'tex'}
    """
    if isinstance(space, spaces.Discrete):
        return space.start
    if isinstance(space, spaces.Box):
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        with np.errstate(all="ignore"):  # of an endless range, the number that is nearest to 0
            middle = np.where(high - low < 2.0**64, np.round(low / 2 + high / 2, 3), 0.0)
        return np.clip(middle.astype(space.dtype), space.low, space.high)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        return bounds_of(space)[1]
    if isinstance(space, spaces.Dict):
        return {name: example(inner) for name, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(example, space.spaces))
    if isinstance(space, spaces.Sequence):
        one = (example(space.feature_space),)
        return _stack(space.feature_space, one) if space.stack else one
    if isinstance(space, spaces.OneOf):
        return 0, example(space.spaces[0])
    if isinstance(space, spaces.Graph):
        return spaces.GraphInstance(_stack(space.node_space, [example(space.node_space)]), None, None)
    return "text"[: getattr(space, "max_length", 4)].ljust(getattr(space, "min_length", 0), "t")
