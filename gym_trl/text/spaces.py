r"""Values of any Gymnasium space as text, texts as actions of any space, and samples of actions.

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
from collections.abc import Callable, Sequence
from copy import deepcopy
from itertools import chain, product, zip_longest
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array

from gym_trl.errors import NotTextError
from gym_trl.seeding import derive_seed
from gym_trl.spaces import holds_text, sample_allowed

MOST_NUMBERS = 512
"""Most numbers of an array that is shown or written; larger ones are pictures."""
LONGEST = 65_536
"""Most characters of an action."""
_ARRAYS = (spaces.Box, spaces.MultiDiscrete, spaces.MultiBinary)


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
    if isinstance(space, _ARRAYS) and (math.prod(shape) > MOST_NUMBERS or len(shape) > most_dimensions):
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
    if isinstance(space, _ARRAYS):
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
    return ("" if value is None else str(value)) if holds_text(space) else _to_json(space, value)


def write(space: spaces.Space[Any], action: Any, names: Sequence[str] = ()) -> str:
    """Return the text that ``parse`` converts to ``action``, with numbers as short as in ``render``.

    >>> write(spaces.Discrete(2), 1, ["stick", "hit"]), write(spaces.MultiDiscrete([2, 5]), [1, 4])
    ('hit', '1 4')
    """
    if _is_simple(space):
        return render(space, action, names)
    return _to_json(space, action)


def _is_row(space: spaces.Space[Any]) -> bool:
    return isinstance(space, _ARRAYS) and len(space.shape or ()) < 2


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


def _to_json(space: spaces.Space[Any], value: Any) -> str:  # noqa: PLR0911 -- a case for each kind of space
    """Return a value as JSON in one line."""
    if isinstance(space, spaces.Discrete):
        return str(int(value))
    if isinstance(space, _ARRAYS):
        if not np.ndim(value):
            return _number_texts(space, value)[0]
        return f"[{', '.join(_to_json(space, row) for row in value)}]"
    if isinstance(space, spaces.Dict):
        fields = (f"{json.dumps(str(name))}: {_to_json(inner, value[name])}" for name, inner in space.spaces.items())
        return f"{{{', '.join(fields)}}}"
    if isinstance(space, spaces.Tuple):
        return f"[{', '.join(map(_to_json, space.spaces, value))}]"
    if isinstance(space, spaces.Sequence):
        parts = _unstack(space.feature_space, value) if space.stack else value
        return f"[{', '.join(_to_json(space.feature_space, part) for part in parts)}]"
    if isinstance(space, spaces.OneOf):
        return f"[{int(value[0])}, {_to_json(space.spaces[int(value[0])], value[1])}]"
    if isinstance(space, spaces.Graph):
        nodes = ", ".join(_to_json(space.node_space, node) for node in _unstack(space.node_space, value.nodes))
        edges, links = "null", "null" if value.edge_links is None else np.asarray(value.edge_links).tolist()
        if space.edge_space is not None and value.edges is not None:
            texts = (_to_json(space.edge_space, edge) for edge in _unstack(space.edge_space, value.edges))
            edges = f"[{', '.join(texts)}]"
        return f'{{"nodes": [{nodes}], "edges": {edges}, "edge_links": {links}}}'
    return json.dumps(value if value is None else str(value), ensure_ascii=False)


def _unstack(space: spaces.Space[Any], stacked: Any) -> list[Any]:
    """Return the values that Gymnasium's ``concatenate`` has stacked: a Dict of arrays becomes a list of Dicts."""
    if isinstance(space, spaces.Dict):
        columns = [_unstack(inner, stacked[name]) for name, inner in space.spaces.items()]
        return [dict(zip(space.spaces, row, strict=True)) for row in zip_longest(*columns, fillvalue=())]
    if isinstance(space, spaces.Tuple):
        return list(zip_longest(*map(_unstack, space.spaces, stacked), fillvalue=()))  # () is of an empty space
    return list(stacked)


def _stack(space: spaces.Space[Any], parts: Sequence[Any]) -> Any:
    empty: Any = create_empty_array(space, len(parts))
    return concatenate(space, parts, empty) if parts else empty


