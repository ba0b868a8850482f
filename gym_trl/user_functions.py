"""Checks of the functions that a user gives for an environment, by one reset of it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple

import numpy as np

from gym_trl.errors import (
    ConfigError,
    GymTRLError,
    caused_by_model,
    described,
    failures_ignored,
    raise_interrupt,
    stops_a_rollout,
)
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.kinds import load_function
from gym_trl.random_play import random_play
from gym_trl.seeding import OwnGlobalRandom
from gym_trl.spaces import holds, holds_text
from gym_trl.wrappers.as_text import TextAction
from gym_trl.wrappers.base import layer_of
from gym_trl.wrappers.state_key import as_text_key


class _Contract(NamedTuple):
    arguments: tuple[str, ...]
    returns: str
    accepts: Callable[[Any], bool]


def _is_key(value: Any) -> bool:
    try:
        as_text_key(value)
    except ConfigError:
        return False
    return True


_CONTRACTS = {
    "observe": _Contract(("observation", "info"), "text", lambda value: isinstance(value, str)),
    "act": _Contract(("text",), "an action", lambda value: True),  # of a space, see try_functions
    "success": _Contract(
        ("info", "return"), "True, False or None", lambda value: value is None or isinstance(value, bool | np.bool_)
    ),
    "state_key": _Contract(
        ("environment",), "a hashable value of strings, numbers, booleans, None and tuples of these", _is_key
    ),
}


def check_arguments(name: str, function: Callable[..., Any], *arguments: str) -> None:
    """Check that a function can be called with these arguments, by position.

    >>> check_arguments("observe", lambda observation: "", "observation", "info")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: observe must take (observation, info), got <function ...>: too many positional arguments

    Args:
        name: Name of the option, for the message.
        function: The function, or a class. One without a signature, such as some of Python's own, is not checked.
        arguments: Names of the arguments, for the message.

    Raises:
        ConfigError: It cannot.
    """
    try:
        taken = signature(function)
    except (TypeError, ValueError):
        return
    try:
        taken.bind(*arguments)
    except TypeError as error:
        raise ConfigError(f"{name} must take ({', '.join(arguments)}), got {function!r:.100}: {error}") from error


def watched(name: str, function: Callable[..., Any] | str) -> Callable[..., Any]:
    """Return a function given as an option, with a check of what it takes and returns.

    >>> watched("success", lambda info, total: total)({}, 7.0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: success must return True, False or None, got float 7.0 from <function ...>

    What ``observe`` raises is an error of the option, too, but for what the infrastructure caused
    (``gym_trl.errors``). A call without an observation, or with an ``info`` that is no mapping, is a fault of the
    environment, and not checked.

    Args:
        name: Name of the option: ``observe``, ``act``, ``success`` or ``state_key``.
        function: The function, or its name.

    Raises:
        ConfigError: It takes other arguments; in a call, it returned something else or raised.
    """
    called, contract = load_function(function), _CONTRACTS[name]
    check_arguments(name, called, *contract.arguments)

    @wraps(called)  # with its attributes, such as markov_state_key
    def call(*arguments: Any) -> Any:
        named = dict(zip(contract.arguments, arguments, strict=True))
        sound = named.get("observation", 0) is not None and isinstance(named.get("info", {}), Mapping)
        try:
            returned = called(*arguments)
        except BaseException as error:
            raise_interrupt(error)
            if sound and name == "observe" and not isinstance(error, GymTRLError) and caused_by_model(error):
                raise ConfigError(f"{name} raised {described(error)}, in {called!r:.100}") from error
            raise
        if sound and not contract.accepts(returned):
            raise _wrong(name, contract.returns, returned, called)
        return returned

    return call


def _wrong(name: str, wanted: str, returned: Any, function: Callable[..., Any]) -> ConfigError:
    got = f"{type(returned).__name__} {returned!r:.80}"
    return ConfigError(f"{name} must return {wanted}, got {got} from {function!r:.100}")


def try_functions(
    env: TextEnvironment, *, act: Callable[[str], Any] | None = None, success: Callable[..., Any] | None = None
) -> None:
    """Reset an environment whose functions are ``watched``, and call those that a reset does not.

    What the environment itself raises is left to the first rollout, which counts it, and so is what ``act`` and
    ``success`` raise. The global random generators are not changed.

    Args:
        env: The environment; afterwards it is in the middle of an episode.
        act: The user's function from text to an action, which is called with a text of random play.
        success: The user's definition of success, which is called with the ``info`` of the reset and a return of 0.

    Raises:
        ConfigError: A function returned what it must not, or ``observe`` raised.
    """
    with OwnGlobalRandom(0), left_to_the_rollout():
        observation, info = env.reset(seed=0)
        if act is not None and (reader := layer_of(env, TextAction)) is not None:
            space, made, returned = reader.env.action_space, None, False
            with failures_ignored():
                made, returned = act(random_play(env, 0)(observation, info)), True
            if returned and not (isinstance(made, str) if holds_text(space) else holds(space, made)):
                wanted = f"an action of {space!s:.100}, or raise ValueError for a text that is none"
                raise _wrong("act", wanted, made, act)
        if success is not None and isinstance(info, Mapping):
            declared = None
            with failures_ignored():
                declared = success(info, 0.0)
            if not _CONTRACTS["success"].accepts(declared):
                raise _wrong("success", _CONTRACTS["success"].returns, declared, success)


@contextmanager
def left_to_the_rollout() -> Iterator[None]:
    """Ignore what an environment raises in the block, but for mistakes of the user and interrupts of this program."""
    try:
        yield
    except BaseException as error:
        raise_interrupt(error)
        if stops_a_rollout(error):
            raise
