"""Checks of arguments of environments, as a command line or a file may give them."""

from typing import Any

from gym_trl.errors import ConfigError


def check_integers(*, at_least: int | None = None, at_most: int | None = None, **arguments: object) -> None:
    """Check arguments that must be integers, as a command line or a file may give them.

    >>> check_integers(turns=3, at_least=1)
    >>> check_integers(turns="3", at_least=1)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: turns must be an integer, got '3'

    Raises:
        ConfigError: one of them is not an integer, smaller than ``at_least`` or larger than ``at_most``.
    """
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise ConfigError(f"{name} must be an integer, got {value!r}")
        if at_least is not None and value < at_least:
            raise ConfigError(f"{name} must be at least {at_least}, got {value}")
        if at_most is not None and value > at_most:
            raise ConfigError(f"{name} must be at most {at_most}, got {value}")


def check_argument(name: str, value: object, usual: object, allowed: tuple[Any, ...] | None) -> None:
    """Check an argument of a preset, which has the type of its usual value.

    >>> check_argument("holes", 1.5, 0.2, (0, 1))
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: holes must be from 0 to 1, got 1.5

    ``allowed`` has the smallest and the largest number, or every text; ``None`` allows all.

    Raises:
        ConfigError: It is of another type, or not allowed.
    """
    if isinstance(usual, bool) and not isinstance(value, bool):
        raise ConfigError(f"{name} must be True or False, got {value!r}")
    if allowed is None:
        return
    if isinstance(usual, str):
        if value not in allowed:
            *others, last = map(repr, allowed)
            raise ConfigError(f"{name} must be {', '.join(others)} or {last}, got {value!r}")
    elif isinstance(usual, float):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ConfigError(f"{name} must be a number, got {value!r}")
        if not allowed[0] <= value <= allowed[1]:
            raise ConfigError(f"{name} must be from {allowed[0]} to {allowed[1]}, got {value}")
    else:
        check_integers(**{name: value}, at_least=allowed[0], at_most=allowed[1])
