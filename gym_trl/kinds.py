"""Types of the values that users give, checks of these values, and functions that are given by name."""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from inspect import signature
from numbers import Real
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from gymnasium.envs.registration import load_env_creator

from gym_trl.errors import ConfigError
from gym_trl.registration import did_you_mean


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of a number, in the type of an option.

    >>> check_option("share", 1.5, Annotated[float, Range(least=0, most=1)])
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: share must be a number of at least 0 and at most 1, got 1.5
    """

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def __contains__(self, value: float) -> bool:
        high_enough = (self.least is None or value >= self.least) and (self.above is None or value > self.above)
        return high_enough and (self.most is None or value <= self.most)

    def __str__(self) -> str:
        words = (("of at least", self.least), ("above", self.above), ("at most", self.most))
        return " and ".join(f"{word} {bound:.10g}" for word, bound in words if bound is not None)


Count: TypeAlias = Annotated[int, Range(least=1)]
"""Number of things, at least one."""
Whole: TypeAlias = Annotated[int, Range(least=0)]
"""Number of things, or none."""
Seed: TypeAlias = Annotated[int, Range(least=0, most=2**32 - 1)]
"""Seed that NumPy's generators take."""
Positive: TypeAlias = Annotated[float, Range(above=0)]
Penalty: TypeAlias = Annotated[float, Range(least=0)]
"""Reward that is subtracted."""
Share: TypeAlias = Annotated[float, Range(least=0, most=1)]
Seconds: TypeAlias = Annotated[float, Range(above=0)]
Arguments: TypeAlias = Mapping[str, Any]
"""Arguments by name."""
Function: TypeAlias = Callable[..., Any]
"""Function, which can be given by its name ``"module:function"``."""


def check_option(name: str, value: Any, kind: Any) -> None:
    """Check that an option has a value of its type: a number within its bounds, and no ``bool`` for a number.

    >>> check_option("num_tasks", 8, Count)
    >>> check_option("num_tasks", True, Count)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: num_tasks must be an integer of at least 1, got True

    Raises:
        ConfigError: It has not.
    """
    if not _accepts(kind, value):
        known = [one for one in literals_in(kind) if isinstance(one, str)]
        near = did_you_mean(value, known) if isinstance(value, str) else ""
        raise ConfigError(f"{name} must be {expected(kind)}, got {value!r:.200}{near}")


