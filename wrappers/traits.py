"""Traits: what an environment and its wrappers declare by attributes; the outermost layer that has one decides."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import gymnasium as gym

from gym_trl.types import Policy

_Layer = TypeVar("_Layer")
_MISSING = object()


@dataclass(frozen=True)
class EnvTraits:
    """Declarations of an environment and its wrappers that hold for all of its episodes."""

    declares_success: bool | None = None
    """True if ``info["success"]`` is set where an episode ends; ``None`` if nothing says so."""
    num_instances: int | None = None
    """Number of different tasks, which ``reset(options={"instance": i})`` selects; ``None`` if they are not counted."""
    num_seats: int = 1
    """Number of seats (``gym_trl.wrappers.seats``)."""
    zero_sum: bool = False
    """True if the payoffs of all seats add up to 0."""
    preferred_executor: str | None = None
    """Executor that is used if none is chosen."""
    reads_responses: bool = False
    """True if a wrapper handles unfinished and refused responses."""


def traits(env: gym.Env[Any, Any]) -> EnvTraits:
    """Return the traits of an environment.

    >>> traits(gym.make("TrlEnv/GuessNumber-v0")).num_instances
    50
    >>> traits(gym.make("CartPole-v1")) == EnvTraits()
    True
    """
    declared = {one.name: attribute_of(env, one.name) for one in fields(EnvTraits)}
    return EnvTraits(**{name: value for name, value in declared.items() if value is not None})


def attribute_of(env: gym.Env[Any, Any], name: str, default: Any = None) -> Any:
    """Return an attribute of an environment or of its outermost wrapper that has it, or ``default``.

    >>> attribute_of(gym.make("TrlEnv/GuessNumber-v0"), "high"), attribute_of(gym.make("FrozenLake-v1"), "high", 0)
    (50, 0)
    """
    # A property such as instructions may ask the layers inside in turn, so it is read once.
    while (found := getattr(env, name, _MISSING)) is _MISSING and isinstance(env, gym.Wrapper):
        env = env.env
    return default if found is _MISSING else found


def layers_of(env: gym.Env[Any, Any]) -> list[Any]:
    """Return an environment and its wrappers, from the innermost.

    >>> [type(layer).__name__ for layer in layers_of(gym.make("FrozenLake-v1"))]
    ['FrozenLakeEnv', 'PassiveEnvChecker', 'OrderEnforcing', 'TimeLimit']
    """
    layers: list[Any] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers[::-1]


def layer_of(env: gym.Env[Any, Any], kind: type[_Layer]) -> _Layer | None:
    """Return the outermost layer of an environment that is of a class; ``None`` if there is none.

    >>> layer_of(gym.make("FrozenLake-v1"), gym.wrappers.OrderEnforcing)
    <OrderEnforcing<PassiveEnvChecker<FrozenLakeEnv<FrozenLake-v1>>>>
    """
    return next((layer for layer in reversed(layers_of(env)) if isinstance(layer, kind)), None)


def solver_of(env: gym.Env[Any, Any]) -> Callable[[], Policy] | None:
    """Return the method ``solver``, which makes a policy that plays as well as is known.

    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> observation, _ = env.reset(seed=0)
    >>> solver_of(env)()(observation)
    '25'
    """
    make: Callable[[], Policy] | None = attribute_of(env, "solver")
    return make


def random_policy_of(env: gym.Env[Any, Any]) -> Callable[[int], Policy] | None:
    """Return the method ``random_policy``, which makes from a seed a policy that plays random legal actions."""
    make: Callable[[int], Policy] | None = attribute_of(env, "random_policy")
    return make


def has_policies(layer: Any) -> bool:
    """Return whether one layer, whatever is inside of it, has a ``random_policy``."""
    return hasattr(layer, "random_policy")


def action_tools_of(env: gym.Env[Any, Any]) -> Sequence[Callable[..., str]] | None:
    """Return ``action_tools``, the functions from arguments to an action as text."""
    tools: Sequence[Callable[..., str]] | None = attribute_of(env, "action_tools")
    return tools


def optimal_success(env: gym.Env[Any, Any]) -> float | None:
    """Return ``optimal_success``, the share of tasks that perfect play solves."""
    share: float | None = attribute_of(env, "optimal_success")
    return share


def optimal_return(env: gym.Env[Any, Any]) -> float | None:
    """Return ``optimal_return``, the mean return of perfect play."""
    mean: float | None = attribute_of(env, "optimal_return")
    return mean


def task_key_of(env: gym.Env[Any, Any]) -> Hashable:
    """Return ``task_key``, the name of the current task (``gym_trl.wrappers.state_key``)."""
    key: Hashable = attribute_of(env, "task_key")
    return key
