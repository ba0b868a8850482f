"""Declaration of options: fields of data classes that are converted, checked, and written to files."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from inspect import get_annotations
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Annotated, Any, Literal, Self, TypeAlias, get_args, get_origin

from gym_trl.errors import ConfigError
from gym_trl.kinds import (
    ByName,
    check_option,
    expected,
    literals_in,
    load_function,
    marks_in,
    name_of,
    option_types,
    types_in,
)
from gym_trl.registration import did_you_mean

Function: TypeAlias = Annotated[Callable[..., Any], ByName(), "a function or its name module:function"]
"""Function, given as an object or by its name ``"module:function"``; the options hold the object."""
Role: TypeAlias = Literal["limit", "marks"]
"""``"limit"`` of an option that changes what an episode is worth, whoever plays it; ``"marks"`` of one about the marks
of actions, which only language models write."""


def option(default: Any, sentence: str, unset: str = "", *, flag: bool = True, role: Role | None = None) -> Any:
    """Declare an option, as a field of a data class.

    Args:
        default: Its default; a mapping or a list is copied.
        sentence: Its meaning, for the help and the docs.
        unset: Meaning of the default ``None``.
        flag: Whether the command line has it.
        role: Use in an evaluation by other policies than models in this process.
    """
    metadata = {"sentence": sentence, "unset": unset, "flag": flag, "role": role}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Options:
    """Base of all options: values are converted and checked when they are made.

    Texts that name functions become these functions, lists become tuples, and mappings become the options that they are
    the arguments of.

    Raises:
        ConfigError: A value is of another type or out of its bounds; the message begins with the option's name.
    """

    def __post_init__(self) -> None:
        """Convert the values, and check them."""
        for name, kind in option_types(type(self)).items():
            value = vars(self)[name]
            object.__setattr__(self, name, converted(name, value, kind))
            try:
                check_option(name, vars(self)[name], kind)
            except ConfigError:
                check_option(name, value, kind)  # the message has the value that the user gave
                raise

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Return the options with these values by name.

        >>> from gym_trl.options import Stepping
        >>> Stepping.of({"worker": 2})
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: there is no option worker; did you mean 'workers'?

        Raises:
            ConfigError: An option is unknown, is missing, or has a wrong value.
        """
        cls.check_names(given)
        for one in fields(cls):
            if one.init and one.name not in given and one.default is MISSING and one.default_factory is MISSING:
                raise ConfigError(f"{one.name} must be given")
        return cls(**given)

    @classmethod
    def check_names(cls, given: Iterable[str]) -> None:
        """Check that all names are those of options.

        Raises:
            ConfigError: One is not.
        """
        types = option_types(cls)
        for name in given:
            if name not in types:
                raise ConfigError(f"there is no option {name}{did_you_mean(str(name), types)}")

    def as_dict(self) -> dict[str, Any]:
        """Return the options as values that JSON has: functions by their names.

        >>> from gym_trl.options import Stepping
        >>> Stepping(executor="thread", workers=2).as_dict()
        {'executor': 'thread', 'workers': 2, 'reset_timeout': None, 'step_timeout': None}

        Raises:
            ConfigError: A value cannot be stored, such as a lambda; the message says why.
        """
        return {name: stored(name, getattr(self, name)) for name in option_types(type(self))}


def converted(name: str, value: Any, kind: Any) -> Any:
    """Return a value as its option holds it."""
    choices = list(types_in(kind))
    named = isinstance(value, str) and ":" in value and any(isinstance(one, ByName) for one in marks_in(kind))
    if named and value not in literals_in(kind):
        try:
            return load_function(value)
        except ConfigError as error:
            raise ConfigError(f"{name} must be {expected(kind)}, got {value!r}: {error}") from error
    if Path in choices and isinstance(value, str):
        return Path(value)
    for one in choices:
        if get_origin(one) in (tuple, Sequence) and isinstance(value, list | tuple):
            inner = get_args(one)[0]
            return tuple(converted(f"{name}[{place}]", part, inner) for place, part in enumerate(value))
    return value


