"""Errors of the commands: one line on standard error, exit status 2."""

import functools
import math
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from typing import Any, NoReturn, ParamSpec

import typer

from gym_trl.cli.terminal import encodable, only_results
from gym_trl.errors import ConfigError, GymTRLError

_P = ParamSpec("_P")


def clear_errors(command: Callable[_P, None]) -> Callable[_P, None]:
    """Print errors of a command as one line; show the traceback with ``--debug`` only."""

    @functools.wraps(command)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        try:
            check_finite(kwargs)
            with only_results() if kwargs.get("as_json") else nullcontext():
                command(*args, **kwargs)
        except BrokenPipeError:  # the reader has closed the pipe
            raise
        except (GymTRLError, OSError) as error:
            if kwargs.get("debug"):
                raise
            context: Any = kwargs.get("context")
            fail(by_flag(one_line(error), kwargs if context is None else context.params))

    return run


def by_flag(message: str, given: Mapping[str, Any]) -> str:
    """Return a message that begins with an option, with the flag that the user wrote.

    >>> by_flag("step_timeout must be a number above 0, got 0", {"step_timeout": "0"})
    '--step-timeout must be a number above 0, got 0'
    >>> by_flag("step_timeout must be a number above 0, got 0", {"step_timeout": None, "ids": ["run.yaml"]})
    'step_timeout must be a number above 0, got 0'
    """
    words = re.match(r"\w*", message)
    name = words[0] if words else ""
    if given.get(name) in (None, (), []):
        return message
    return f"{option_name(name)}{message[len(name) :]}"


def check_finite(options: Mapping[str, Any]) -> None:
    """Check that options with numbers are finite.

    Raises:
        ConfigError: one is not.
    """
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{option_name(name)} must be a finite number, got {value}")


def refuse_other_options(context: typer.Context, allowed: Collection[str]) -> None:
    """Check that ``--resume`` is given with no other option than those that it allows.

    Raises:
        ConfigError: there is another one.
    """
    for name in context.params:
        source = context.get_parameter_source(name)
        if name not in allowed and source is not None and source.name == "COMMANDLINE":
            others = [option_name(one) for one in allowed if one not in ("resume", "env_id", "ids", "debug")]
            only = f" and accepts {' and '.join(others)} only" if others else ""
            raise ConfigError(f"--resume uses the run's own options{only}, got {option_name(name)}")


def option_name(name: str) -> str:
    """Return the option of a parameter.

    >>> option_name("turn_limit")
    '--turn-limit'
    """
    return f"--{name.replace('_', '-')}"


def one_line(error: Exception) -> str:
    """Return the message of an error without line breaks."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    return " ".join(str(error).split())


_LONGEST = 2_500
"""Characters of an error that are printed; texts of files and environments in it can be of any length."""


def fail(text: str) -> NoReturn:
    """Print an error, its beginning if it is long, and exit with status 2."""
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    sys.stderr.write(encodable(f"Error: {text}\n", sys.stderr))
    raise typer.Exit(2)