def check_options(options: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Check all options that have a type.

    Raises:
        ConfigError: One has a value of another type.
    """
    for name, value in options.items():
        if name in kinds:
            check_option(name, value, kinds[name])


def option_types(owner: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the types of a function's arguments, or of the arguments that make a data class.

    >>> def play(*, turns: Count = 3, name: str | None = None) -> None: ...
    >>> sorted(option_types(play))
    ['name', 'turns']
    """
    return _types(owner)


@cache
def _types(owner: Any) -> Mapping[str, Any]:
    hints = get_type_hints(owner, include_extras=True)
    names = [one.name for one in fields(owner) if one.init] if is_dataclass(owner) else [*signature(owner).parameters]
    return {name: hints[name] for name in names if name in hints}


def expected(kind: Any) -> str:
    """Return the description of a type, for the end of "must be".

    >>> expected(Count | None), expected(bool), expected(Literal["reject", "accept"])
    ('an integer of at least 1', 'True or False', "'reject' or 'accept'")
    """
    words = dict.fromkeys(word for one in _parts(kind) for word in _described(one))
    *most, last = words
    return f"{', '.join(most)} or {last}" if most else last


def _parts(kind: Any) -> Iterator[Any]:
    """Yield the types of a union but ``None``, or the one type, with what annotates them."""
    if get_origin(kind) in (Union, UnionType):
        for one in get_args(kind):
            yield from _parts(one)
    elif kind is not NoneType:
        yield kind


_WORDS: dict[Any, str] = {
    int: "an integer",
    float: "a finite number",
    str: "text",
    Path: "a path",
    type: "a class",
    Any: "any value",
    Callable: "a function or its name module:function",
}


def _described(kind: Any) -> Iterator[str]:
    origin, arguments = get_origin(kind), get_args(kind)
    base = origin or kind
    if origin is Annotated:
        words = next((one for one in arguments[1:] if isinstance(one, str)), None)
        yield words or " ".join([expected(arguments[0]).replace("finite ", ""), *map(str, arguments[1:])])
    elif origin is Literal or kind is bool:
        yield from map(repr, arguments or (True, False))
    elif base in _WORDS:
        yield _WORDS[base]
    elif issubclass(base, Mapping):
        yield "a mapping"
    elif issubclass(base, Collection):
        yield f"a list, each element {expected(arguments[0])}" if arguments else "a list"
    else:
        yield f"a {base.__name__}"


def types_in(kind: Any) -> Iterator[Any]:
    """Yield the types of a union, or the one type, without their bounds and without ``None``.

    >>> list(types_in(Count | Literal["all"] | None))
    [<class 'int'>, typing.Literal['all']]
    """
    for one in _parts(kind):
        yield from types_in(get_args(one)[0]) if get_origin(one) is Annotated else [one]


def literals_in(kind: Any) -> set[Any]:
    """Return the values that a type lists.

    >>> literals_in(Count | Literal["all"] | None)
    {'all'}
    """
    return {value for one in types_in(kind) if get_origin(one) is Literal for value in get_args(one)}


def takes_function(kind: Any) -> bool:
    """Return whether a value of a type can be a function, so that a text is its name.

    >>> takes_function(Literal["render"] | Function | None), takes_function(str)
    (True, False)
    """
    bases = [get_origin(one) or one for one in types_in(kind)]
    return Callable in bases and str not in bases


def _accepts(kind: Any, value: Any) -> bool:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _accepts(arguments[0], value) and all(value in one for one in arguments[1:] if isinstance(one, Range))
    if origin in (Union, UnionType):
        return any(_accepts(one, value) for one in arguments)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in arguments)
    if kind in (int, float):
        number = isinstance(value, int if kind is int else Real) and not isinstance(value, bool)
        return number and (kind is int or abs(value) <= sys.float_info.max)
    base = origin or kind
    of_class = isinstance(value, type) and isinstance(base, type) and vars(base).get("_is_protocol")  # not of objects
    return (
        kind is Any
        or not isinstance(base, type)
        or (isinstance(value, base) and not of_class and _holds(arguments, value))
    )


def _holds(arguments: Sequence[Any], value: Any) -> bool:
    """Return whether what a collection holds is of the types that its type names."""
    if isinstance(value, Mapping) and len(arguments) == 2:
        return all(_accepts(arguments[0], key) and _accepts(arguments[1], one) for key, one in value.items())
    if isinstance(value, Collection) and not callable(value) and arguments:
        return not isinstance(value, str | bytes) and all(_accepts(arguments[0], one) for one in value)
    return True


def load_function(function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function given directly or by its name, which can be stored in a spec as JSON.

    >>> load_function("math:sqrt")(9.0)
    3.0

    Modules in the working directory are found, also by an installed command.

    Raises:
        ConfigError: The function does not exist.
    """
    if isinstance(function, str):
        if function.count(":") != 1:
            raise ConfigError(f"a function is named as 'package.module:function', got {function!r}")
        if str(Path.cwd()) not in sys.path:
            sys.path.append(str(Path.cwd()))
        module, _, name = function.partition(":")
        try:
            function = load_env_creator(function)
        except (ImportError, AttributeError, ValueError) as error:
            meant = f"'{module[:-3]}:{name}'" if module.endswith(".py") else "'package.module:function'"
            raise ConfigError(f"{function!r} names no function, as {meant} would: {error}") from error
    if not callable(function):
        raise ConfigError(f"expected a function, or its name as 'package.module:function', got {function!r}")
    return function


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a function or class from which ``load_function`` loads it.

    >>> import json
    >>> name_of(json.loads)
    'json:loads'
    >>> name_of(lambda: 0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: a lambda, which has no name that another process could load

    Raises:
        ConfigError: It has none that another process could load.
    """
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if name is None or module is None:
        raise ConfigError(f"{function!r:.100}, which has no name: define a function in a module")
    if "<lambda>" in name:
        raise ConfigError("a lambda, which has no name that another process could load")
    if module == "__main__" or "<locals>" in name:
        raise ConfigError(f"{name}, which is defined in {'a function' if '<locals>' in name else 'the program itself'}")
    try:
        same = load_function(f"{module}:{name}") is function
    except ConfigError:
        same = False
    if not same:
        raise ConfigError(f"{function!r:.100}, which is not what {module}:{name} names")
    return f"{module}:{name}"