def stored(name: str, value: Any) -> Any:
    """Return a value as a file holds it.

    >>> stored("observe", lambda observation, info: "")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: observe must be a function with a name, module:function, ...

    Raises:
        ConfigError: It cannot be stored whole.
    """
    if isinstance(value, Options):
        return {key: stored(f"{name}.{key}", getattr(value, key)) for key in option_types(type(value))}
    if isinstance(value, Mapping):
        return {_key(name, key): stored(f"{name}.{key}", one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [stored(f"{name}[{place}]", one) for place, one in enumerate(value)]
    if isinstance(value, Path):
        return str(value)
    if callable(value):
        try:
            return name_of(value)
        except ConfigError as error:
            raise ConfigError(
                f"{name} must be a function with a name, module:function, to be written to a file, got {error}"
            ) from error
    try:
        same = json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise ConfigError(f"{name} must be a value that JSON has, to be written to a file, got {value!r:.100}")
    return value


def _key(name: str, key: Any) -> str:
    if isinstance(key, str):
        return key
    if callable(key):
        return name_of(key)
    raise ConfigError(f"{name} must have texts as names, to be written to a file, got {key!r:.100}")


def values_of(options: Options, group: type[Options]) -> dict[str, Any]:
    """Return the values of a group's options, by name.

    >>> from gym_trl.options import SpecOptions, Stepping
    >>> values_of(SpecOptions(env="TrlEnv/Echo-v0", workers=2), Stepping)["workers"]
    2
    """
    return {name: vars(options)[name] for name in option_types(group)}


def defaults(group: type[Options]) -> dict[str, Any]:
    """Return the defaults of a group's options, by name.

    >>> from gym_trl.options import Stepping
    >>> defaults(Stepping)["workers"] is None
    True
    """
    values = {name: default_of(one) for name, one in declared(group).items()}
    return {name: value for name, value in values.items() if value is not MISSING}


def changed(options: Options) -> dict[str, Any]:
    """Return the options that differ from their defaults, by name.

    >>> from gym_trl.options import SpecOptions
    >>> changed(SpecOptions(env="TrlEnv/Echo-v0", workers=2))
    {'env': 'TrlEnv/Echo-v0', 'workers': 2}
    """
    values = ((name, vars(options)[name], default_of(one)) for name, one in declared(type(options)).items())
    return {name: value for name, value, usual in values if usual is MISSING or repr(value) != repr(usual)}


def worded(value: Any) -> str:
    """Return a value as Python writes it, functions and classes by their names.

    >>> worded({"high": 8, "draw": len, "tags": ("a", "b")}), worded(FunctionType)
    ("{'high': 8, 'draw': len, 'tags': ['a', 'b']}", 'function')
    """
    if isinstance(value, FunctionType | BuiltinFunctionType | type):
        return value.__qualname__
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{worded(name)}: {worded(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(worded, value)) + "]"
    return f"{value!r:.100}"


def signed(kind: str, options: Options) -> str:
    """Return the representation of an object that was made from options.

    >>> from gym_trl.options import SpecOptions
    >>> signed("GymSpec", SpecOptions(env="TrlEnv/Echo-v0", workers=2))
    "GymSpec('TrlEnv/Echo-v0', workers=2)"
    """
    values = {name: worded(value) for name, value in changed(options).items()}
    return f"{kind}({', '.join([values.pop('env'), *(f'{name}={value}' for name, value in values.items())])})"


def described(one: Field[Any], value: Any) -> str:
    """Return an option's value as words for the help and the docs; empty if there is nothing to say.

    >>> from gym_trl.options import Run, Task, Text
    >>> described(declared(Run)["learning_rate"], 1e-6), described(declared(Text)["turn_limit"], None)
    ('1e-06', "the environment's own limit")
    >>> described(declared(Task)["env_kwargs"], {"high": 8, "turns": 4})
    'high=8, turns=4'
    """
    if value is MISSING or isinstance(value, Options):
        return ""
    if value is None:
        return str(one.metadata["unset"])
    if value in ({}, (), []):
        return "none"
    if isinstance(value, Mapping):
        return ", ".join(
            f"{name}={str(part).lower() if isinstance(part, bool) else part}" for name, part in value.items()
        )
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def default_of(one: Field[Any]) -> Any:
    """Return the default of an option; ``MISSING`` if it must be given."""
    return one.default if one.default_factory is MISSING else one.default_factory()


def group_of(name: str, options: type[Options]) -> type[Options]:
    """Return the group that declares an option.

    >>> from gym_trl.options import SpecOptions
    >>> group_of("turn_limit", SpecOptions).__name__
    'Text'
    """
    return next(one for one in reversed(options.__mro__) if name in get_annotations(one))


def declared(options: type[Options]) -> Mapping[str, Field[Any]]:
    """Return the declarations of the options of a type, by name, in the order of the groups."""
    return {one.name: one for one in fields(options) if one.init}


def again(group: type[Options], name: str) -> Any:
    """Declare an option as a group does, for options that have this one of the group only."""
    one = declared(group)[name]
    return field(default=one.default, metadata=one.metadata)
