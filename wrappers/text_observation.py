"""Wrapper that converts observations to text."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal, SupportsFloat, TypeAlias

import gymnasium as gym
import numpy as np

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.spaces import AnyText, holds, holds_text
from gym_trl.text.discovery import field_names, marks
from gym_trl.text.textify import check, render
from gym_trl.wrappers.inner import changed_by, text_of
from gym_trl.wrappers.minigrid_text import minigrid_text
from gym_trl.wrappers.toy_text import toy_text

RENDER = "render"
"""Value of ``observe`` with which the environment's rendering as text is shown."""
Observe: TypeAlias = Callable[[Any, dict[str, Any]], str] | Literal["render"]
"""Function ``(observation, info) -> str``, or ``"render"``."""
_Read: TypeAlias = Callable[[Any, dict[str, Any]], str]


class TextObservation(gym.Wrapper[str, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Wrapper that converts an environment's observations to text.

    >>> import gymnasium as gym
    >>> env = TextObservation(gym.make("CartPole-v1"))
    >>> print(env.reset(seed=0)[0])
    Cart Position: 0.013696169
    Cart Velocity: -0.02302133
    Pole Angle: -0.045902647
    Pole Angular Velocity: -0.048347235
    >>> env = TextObservation(gym.make("FrozenLake-v1"), observe=lambda square, info: f"You are on square {square}.")
    >>> env.reset(seed=0)[0]
    'You are on square 0.'

    The first applicable conversion is used: ``observe``; text unchanged; a map or hand for Gymnasium's own toy-text
    games, and a list of visible objects for MiniGrid; the value as ``gym_trl.text.textify.render`` shows it, with field
    names from the docstring. A wrapper that changes the observations is never undone: around it neither the conversions
    of these games nor names or renderings of the environment are used.

    Args:
        env: Any environment.
        observe: Function ``(observation, info) -> str``; or ``"render"``, which shows the environment's ``"ansi"``
            rendering instead of the observation, with colours as words. Default: as described above.

    Raises:
        ConfigError: ``observe`` is neither, or the environment's rendering cannot be shown.
        NotTextError: The observations cannot be converted to text.
    """

    state_part = None

    def __init__(self, env: gym.Env[Any, Any], observe: Observe | None = None) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, observe=observe)
        gym.Wrapper.__init__(self, env)
        self.observation_space = AnyText()
        self._asked = observe
        self._choose()
        self._at_start = self._warned = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._meet()
        self._check(observation, "reset")
        self._at_start = True
        return self._observe(observation, info), info

    def step(self, action: Any) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._at_start:  # later ones are rarely of another kind
            self._check(observation, "step")
            self._at_start = False
        return self._observe(observation, info), reward, terminated, truncated, info

    def _check(self, observation: Any, where: str) -> None:
        """Refuse a missing observation, and warn once of one that is not in its space."""
        space = self.env.observation_space
        if callable(self._asked) or holds_text(space) or holds(space, observation):
            return
        shape = f" of {observation.dtype} {observation.shape}" if isinstance(observation, np.ndarray) else ""
        got = f"{where} of {self.env} gave {type(observation).__name__}{shape}, which is not in {space}"
        if observation is None:
            raise TypeError(f"{got}: return an observation")
        if not self._warned:
            self._warned = True
            gym.logger.warn("%s", f"{got}; the model reads it as it is")

    def _meet(self) -> None:
        """Choose the conversion anew if ``Levels`` has switched to another level."""
        if not callable(self._asked) and self.env.unwrapped is not self._chosen_for:
            self._choose()

    def _choose(self) -> None:
        self._chosen_for = self.env.unwrapped
        self._observe, self.shown_instead = _conversion(self.env, self._asked)


def _shown(space: gym.Space[Any], names: tuple[str, ...], observation: Any, info: dict[str, Any]) -> str:
    return render(space, observation, names)


def _rendered(env: gym.Env[Any, Any], observation: Any, info: dict[str, Any]) -> str:
    return marks(str(env.render())).strip("\n")


def _same(observation: Any, info: dict[str, Any]) -> str:
    return text_of(observation)


def _conversion(env: gym.Env[Any, Any], observe: Observe | None) -> tuple[_Read, str]:
    """Return the function that converts observations, and what it shows in place of them, if it does."""
    if callable(observe):
        return observe, ""
    changed = changed_by(env)
    if observe is not None:
        if observe != RENDER:
            raise ConfigError(f'observe must be a function or "{RENDER}", got {observe!r}')
        _check_renders(env, changed)
        return partial(_rendered, env), 'the environment\'s rendering (observe="render")'
    space = env.observation_space
    if holds_text(space):
        return _same, ""
    if not changed:
        if (game := toy_text(env)) is not None:
            return game, "the description of gym_trl.wrappers.toy_text"
        if (grid := minigrid_text(env)) is not None:
            return grid, "the description of gym_trl.wrappers.minigrid_text"
    try:
        check(space)
    except NotTextError as error:
        hint = f', or show its rendering with observe="{RENDER}"' if not changed and "ansi" in _modes(env) else ""
        raise NotTextError(f"{env} cannot be converted to text: {error}{hint}") from error
    return partial(_shown, space, () if changed else field_names(env)), ""


def _check_renders(env: gym.Env[Any, Any], changed: str) -> None:
    """Check that an environment renders as text; set the mode ``"ansi"`` if it has none."""
    asked = f'observe="{RENDER}" shows the environment\'s rendering as text'
    if changed:
        raise ConfigError(f"{asked}, which would undo {changed}: leave out one of them")
    if "ansi" not in _modes(env):
        raise ConfigError(f'{asked}, and {env} has no render mode "ansi": give a function')
    if env.unwrapped.render_mode is None:
        env.unwrapped.render_mode = "ansi"
    if env.unwrapped.render_mode != "ansi":
        raise ConfigError(f'{asked}, and {env} was made with render_mode={env.unwrapped.render_mode!r}, not "ansi"')


def _modes(env: gym.Env[Any, Any]) -> Collection[str]:
    return env.unwrapped.metadata.get("render_modes") or ()
