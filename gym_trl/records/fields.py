"""Types of the values in files, each checked once: when it is read."""

from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain, islice
from math import hypot
from operator import contains, itemgetter
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

LARGEST = 1e150
"""Largest number in a record: sums of the squares of larger ones, which statistics need, are beyond floats."""
_MOST_KINDS = 1_000
_NAMES = {
    str: "text",
    float: "a number",
    int: "an integer",
    bool: "true or false",
    dict: "an object",
    list: "a list",
    NoneType: "null",
}


class Fields:
    """Fields of an object in a file, with the types that a ``TypedDict`` or ``NamedTuple`` declares.

    >>> from typing import TypedDict
    >>> Point = TypedDict("Point", {"x": float, "of": list[int]})
    >>> fields = Fields(Point, {"of": None})
    >>> fields.completed({"x": 1, "more": "kept"})
    {'x': 1, 'of': None, 'more': 'kept'}
    >>> fields.problem(fields.completed({"x": float("nan")})), fields.problem(fields.completed({}))
    ((0, 'x must be a number of at most 1e+150, got nan'), (0, 'x is missing'))
    >>> fields.problem({"x": 2.0, "of": [1]}, {"x": 2.0, "of": [0.5]})
    (1, 'of must be a list of integers, got [0.5]')

    Tuples are lists in a file. Integers are numbers, and truth values are not. Numbers are at most ``LARGEST``, and
    integers in lists, which are ids or positions, have 32 bits. Other fields than the declared ones may have any value.

    Args:
        kind: The class that declares them.
        defaults: Values of fields that may be missing; they may have that value, too.
        apart: Field with a list of which the elements are not checked here.
    """

    def __init__(self, kind: Any, defaults: Mapping[str, Any], *, apart: str = "") -> None:
        hints = get_type_hints(kind)
        self._kinds = {name: _kinds(hint) for name, hint in hints.items()}
        for name, value in defaults.items():
            self._kinds[name].add(type(value))
        # In their order, which those of a completed object have: that is faster than to look them up.
        self._defaults = {name: defaults.get(name, ...) for name in hints}
        self._numbers = [name for name, kinds in self._kinds.items() if {int, float} & kinds]
        # One name twice, because an itemgetter of one does not return a tuple.
        self._read_numbers = itemgetter(*self._numbers, self._numbers[-1]) if self._numbers else None
        lists = {name: one for name, hint in hints.items() if (one := _list_in(hint)) is not None and name != apart}
        self._lists = {name: _Elements(one) for name, one in lists.items()}
        # The types of whole objects that have been checked one by one: those of nearly all are the same.
        self._fitting = set[tuple[type, ...]]()

    def completed(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object with defaults for the fields that it does not have."""
        return {**self._defaults, **value}

    def problem(self, *completed: dict[str, Any]) -> tuple[int, str] | None:
        """Return the index of the first object that does not fit, and what is wrong with it, beginning with a field."""
        if self.fit(completed):
            return None
        problems = ((index, self._problem(one)) for index, one in enumerate(completed))
        return next(((index, one) for index, one in problems if one), (0, "the sum of the numbers is too large"))

    def fit(self, completed: Sequence[dict[str, Any]]) -> bool:
        """Return whether all of some objects have all fields, with values of their types."""
        for one in completed:
            kinds = tuple(map(type, one.values()))
            if kinds not in self._fitting and not self._learn(kinds):
                return False
        if self._read_numbers is not None and not _are_finite(
            filter(None, chain.from_iterable(map(self._read_numbers, completed)))
        ):
            return False
        for name, elements in self._lists.items():
            for one in completed:
                if (listed := one[name]) and not elements.fit(listed):
                    return False
        return True

    def _problem(self, value: Mapping[str, Any]) -> str | None:
        for name, kinds in self._kinds.items():
            if value[name] is ...:
                return f"{name} is missing"
            if type(value[name]) not in kinds:
                return f"{name} must be {_named(kinds)}, got {_shown(value[name])}"
        for name in self._numbers:
            if not _are_finite([value[name]]):
                return f"{name} must be {_named(self._kinds[name])} of at most {LARGEST:g}, got {_shown(value[name])}"
        for name, elements in self._lists.items():
            if value[name] and (problem := elements.problem(name, value[name])):
                return problem
        return None

    def _learn(self, kinds: tuple[type, ...]) -> bool:
        fits = all(map(contains, self._kinds.values(), kinds))
        if fits and len(self._fitting) < _MOST_KINDS:  # a file can have any number of them
            self._fitting.add(kinds)
        return fits


class _Elements:
    """Elements of a list, all of one type."""

    def __init__(self, kind: Any) -> None:
        self._fields = Fields(kind, {}) if is_typeddict(kind) else None
        self._inner = None if (inner := _list_in(kind)) is None else _Elements(inner)
        self._kinds = _kinds(kind)

    def fit(self, listed: list[Any]) -> bool:
        if self._kinds == {int}:
            return _are_ids(listed)
        if float in self._kinds:
            return _are_finite(listed)
        if not self._kinds.issuperset(map(type, listed)):
            return False
        if self._fields is not None:
            return self._fields.fit([self._fields.completed(one) for one in listed])
        return self._inner is None or all(map(self._inner.fit, listed))

    def problem(self, name: str, listed: list[Any]) -> str | None:
        if self.fit(listed):
            return None
        if self._fields is not None and self._kinds.issuperset(map(type, listed)):
            index, problem = self._fields.problem(*map(self._fields.completed, listed)) or (0, "")
            return f"{name}[{index}].{problem}"
        several = {int: "integers", float: "finite numbers", str: "texts", dict: "objects", list: "lists"}
        kind = next(iter(self._kinds - {NoneType} - ({int} if float in self._kinds else set())))
        return f"{name} must be a list of {several[kind]}, got {_shown(listed)}"


def as_number(value: Any) -> float | None:
    """Return a number that is not too large for statistics, and ``None`` for anything else, truth values among it.

    >>> as_number(2), as_number(True), as_number(1e308), as_number(float("nan")), as_number(10**400)
    (2, None, None, None, None)
    """
    return value if type(value) in (int, float) and abs(value) <= LARGEST else None


def _are_finite(values: Iterable[Any]) -> bool:
    """Return whether values are numbers that are not too large, or ``None``."""
    given = [*values]
    try:
        try:
            return hypot(*given) <= LARGEST  # which looks at the types of all and at NaN, in one call
        except TypeError:  # there are some None
            return hypot(*filter(None, given)) <= LARGEST
    except (TypeError, OverflowError):
        return False


def _are_ids(values: list[Any]) -> bool:
    """Return whether values are integers of 32 bits."""
    try:
        array("I", values)
    except (TypeError, OverflowError):
        return False
    return True


def _kinds(hint: Any) -> set[type]:
    """Return the types that a value of JSON of a declared type has."""
    if isinstance(hint, UnionType):
        return set[type]().union(*map(_kinds, get_args(hint)))
    kind = get_origin(hint) or (dict if is_typeddict(hint) else hint)
    return {int, float} if kind is float else {list if kind is tuple else kind}


def _list_in(hint: Any) -> Any:
    """Return the type of the elements of a list, all of which have one; ``None`` for other types."""
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    found = next((one for one in kinds if get_origin(one) is list or get_args(one)[1:] == (...,)), None)
    return None if found is None else get_args(found)[0]


def _named(kinds: Collection[type]) -> str:
    shown = set(kinds) - ({int} if float in kinds else set())
    return " or ".join(name for kind, name in _NAMES.items() if kind in shown)


def _shown(value: Any) -> str:
    """Return the beginning of a value, however large it is."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, islice(value, 3)))}{', ...' if len(value) > 3 else ''}]"
    if isinstance(value, dict):
        return "an object"
    if type(value) is int and not -LARGEST <= value <= LARGEST:
        return "an integer of more than 150 digits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value[:60] if isinstance(value, str) else value)
