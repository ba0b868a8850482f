"""Arguments that describe environments and episodes: their checks, and functions that are given by name.

``GymSpec``, ``EnvSpec``, ``make_pool`` and evaluations share these arguments, so that each is checked here, by its
name, before anything is loaded.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from gymnasium.envs.registration import load_env_creator

from gym_trl.errors import ConfigError, check_counts
from gym_trl.registration import EnvSource, did_you_mean

Function: TypeAlias = Callable[..., Any]
ExecutorName: TypeAlias = Literal["inline", "thread", "process", "ray"]
CreditName: TypeAlias = Literal["episode", "return_to_go", "pool"]
Envs: TypeAlias = EnvSource | Sequence[Any] | Mapping[Any, Any]
"""One environment, several, or several with weights."""

_LEAST = {"num_tasks": 1, "num_eval_tasks": 0, "seed": 0, "resample_dead_groups": 0}
_LEAST |= dict.fromkeys(("end_after_invalid", "turn_limit", "max_tokens_per_turn", "max_alive", "workers"), 1)
"""Least value of each integer."""
_WORDS: dict[str, tuple[str, ...]] = {
    "observe": ("render",),
    "act": (),
    "success": ("info",),
    "history": ("notes", "rendered"),
    "executor": get_args(ExecutorName),
    "credit": get_args(CreditName),
    "on_rollout": (),
    "seats": ("self",),
}
"""Texts that may be given, in place of a function but for the last one."""
_OF_WORKERS = ("workers", "reset_timeout", "step_timeout")
_NEVER_NONE = ("num_tasks", "num_eval_tasks", "seed", "resample_dead_groups", "invalid_penalty", "credit")


def check_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with functions in place of their names, after a check of each.

    >>> check_options({"turn_limit": 8, "history": 3, "success": "math:isfinite"})
    {'turn_limit': 8, 'history': 3, 'success': <built-in function isfinite>}
    >>> check_options({"seats": "selves"})
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: seats must be 'self', got 'selves'; did you mean 'self'?

    Raises:
        ConfigError: An argument has a wrong value, or two do not go together; the message begins with a name.
    """
    options = {name: _checked(name, value) for name, value in given.items()}
    seats, executor = options.get("seats"), options.get("executor")
    if seats is not None and options.get("success") is not None:
        raise ConfigError(
            "success is computed from the rewards of one agent, and seats has several: leave it out; a seat "
            "succeeds if its payoffs add up to more than 0, or by info['successes']"
        )
    if seats is not None and options.get("curriculum"):
        raise ConfigError("curriculum follows the success rate, which seats='self' leaves at one half: leave out one")
    if options.get("num_tasks") == 1 and options.get("resample_dead_groups"):
        raise ConfigError("num_tasks must be at least 2 for resample_dead_groups, got 1")
    for name in _OF_WORKERS:
        if options.get(name) is not None and (executor == "inline" or callable(executor)):
            raise ConfigError(f"{name} needs executor 'thread', 'process' or 'ray', which have workers; leave it out")
    return options


def _checked(name: str, value: Any) -> Any:
    """Return the value of an argument, a function in place of its name."""
    if value is None and name not in _NEVER_NONE:
        return None
    number = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    right, wanted = True, ""
    if name in _LEAST or (name == "history" and isinstance(value, int)):
        check_counts(_LEAST.get(name, 1), **{name: value})
        right, wanted = name != "seed" or value < 2**32, "an integer below 2**32"
    elif name in _WORDS:
        if not isinstance(value, str) or value not in _WORDS[name]:
            return value if name == "success" and number else _function(name, value)
    elif name in ("episode_timeout", "reset_timeout", "step_timeout"):
        right, wanted = number and value > 0, "a number above 0"
    elif name == "invalid_penalty":
        right, wanted = number and value >= 0, "a number of at least 0"
    elif name in ("system_prompt", "instructions"):
        right, wanted = isinstance(value, str), "text"
    elif name in ("env_kwargs", "chat_template_kwargs"):
        right, wanted = _names_arguments(value), "a mapping from names to values"
    elif name == "curriculum":
        right = isinstance(value, list | tuple) and all(map(_names_arguments, value))
        wanted = "a list of mappings from names to values"
    elif name == "wrappers":
        right, wanted = isinstance(value, list | tuple), "a list of functions"
        value = tuple(_function(f"wrappers[{place}]", one) for place, one in enumerate(value)) if right else value
    if not right:
        raise ConfigError(f"{name} must be {wanted}, got {value!r:.200}")
    return value


def _names_arguments(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _function(name: str, value: Any) -> Any:
    """Return a function, loaded if it is given by its name."""
    words = _WORDS.get(name, ())
    given_by_name = isinstance(value, str) and ":" in value
    if name != "seats":
        if callable(value):
            return value
        if given_by_name:
            try:
                return load_function(value)
            except ConfigError as error:
                raise ConfigError(f"{name} must be a function: {error}") from error
        words += ("a function or its name module:function",)
    known = " or ".join(one if " " in one else repr(one) for one in words)
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    raise ConfigError(f"{name} must be {known}, got {value!r:.200}{near}")


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
