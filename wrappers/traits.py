"""Traits: declarations of an environment and of its wrappers by attributes, which this module alone reads.

The outermost layer that has an attribute decides. Traits that hold for all episodes are the fields of ``EnvTraits``.
Functions read the others: ``instructions``, which may be another text in each episode, policies, and scores that may
take long to compute. All of them refuse a value of another type by the name of its attribute.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar
from weakref import ref

import gymnasium as gym
import numpy as np

from gym_trl.bases import Settling
from gym_trl.errors import ConfigError, safe_str
from gym_trl.kinds import Count, check_option, check_options, option_types
from gym_trl.types import Policy
from gym_trl.wrappers.text_wrapper import TextWrapper

_MISSING = object()
_Layer = TypeVar("_Layer")
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class EnvTraits:
    """Declarations of an environment and its wrappers that hold for all of its episodes.

    >>> traits(gym.make("TrlEnv/GuessNumber-v0")).num_instances
    50
    >>> traits(gym.make("CartPole-v1")) == EnvTraits()
    True

    Raises:
        ConfigError: A field has a value of another type.
    """

    declares_success: bool | None = None
    """True if ``info["success"]`` is set where an episode ends; ``None`` if nothing says so."""
    num_instances: Count | None = None
    """Number of different tasks, which ``reset(options={"instance": i})`` selects; ``None`` if they are not counted."""
    num_seats: Count = 1
    """Number of seats (``gym_trl.wrappers.seats``)."""
    zero_sum: bool = False
    """True if the payoffs of all seats add up to 0."""
    opponents: Collection[str] = ()
    """Values of the argument ``opponent``; with ``"self"`` all seats are played from outside."""
    preferred_executor: str | None = None
    """Executor that is used if none is chosen; ``None`` for a measurement."""
    append_only: bool | None = None
    """False if observations repeat or hide earlier ones; ``None`` if no wrapper rewrites them."""
    reads_responses: bool = False
    """True if a wrapper handles unfinished and refused responses."""

    def __post_init__(self) -> None:
        """Check the types."""
        check_options(vars(self), option_types(type(self)))


@dataclass(frozen=True)
class LayerTraits:
    """Declarations of one layer, an environment or a wrapper, for settlements and state keys.

    ``TextWrapper`` explains them. Every default is right for environments and wrappers of others that declare nothing.

    Raises:
        ConfigError: A field has a value of another type.
    """

    settle: bool = False
    """True if it has a method ``settle`` of its own."""
    settlement: bool = False
    """True if it has the attribute ``settlement``."""
    owes: bool = True
    """False only if a base class of this library keeps it right (``Settling``)."""
    settles_turns: bool | None = None
    turns_left: bool = False
    """True if it limits the number of actions."""
    limit_only_ends: bool = False
    actions_per_turn: Count = 1
    state_part: bool = False
    """True if it says which state it keeps, also if it is none."""
    markov_state_key: bool | None = None
    swaps_env: bool = False

    def __post_init__(self) -> None:
        """Check the types."""
        check_options(vars(self), option_types(type(self)))


_OF_LAYERS = tuple(one.name for one in fields(LayerTraits))
_PRESENT = ("settle", "settlement", "turns_left", "state_part")


def layer_traits(layer: Any) -> LayerTraits:
    """Return what one layer of an environment declares.

    >>> layer_traits(gym.wrappers.OrderEnforcing(gym.make("CartPole-v1").unwrapped)) == LayerTraits()
    True

    Raises:
        ConfigError: An attribute has a value of another type.
    """
    attributes = {name: getattr(layer, name, _MISSING) for name in _OF_LAYERS}
    declared = {name: _plain(value) for name, value in attributes.items() if value is not _MISSING}
    if "settle" in declared and not callable(declared["settle"]):
        raise ConfigError(f"{safe_str(layer)}: settle must be a function, got {declared['settle']!r:.80}")
    declared |= {name: True for name in _PRESENT if name in declared}
    if not isinstance(layer, Settling):
        declared.pop("owes", None)  # a subclass of a stranger's may settle otherwise
    if isinstance(layer, TextWrapper):
        for name in ("settle", "turns_left"):
            if getattr(type(layer), name) is getattr(TextWrapper, name):
                del declared[name]
    with _named(layer):
        return _told(tuple(declared.items()))


@cache
def _told(declared: tuple[tuple[str, Any], ...]) -> LayerTraits:
    return LayerTraits(**dict(declared))


_FIELDS = tuple(one.name for one in fields(EnvTraits))

_READ: dict[int, tuple[Sequence["ref[Any]"], EnvTraits]] = {}
"""Traits by the ``id`` of an environment, with the layers of which they were read."""


def traits(env: gym.Env[Any, Any]) -> EnvTraits:
    """Return the traits of an environment, which are read once.

    >>> class Quiz(gym.Env):
    ...     declares_success = "yes"
    >>> traits(Quiz())
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: <Quiz instance>: declares_success must be True or False, got 'yes'

    ``None`` declares nothing.

    Raises:
        ConfigError: An attribute has a value of another type.
    """
    layers = layers_of(env)[::-1]
    of, earlier = _READ.get(id(env), ((), None))
    if earlier is not None and len(of) == len(layers) and all(map(_is, of, layers)):
        return earlier
    attributes = {name: attribute_of(env, name) for name in _FIELDS}
    with _named(env):
        made = EnvTraits(**{name: _plain(value) for name, value in attributes.items() if value is not None})
    key = id(env)
    _READ[key] = [ref(env, lambda _: _READ.pop(key, None)), *map(ref, layers[1:])], made
    return made


def attribute_of(env: gym.Env[Any, Any], name: str, default: Any = None) -> Any:
    """Return an attribute of an environment or of its outermost wrapper that has it, of any type, or ``default``.

    >>> attribute_of(gym.make("TrlEnv/GuessNumber-v0"), "high"), attribute_of(gym.make("FrozenLake-v1"), "high", 0)
    (50, 0)
    """
    # Gymnasium's methods ask each wrapper three times, and a property such as instructions asks the next ones in turn.
    while (found := getattr(env, name, _MISSING)) is _MISSING and isinstance(env, gym.Wrapper):
        env = env.env
    return default if found is _MISSING else found


def layer_of(env: gym.Env[Any, Any], kind: type[_Layer]) -> _Layer | None:
    """Return the outermost layer of an environment that is of a class; ``None`` if there is none.

    >>> layer_of(gym.make("FrozenLake-v1"), gym.wrappers.OrderEnforcing)
    <OrderEnforcing<PassiveEnvChecker<FrozenLakeEnv<FrozenLake-v1>>>>
    """
    return next((layer for layer in reversed(layers_of(env)) if isinstance(layer, kind)), None)


def declared_instructions(env: gym.Env[Any, Any]) -> str | None:
    """Return the attribute ``instructions``, the rules of the current episode; ``None`` if there are none.

    >>> declared_instructions(gym.make("TrlEnv/GuessNumber-v0"))[:40], declared_instructions(gym.make("CartPole-v1"))
    ('Find the secret integer from 1 to 50. Yo', None)
    """
    return _read(env, "instructions", str)


def solver_of(env: gym.Env[Any, Any]) -> Callable[[], Policy] | None:
    """Return the method ``solver``, which makes a policy that plays as well as is known.

    >>> solver_of(gym.make("TrlEnv/GuessNumber-v0"))()("Guess 1 to 50 in 6 tries.")
    '25'
    """
    return _read(env, "solver", Callable)


def random_policy_of(env: gym.Env[Any, Any]) -> Callable[[int], Policy] | None:
    """Return the method ``random_policy``, which makes from a seed a policy that plays random legal actions."""
    return _read(env, "random_policy", Callable)


def has_state_key(layer: Any) -> bool:
    """Return whether one layer, whatever is inside of it, has a ``state_key`` (``gym_trl.wrappers.state_key``)."""
    return hasattr(layer, "state_key")


def has_policies(layer: Any) -> bool:
    """Return whether one layer, whatever is inside of it, has a ``random_policy`` or ``baselines``."""
    return any(hasattr(layer, name) for name in ("random_policy", "baselines"))


def observer_of(env: gym.Env[Any, Any]) -> Callable[[int], str] | None:
    """Return the method ``observe``, which returns what a seat sees now (``gym_trl.wrappers.seats``)."""
    return _read(env, "observe", Callable)


def action_tools_of(env: gym.Env[Any, Any]) -> Sequence[Callable[..., str]] | None:
    """Return ``action_tools``, the functions from arguments to an action as text."""
    return _read(env, "action_tools", Sequence)


def baselines_of(env: gym.Env[Any, Any]) -> Mapping[str, Callable[[int], Policy]]:
    """Return ``baselines``, functions from a seed to a policy by name; empty if there are none."""
    return _read(env, "baselines", Mapping) or {}


def optimal_success(env: gym.Env[Any, Any]) -> float | None:
    """Return ``optimal_success``, the share of tasks that perfect play solves."""
    return _read(env, "optimal_success", float)


def optimal_return(env: gym.Env[Any, Any]) -> float | None:
    """Return ``optimal_return``, the mean return of perfect play."""
    return _read(env, "optimal_return", float)


def constant_action_of(env: gym.Env[Any, Any]) -> str | None:
    """Return ``constant_action``, an action that the rules allow at least in the first turn."""
    return _read(env, "constant_action", str)


def task_key_of(env: gym.Env[Any, Any]) -> Hashable:
    """Return ``task_key``, the name of the current task (``gym_trl.wrappers.state_key``)."""
    key: Hashable = attribute_of(env, "task_key")
    return key


def layers_of(env: gym.Env[Any, Any]) -> list[Any]:
    """Return an environment and its wrappers, from the innermost.

    >>> [type(layer).__name__ for layer in layers_of(gym.make("FrozenLake-v1"))]
    ['FrozenLakeEnv', 'PassiveEnvChecker', 'OrderEnforcing', 'TimeLimit']
    """
    layers: list[Any] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    layers.reverse()
    return layers


def _read(env: gym.Env[Any, Any], name: str, kind: Any) -> _Value | None:
    value: _Value | None = _plain(attribute_of(env, name))
    if value is not None and not (kind is str and isinstance(value, str)):
        with _named(env):
            check_option(name, value, kind)
    return value


@contextmanager
def _named(env: gym.Env[Any, Any]) -> Iterator[None]:
    """Put the environment before the message about one of its attributes."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{safe_str(env)}: {error}") from error


def _is(reference: "ref[Any]", layer: Any) -> bool:
    return reference() is layer


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
