"""Base class of the wrappers, and what they ask of the environment inside.

An environment and its wrappers declare what holds for all of their episodes by attributes, none of which is required:
``instructions``, ``declares_success``, ``num_instances``, ``num_seats``, ``zero_sum``, ``preferred_executor``,
``reads_responses``, ``loss_return``, ``turns_left``, ``state_key``, ``task_key``, ``optimal_success``,
``optimal_return``, and the methods ``solver(seed)`` and ``random_policy(seed)``. The outermost layer that has one
decides.
"""

from collections.abc import Hashable
from typing import Any, SupportsFloat, TypeAlias, TypeVar

import gymnasium as gym

from gym_trl.errors import ActionTypeError, ConfigError, NotTextError
from gym_trl.spaces import AnyText, holds_text
from gym_trl.text.discovery import published_rules

Step: TypeAlias = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Reset: TypeAlias = tuple[Any, dict[str, Any]]
_Layer = TypeVar("_Layer")
_MISSING = object()


class TextWrapper(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that defines ``act`` in place of ``step``, and ``begin`` to reset its own state.

    >>> class Fee(TextWrapper):  # the first action costs 0.5
    ...     def begin(self, observation, info):
    ...         self.due = 0.5
    ...         return observation, info
    ...     def act(self, action):
    ...         observation, reward, *rest = self.env.step(action)
    ...         reward, self.due = reward - self.due, 0.0
    ...         return observation, reward, *rest
    ...     def lost(self, inside, turns):
    ...         return inside - self.due
    ...     def part(self):
    ...         return self.due
    >>> env = Fee(gym.make("TrlEnv/GuessNumber-v0"))
    >>> _ = env.reset(seed=0)
    >>> env.step("1")[1]
    -0.5

    After the end of an episode every action returns the last observation, with a reward of 0. A terminated episode is
    not truncated as well. A subclass passes its arguments to ``__init__``, so that ``gym.make(env.spec)`` rebuilds it.

    A wrapper that changes observations can define ``shown`` alone. One that changes rewards defines ``lost``; one that
    remembers what later steps depend on defines ``part``, for credit per turn.

    Raises:
        ActionTypeError: An action of a text space is not text.
    """

    def __init__(self, env: gym.Env[Any, Any], **arguments: Any) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, **arguments)
        gym.Wrapper.__init__(self, env)
        self._end: Step | None = None

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Reset the wrapper's own state, and return what a reset shows."""
        return self.shown(observation, info), info

    def act(self, action: Any) -> Step:
        """Play an action in an episode that is not over."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self.shown(observation, info, over=terminated or truncated), reward, terminated, truncated, info

    def shown(self, observation: Any, info: dict[str, Any], *, over: bool = False) -> Any:
        """Return what is observed in place of an observation."""
        return observation

    def lost(self, inside: float | None, turns: float) -> float | None:
        """Return the lowest reward of the rest of an episode that is lost (``gym_trl.wrappers.turn_limit``).

        Args:
            inside: That of the wrapped environment; ``None`` if it is not known.
            turns: Most turns of the rest.
        """
        return inside

    def part(self) -> Hashable:
        """Return what later steps depend on, beside the state inside; ``None`` if there is nothing.

        Raises:
            AttributeError: It is not known.
        """
        return None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._end = None
        return self.begin(observation, info)

    def step(self, action: Any) -> Step:
        """Play an action."""
        if isinstance(self.action_space, AnyText | gym.spaces.Text) and not isinstance(action, str):
            raise ActionTypeError(f"{type(self).__name__} takes text, got {type(action).__name__}: {action!r:.100}")
        if self._end is not None:
            observation, _, terminated, truncated, info = self._end
            return observation, 0.0, terminated, truncated, dict(info)
        observation, reward, terminated, truncated, info = self.act(action)
        truncated = False if terminated else truncated
        if terminated or truncated:
            self._end = observation, 0.0, terminated, truncated, dict(info)
        return observation, reward, terminated, truncated, info


def attribute_of(env: gym.Env[Any, Any], name: str, default: Any = None) -> Any:
    """Return an attribute of an environment or of its outermost wrapper that has it, or ``default``.

    >>> attribute_of(gym.make("TrlEnv/GuessNumber-v0"), "high"), attribute_of(gym.make("FrozenLake-v1"), "high", 0)
    (50, 0)
    """
    for layer in layers_of(env):
        if (found := getattr(layer, name, _MISSING)) is not _MISSING:
            return found
    return default


def layers_of(env: gym.Env[Any, Any]) -> list[Any]:
    """Return the wrappers of an environment, from the outermost, and the environment itself.

    >>> [type(layer).__name__ for layer in layers_of(gym.make("FrozenLake-v1"))]
    ['TimeLimit', 'OrderEnforcing', 'PassiveEnvChecker', 'FrozenLakeEnv']
    """
    layers: list[Any] = [env]
    while isinstance(layers[-1], gym.Wrapper):
        layers.append(layers[-1].env)
    return layers


def layer_of(env: gym.Env[Any, Any], kind: type[_Layer]) -> _Layer | None:
    """Return the outermost layer of an environment that is of a class; ``None`` if there is none."""
    return next((layer for layer in layers_of(env) if isinstance(layer, kind)), None)


def instructions_of(env: gym.Env[Any, Any]) -> str:
    """Return the rules of an environment as a model reads them; empty if there are none.

    >>> instructions_of(gym.make("TrlEnv/GuessNumber-v0"))[:40]
    'Find the secret integer from 1 to 50. Yo'
    >>> instructions_of(gym.make("FrozenLake-v1"))[:37]
    'Frozen lake involves crossing a froze'

    Without an attribute ``instructions`` they are empty, except for environments of Gymnasium and MiniGrid: the
    docstring of a class is not the rules of a game.
    """
    rules = attribute_of(env, "instructions")
    if rules is not None and not isinstance(rules, str):
        raise ConfigError(f"{env}: instructions must be text, got {rules!r:.80}")
    return published_rules(env) if rules is None else rules


def check_text(env: gym.Env[Any, Any], name: str, *spaces: gym.Space[Any]) -> None:
    """Check that spaces of ``env`` are text, as the wrapper called ``name`` requires.

    Raises:
        NotTextError: They are not; the message explains how to convert the environment to text.
    """
    for space in spaces:
        if not holds_text(space):
            raise NotTextError(f"{env} has {space}; {name} needs text; wrap as_text(env)")


def text_of(observation: object) -> str:
    """Return an observation that is text, before it becomes a part of another text.

    Raises:
        TypeError: It is not a string.
    """
    if not isinstance(observation, str):
        raise TypeError(f"the observation must be text, got {type(observation).__name__}: {observation!r:.80}")
    return observation
