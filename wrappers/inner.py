"""Helpers for wrappers: the rules and texts of the environment inside, and checks of arguments."""

import math
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.spaces import MAX_LENGTH, holds_text
from gym_trl.text.discovery import published_rules
from gym_trl.wrappers.traits import attribute_of


def instructions_of(env: gym.Env[Any, Any]) -> str:
    """Return the rules of an environment as a model reads them; empty if there are none.

    >>> instructions_of(gym.make("TrlEnv/GuessNumber-v0"))[:40]
    'Find the secret integer from 1 to 50. Yo'
    >>> instructions_of(gym.make("FrozenLake-v1"))[:37]
    'Frozen lake involves crossing a froze'

    They are the attribute ``instructions`` of the environment or of its outermost wrapper that has one. Without it they
    are empty, except for environments of Gymnasium and MiniGrid: the docstring of a class is not the rules of a game.
    """
    rules = attribute_of(env, "instructions")
    if rules is not None and not isinstance(rules, str):
        raise ConfigError(f"{env}: instructions must be text, got {rules!r:.80}")
    return published_rules(env) if rules is None else rules


def changed_by(env: gym.Env[Any, Any]) -> str:
    """Return the class of a wrapper that changes an environment's observations; empty if they are its own.

    >>> changed_by(gym.make("FrozenLake-v1")), changed_by(gym.wrappers.FlattenObservation(gym.make("FrozenLake-v1")))
    ('', 'FlattenObservation')
    """
    while isinstance(env, gym.Wrapper):
        space, inside = env.observation_space, env.env.observation_space
        # A property may make the space anew each time; then equal spaces are taken for the same.
        same = space is inside or (space == inside and inside is not env.env.observation_space)
        if isinstance(env, gym.ObservationWrapper) or not same:
            return type(env).__name__
        env = env.env
    return ""


def text_of(observation: object) -> str:
    """Return an observation that is text, before it becomes a part of another text.

    >>> text_of("Look."), text_of(None)
    Traceback (most recent call last):
        ...
    TypeError: the observation must be text, got NoneType: None

    Raises:
        TypeError: it is not a string.
    """
    if not isinstance(observation, str):
        raise TypeError(f"the observation must be text, got {type(observation).__name__}: {observation!r:.80}")
    return observation


def longest_observation(env: gym.Env[Any, Any]) -> int:
    """Return the maximum characters of an observation of ``env``."""
    return int(getattr(env.observation_space, "max_length", MAX_LENGTH))


def check_text(env: gym.Env[Any, Any], name: str, *spaces: gym.Space[Any]) -> None:
    """Check that spaces of ``env`` are text, as the wrapper called ``name`` requires.

    Raises:
        NotTextError: They are not; the message explains how to convert the environment to text.
    """
    for space in spaces:
        if not holds_text(space):
            raise NotTextError(f"{env} has {space}; {name} needs text; wrap as_text(env)")


def check_penalty(penalty: float) -> None:
    """Check a penalty.

    Raises:
        ConfigError: It is negative or not finite.
    """
    if not (math.isfinite(penalty) and penalty >= 0):
        raise ConfigError(f"penalty must not be negative, got {penalty}")
