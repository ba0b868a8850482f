"""Texts of the command line, and the values that they are for options of a type."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from gym_trl.errors import ConfigError
from gym_trl.kinds import ByName, literals_in, marks_in, types_in
from gym_trl.options import Options

_POINTED = re.compile(r"-?((0|[1-9][0-9]*)\.|\.[0-9]+)(e[+-]?[0-9]+)?", re.IGNORECASE)  # 1. and .5


def read_pairs(given: list[str] | None) -> dict[str, Any]:
    """Return ``NAME=VALUE`` strings as a dictionary.

    >>> read_pairs(["high=8", "rate=1e-3", "strict=true", "word=yes=no", "turns=none"])
    {'high': 8, 'rate': 0.001, 'strict': True, 'word': 'yes=no', 'turns': None}
    >>> read_pairs(["alphabet=01", "id=1_000", 'word="12"', "share=.5"])
    {'alphabet': '01', 'id': '1_000', 'word': '12', 'share': 0.5}

    Raises:
        ConfigError: a string has no name or no ``=``.
    """
    pairs = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"expected NAME=VALUE, got {text!r}")
        pairs[name.strip()] = read_value(value.strip())
    return pairs


def write_pair(name: str, value: Any) -> str:
    """Return an argument ``NAME=VALUE`` that ``read_pairs`` reads as this value.

    >>> [write_pair("word", value) for value in (8, "yes", "12", None, [1, 2])]
    ['word=8', 'word=yes', 'word="12"', 'word=null', 'word=[1, 2]']
    """
    plain = isinstance(value, str) and read_value(value) == value and value == value.strip() and is_argument(value)
    return f"{name}={value if plain else json.dumps(value)}"


def read_value(text: str) -> Any:
    """Return the value of a text: JSON, ``true``, ``false`` or ``none`` in any case, or the text itself.

    >>> [read_value(text) for text in ("8", ".5", "none", "[1, 2]", '"8"', "eight")]
    [8, 0.5, None, [1, 2], '8', 'eight']
    """
    words = {"true": True, "false": False, "none": None, "null": None}
    if text.lower() in words:
        return words[text.lower()]
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        # The only additions to JSON's numbers; Python would also accept 01 and 1_000.
        return float(text) if _POINTED.fullmatch(text) else text


def is_argument(text: str) -> bool:
    r"""Return whether a command line can have a text, which a null character and half of a surrogate pair prevent.

    >>> is_argument("ä"), is_argument("a\0")
    (True, False)
    """
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def is_a(base: Any, kind: type) -> bool:
    """Return whether an object is a class of this kind."""
    return isinstance(base, type) and issubclass(base, kind)


def is_optional(kind: Any) -> bool:
    """Return whether ``None`` is of a type.

    >>> is_optional(int | None), is_optional(int)
    (True, False)
    """
    if get_origin(kind) is Annotated:
        return is_optional(get_args(kind)[0])
    return kind is NoneType or (get_origin(kind) in (Union, UnionType) and any(map(is_optional, get_args(kind))))


def is_repeatable(kind: Any) -> bool:
    """Return whether the flag of a type can be repeated, because it has lists or mappings.

    >>> is_repeatable(tuple[int, ...]), is_repeatable(Mapping[str, Any] | None), is_repeatable(str)
    (True, True, False)
    """
    bases = [get_origin(one) or one for one in types_in(kind)]
    return any(is_a(one, Mapping) or (is_a(one, Sequence) and one is not str) for one in bases)


def element_of(kind: Any) -> Any:
    """Return the type of the elements of a list."""
    return next((part for one in types_in(kind) if _fits(one, []) for part in get_args(one)[:1]), Any)


def read_text(kind: Any, text: str) -> Any:
    """Return the value that a text has for an option of a type; a text that has none is returned as it is.

    >>> read_text(int, "8"), read_text(float | None, "none"), read_text(int, "many"), read_text(str, "8")
    (8, None, 'many', '8')
    >>> read_text(str | None, '"none"'), read_text(bool | Literal["only"], "true"), read_text(Mapping[str, Any], "a=1")
    ('none', True, {'a': 1})
    """
    if text in literals_in(kind):
        return text
    value = read_value(text)
    if value is None and is_optional(kind):
        return None
    kinds = list(types_in(kind))
    if isinstance(value, str) and "=" in value and any(_fits(one, {}) for one in kinds):
        try:
            return read_pairs([text])
        except ConfigError:
            return text
    if isinstance(value, str) or any(_fits(one, value) for one in kinds):
        return value
    takes_text = any(_fits(one, text) or get_origin(one) is Literal for one in kinds)
    return text if takes_text or any(isinstance(one, ByName) for one in marks_in(kind)) else value


def _fits(kind: Any, value: Any) -> bool:
    """Return whether a value that JSON has is of a type, but for its bounds and what it holds."""
    base = get_origin(kind) or kind
    if base is Any:
        return True
    if base is Literal:
        return any(type(one) is type(value) and one == value for one in get_args(kind))
    if isinstance(value, bool | int | float):
        return base is type(value) or (base is float and type(value) is int)
    if isinstance(value, dict):
        return is_a(base, Mapping) or is_a(base, Options)
    if isinstance(value, list):
        return is_a(base, Sequence) and base is not str
    return base in (str, Path) and isinstance(value, str)


def read_texts(kind: Any, texts: Sequence[str]) -> Any:
    """Return the value of a flag that is repeated.

    >>> read_texts(tuple[int, ...], ["1", "2"]), read_texts(tuple[int, ...], ["[1, 2]"])
    ([1, 2], [1, 2])
    >>> read_texts(Mapping[str, Any], ["high=8", '{"word": "a=b"}'])
    {'high': 8, 'word': 'a=b'}
    """
    values = [read_text(kind, text) for text in texts]
    if any(_fits(one, {}) for one in types_in(kind)):
        wrong = next((one for one in values if not isinstance(one, dict)), None)
        return wrong if wrong is not None else _united(values)
    if values == [None] and is_optional(kind):
        return None
    inner = element_of(kind)
    lists = (
        one if isinstance(one, list) else [read_text(inner, text)] for one, text in zip(values, texts, strict=True)
    )
    return [part for one in lists for part in one]


def _united(values: Sequence[Any]) -> dict[str, Any] | None:
    return None if None in values else {name: one for value in values for name, one in value.items()}


def text_of(kind: Any, value: Any) -> str:
    """Return the text that ``read_text`` reads as a value.

    >>> text_of(str | None, "left"), text_of(str | None, "none"), text_of(str | None, None)
    ('left', '"none"', 'none')
    """
    if value is None:
        return "none"
    same = isinstance(value, str) and is_argument(value) and read_text(kind, value)
    return value if same == value and isinstance(same, str) else json.dumps(value)