# ---------------------------------------------------------------------------------------------------------------------
# Actions
# ---------------------------------------------------------------------------------------------------------------------

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
    elif isinstance(space, _ARRAYS):
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
        kinds = range(len(space.spaces))
        chosen = kinds[kinds.index(_number(_list(data)[0], int))]  # a negative one is none
        return (np.int64(chosen), *(_from_json(space.spaces[chosen], one) for (_, one) in [data]))
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
    'a JSON object with door (an integer from 0 to 1) and gas (a number from 0 to 1), such as {"door": 0, "gas": [0.5]}'
    >>> explain(spaces.Tuple([spaces.Discrete(6)] * 2))
    'a JSON list of 2 parts, each an integer from 0 to 5, such as [0, 0]'
    """
    if isinstance(space, spaces.Discrete) and names:
        return _listed(names, "or")
    if isinstance(space, spaces.Discrete) or holds_text(space):
        return _kind(space)
    if _is_row(space):
        return f"{_kind(space)} such as {write(space, example(space))}"
    form = f"a JSON {'object' if isinstance(space, spaces.Dict | spaces.Graph) else 'list'}"
    inner: dict[Any, Any] = {}
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inner = dict(space.items() if isinstance(space, spaces.Dict) else enumerate(space))
    if 0 < len(inner) <= _MOST_LISTED and all(map(_is_simple, inner.values())):
        kinds = list(map(_kind, inner.values()))
        if isinstance(space, spaces.Dict):
            form += f" with {_listed([f'{name} ({kind})' for name, kind in zip(inner, kinds, strict=True)], 'and')},"
        elif len(kinds) > 1 and len(set(kinds)) == 1:
            form += f" of {len(kinds)} parts, each {kinds[0]},"
        else:
            form += f" of {_listed(kinds, 'and')},"
    return f"{form} such as {write(space, example(space))}"


_MOST_LISTED = 8
"""Most parts that a description lists, and most different bounds."""


def _is_simple(space: spaces.Space[Any]) -> bool:
    return isinstance(space, spaces.Discrete) or _is_row(space) or holds_text(space)


def _kind(space: Any) -> str:
    """Return a description of a text, a number or numbers in a row: how many, of which kind, and their bounds."""
    if holds_text(space):
        most = min(getattr(space, "max_length", LONGEST), LONGEST)
        return f"text of at most {most} characters"
    low, high = _bounds(space)
    largest = float(np.finfo(low.dtype).max) if low.dtype.kind == "f" else math.inf  # which as a bound is none
    bounds = []
    for least, most in zip(low.flat, high.flat, strict=True):
        if least <= -largest:
            bounds.append(f" of at most {_number_text(most)}" if most < largest else "")
        elif most < largest:
            bounds.append(f" from {_number_text(least)} to {_number_text(most)}")
        else:
            bounds.append(f" of at least {_number_text(least)}")
    one, many = ("a number", "numbers") if low.dtype.kind == "f" else ("an integer", "integers")
    noun = one if low.size == 1 else f"{low.size} {many}"
    if len(set(bounds)) < 2:
        return noun + "".join(bounds[:1])
    return f"{noun} ({','.join(bounds).strip()})" if len(bounds) <= _MOST_LISTED else noun


def _bounds(space: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
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
        return _bounds(space)[1]
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


# ---------------------------------------------------------------------------------------------------------------------
# Samples of actions
# ---------------------------------------------------------------------------------------------------------------------

_DIGITS = frozenset("0123456789")
_AMOUNT = r"(-?\d{1,3}(?:,\d{3})+(?!\d)|-?\d{1,12})"
_BETWEEN = r"\s*(?:to|and|through|until|\.\.\.?|…|[-\u2013\u2014])\s*"
_RANGES = (
    re.compile(rf"(?<![\w.]){_AMOUNT}{_BETWEEN}{_AMOUNT}(?!\w|\.\d)"),
    re.compile(rf"[\[(]{_AMOUNT},\s*{_AMOUNT}[\])]"),
    re.compile(rf"\b(?:at most|up to|less than|below|under|no more than|maximum(?: of)?|max)\s+{_AMOUNT}(?!\w)"),
)


def holds_numbers(space: spaces.Space[Any]) -> bool:
    """Return whether the texts of ``space`` are numbers: of a charset of digits, signs and points, of any length.

    >>> holds_numbers(spaces.Text(6, charset="0123456789")), holds_numbers(spaces.Text(6))
    (True, False)

    Texts of one length, such as the four digits of a code, are not.
    """
    if not isinstance(space, spaces.Text) or space.min_length == space.max_length:
        return False
    return _DIGITS <= space.character_set <= _DIGITS | set("+-.,eE_ ")


def ranges_in(texts: Sequence[str], space: spaces.Space[Any] | None = None) -> list[range]:
    """Return the ranges of integers that texts name, the widest first, as far as texts of ``space`` can hold them.

    >>> ranges_in(["Guess 1 to 1,000 in 5 tries.", "It has 3 to 5 digits, each below 10."])
    [range(1, 1001), range(0, 11), range(3, 6)]
    >>> ranges_in(["From -5 to 200"], spaces.Text(2, charset="0123456789"))
    [range(0, 100)]
    """
    least, most = -(10**12), 10**12
    if isinstance(space, spaces.Text):
        most = 10 ** min(space.max_length, 12)
        least = 1 - 10 ** min(space.max_length - 1, 12) if "-" in space.character_set else 0
    found = set[range]()
    for match in chain.from_iterable(form.finditer(text) for text in texts for form in _RANGES):
        amounts = [int(amount.replace(",", "")) for amount in match.groups()]
        low, high = amounts if len(amounts) == 2 else (0, *amounts)
        if low < high:
            found.add(range(max(low, least), min(high + 1, most)))
    return sorted(filter(None, found), key=lambda one: (-len(one), one.start))


def sampler(space: spaces.Space[Any], seed: int) -> Callable[..., Any]:
    """Return a function that draws actions of a space, as a player would choose them: ``draw(texts, mask)``.

    >>> draw = sampler(spaces.Text(6, charset="0123456789"), 0)
    >>> all(10 <= int(draw(["A number from 10 to 99."])) <= 99 for _ in range(50))
    True

    Actions are drawn with the space's own ``sample``, except for Gymnasium's ``Text``, alone or in a ``Dict`` or
    ``Tuple``. Of a text of digits, an integer is drawn from the widest range that ``texts`` name, which are the
    instructions and the observation; if they name none, a number of one digit is drawn half of the time, of two digits
    a quarter, and so on. Other texts have at most 16 characters if the space allows it. ``mask`` is
    ``info["action_mask"]``, for spaces without texts. The draws are independent of those of an environment with the
    same seed.
    """
    own, derived = deepcopy(space), derive_seed(seed, "random actions")
    own.seed(derived % 2**32)
    rng = np.random.default_rng(derived)

    def draw(inner: spaces.Space[Any], texts: Sequence[str]) -> Any:
        if isinstance(inner, spaces.Dict):
            return {name: draw(part, texts) for name, part in inner.spaces.items()}
        if isinstance(inner, spaces.Tuple):
            return tuple(draw(part, texts) for part in inner.spaces)
        if not isinstance(inner, spaces.Text):
            return inner.sample()
        if not holds_numbers(inner):
            longest = min(inner.max_length, max(inner.min_length, 16))
            length = int(rng.integers(inner.min_length, longest + 1))
            return "".join(inner.character_list[place] for place in rng.integers(len(inner.character_set), size=length))
        if ranges := ranges_in(texts, inner):
            return str(rng.integers(ranges[0].start, ranges[0].stop)).zfill(inner.min_length)
        length = min(inner.max_length, max(1, inner.min_length) - 1 + int(rng.geometric(0.5)))
        return "".join(map(str, [rng.integers(int(length > 1), 10), *rng.integers(10, size=length - 1)]))

    return lambda texts=(), mask=None: draw(own, texts) if mask is None else sample_allowed(own, mask)


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
    elif isinstance(space, _ARRAYS):
        low, high = _bounds(space)
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
