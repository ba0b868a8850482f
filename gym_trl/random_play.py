"""Random play of any environment, and that of its solver, for checks, searches, evaluations and games."""

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.executors.inline import TextEnvironment
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText, holds_text
from gym_trl.text.discovery import action_names
from gym_trl.text.samples import holds_numbers, named_range, sampler
from gym_trl.text.spaces import write
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.as_text import TextAction
from gym_trl.wrappers.base import attribute_of, instructions_of

Act: TypeAlias = Callable[[str, Mapping[str, Any]], str]
"""Function from an observation and its ``info`` to an action."""


def random_play(env: TextEnvironment, seed: int) -> Act:
    """Return the random policy of one episode.

    >>> import gymnasium as gym
    >>> from gym_trl.wrappers import as_text
    >>> env = as_text(gym.make("FrozenLake-v1"))
    >>> play = random_play(env, 0)
    >>> play(*env.reset(seed=0)) in ("Move left", "Move down", "Move right", "Move up")
    True

    It is the environment's own ``random_policy``. Without one, it samples from the actions that ``info`` lists, and
    without a list from the action space, with the mask in ``info`` if there is one: see ``sampler`` for texts.

    Args:
        env: Environment that was reset.
        seed: Seed of the episode. The policy's own seed is derived from it: with the same one, the first numbers that
            the policy draws could be those from which the environment drew its secret.
    """
    derived = derive_seed(seed, "random play")
    if (make := attribute_of(env, "random_policy")) is not None:
        own = make(derived)
        return lambda observation, info: own(observation)
    played = played_in_words(env)
    space, names = played.action_space, action_names(played)
    rng, draw = random.Random(derived), sampler(space, derived)

    def act(observation: str, info: Mapping[str, Any]) -> str:
        if listed := listed_actions(env, info):
            return rng.choice(listed)
        texts = [instructions_of(env), observation]
        if holds_text(space):
            return str(draw(texts))
        return write(space, draw(texts, info.get("action_mask")), names)

    return act


def solve(env: TextEnvironment, seed: int = 0) -> Act:
    """Return the environment's solver as the policy of one episode; it needs neither the seed nor ``info``.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/GuessNumber-v0")
    >>> observation, info = env.reset(seed=0)
    >>> solve(env)(observation, info)
    '25'

    Raises:
        ConfigError: There is none.
    """
    make = attribute_of(env, "solver")
    if make is None:
        raise ConfigError(f"{env.unwrapped} has no method solver, which makes a policy from text to an action")
    policy = make()
    return lambda observation, info: policy(observation)


def played_in_words(env: TextEnvironment) -> gym.Env[Any, Any]:
    """Return the environment whose action space says what texts are played, below wrappers that accept any text.

    >>> import gymnasium as gym
    >>> from gym_trl.wrappers import ParseAction, as_text
    >>> played_in_words(ParseAction(gym.make("TrlEnv/Echo-v0"))).action_space
    AnyText(max_length=65536)
    >>> played_in_words(as_text(gym.make("FrozenLake-v1"))).action_space
    Discrete(4)
    """
    inner: gym.Env[Any, Any] = env
    while isinstance(inner, gym.Wrapper) and isinstance(inner.action_space, AnyText):
        converts = isinstance(inner, TextAction) and inner.converted_space is not None
        if not converts and not holds_text(inner.env.action_space):
            break
        inner = inner.env
    return inner


def plays_characters(env: TextEnvironment, observation: str, info: Mapping[str, Any]) -> bool:
    """Return whether random play draws any characters, because nothing says which texts are actions.

    >>> from gym_trl.envs.echo import Echo
    >>> plays_characters(Echo(), "Say ox.", {})
    False
    """
    listed = attribute_of(env, "random_policy") is not None or listed_actions(env, info)
    space = played_in_words(env).action_space
    named = named_range(space, [instructions_of(env), observation])
    return not listed and holds_text(space) and not holds_numbers(space) and named is None
