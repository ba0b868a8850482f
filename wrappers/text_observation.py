"""Wrapper that converts observations to text."""

from collections.abc import Callable
from functools import partial
from typing import Any, SupportsFloat

import gymnasium as gym

from gym_trl.errors import NotTextError
from gym_trl.spaces import AnyText, holds_text
from gym_trl.text.discovery import field_names, marks
from gym_trl.text.textify import check, render
from gym_trl.wrappers.minigrid_text import minigrid_text
from gym_trl.wrappers.toy_text import toy_text

Observe = Callable[[Any, dict[str, Any]], str]
"""Function ``(observation, info) -> str``."""


class TextObservation(gym.Wrapper[str, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that converts an environment's observations to text.

    >>> import gymnasium as gym
    >>> env = TextObservation(gym.make("CartPole-v1"))
    >>> print(env.reset(seed=0)[0])
    Cart Position: 0.0137
    Cart Velocity: -0.02302
    Pole Angle: -0.0459
    Pole Angular Velocity: -0.04835
    >>> env = TextObservation(gym.make("FrozenLake-v1"), observe=lambda square, info: f"You are on square {square}.")
    >>> env.reset(seed=0)[0]
    'You are on square 0.'

    The first applicable conversion is used: ``observe``; text unchanged; a map or hand for Gymnasium's own toy-text
    games, and a list of visible objects for MiniGrid; the value formatted by its space, with field names from the
    docstring. State numbers, and spaces that cannot be formatted, are shown as the environment's ``"ansi"`` rendering
    with colours as words.

    Args:
        env: Any environment.
        observe: Function ``(observation, info) -> str``. Default: as described above.

    Raises:
        NotTextError: The observations cannot be converted to text.
    """

    state_part = None

    def __init__(self, env: gym.Env[Any, Any], observe: Observe | None = None) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, observe=observe)
        gym.Wrapper.__init__(self, env)
        self.observation_space = AnyText()
        self._observe = observe or _default(env)
        self._given, self._said_of = observe is not None, env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._meet()
        return self._observe(observation, info), info

    def step(self, action: Any) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._observe(observation, info), reward, terminated, truncated, info

    def _meet(self) -> None:
        """Choose the conversion anew if ``Levels`` has switched to another level."""
        if not self._given and self.env.unwrapped is not self._said_of:
            self._observe, self._said_of = _default(self.env), self.env.unwrapped


def _shown(space: gym.Space[Any], names: tuple[str, ...], observation: Any, info: dict[str, Any]) -> str:
    return render(space, observation, names)


def _rendered(env: gym.Env[Any, Any], observation: Any, info: dict[str, Any]) -> str:
    return marks(str(env.render())).strip("\n")


def _same(observation: Any, info: dict[str, Any]) -> str:
    return "" if observation is None else str(observation)


def _default(env: gym.Env[Any, Any]) -> Observe:
    space = env.observation_space
    if holds_text(space):
        return _same
    untouched = space is env.unwrapped.observation_space
    if untouched and (own := toy_text(env) or minigrid_text(env)) is not None:
        return own
    if (bare := isinstance(space, gym.spaces.Discrete)) and _renders(env):
        return partial(_rendered, env)
    names = field_names(env) if untouched else ()
    try:
        check(space)
    except NotTextError as error:
        if not bare and _renders(env):
            return partial(_rendered, env)
        raise NotTextError(f"{env} cannot be converted to text: {error}") from error
    return partial(_shown, space, names)


def _renders(env: gym.Env[Any, Any]) -> bool:
    """Return True if the environment renders as text; if it has no render mode, set ``"ansi"``."""
    if "ansi" not in env.unwrapped.metadata.get("render_modes", ()):
        return False
    if env.unwrapped.render_mode is None:
        env.unwrapped.render_mode = "ansi"
    return bool(env.unwrapped.render_mode == "ansi")
