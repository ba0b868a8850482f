"""Conversion of any environment to text: observations, actions, or both."""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, Literal, SupportsFloat, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gym_trl.errors import ConfigError, NotTextError
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText, holds, holds_text
from gym_trl.text import counted
from gym_trl.text.discovery import action_names, field_names, marks
from gym_trl.text.spaces import check, check_actions, explain, parse, render, sampler, write
from gym_trl.types import Policy
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import changed_by, instructions_of, text_of
from gym_trl.wrappers.minigrid_text import minigrid_text
from gym_trl.wrappers.text_wrapper import TextWrapper
from gym_trl.wrappers.toy_text import toy_text
from gym_trl.wrappers.traits import random_policy_of

RENDER = "render"
"""Value of ``observe`` with which the environment's rendering as text is shown."""
Observe: TypeAlias = Callable[[Any, dict[str, Any]], str] | Literal["render"]
"""Function ``(observation, info) -> str``, or ``"render"``."""
_Read: TypeAlias = Callable[[Any, dict[str, Any]], str]
Act = Callable[[str], Any]
"""Function from text to an action; raises ``ValueError`` with a hint if the text is not a valid action."""


def as_text(env: gym.Env[Any, Any], *, observe: Observe | None = None, act: Act | None = None) -> gym.Env[str, str]:
    """Return ``env`` with text observations and text actions; a text environment is returned unchanged.

    >>> import gymnasium as gym
    >>> env = as_text(gym.make("FrozenLake-v1", is_slippery=False))
    >>> print(env.reset(seed=0)[0])
    *FFF
    FHFH
    FFFH
    HFFG
    >>> env.step("Move down")[0].splitlines()[1]
    '*HFH'

    Args:
        env: Any environment.
        observe: Function ``(observation, info) -> str``. Default: see ``TextObservation``.
        act: Function ``str -> action``. Default: see ``TextAction``.

    Raises:
        NotTextError: Observations or actions cannot be converted to text, and ``observe`` or ``act`` is missing.
    """
    if observe is not None or not holds_text(env.observation_space):
        env = TextObservation(env, observe)
    if act is not None or not holds_text(env.action_space):
        env = TextAction(env, act)
    return env


class TextObservation(TextWrapper):
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
    games, and a list of visible objects for MiniGrid; the value as ``gym_trl.text.spaces.render`` shows it, with field
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


class TextAction(FrozenAfterEnd):
    """Wrapper that plays an environment with text actions.

    >>> import gymnasium as gym
    >>> env = TextAction(gym.make("FrozenLake-v1", is_slippery=False))
    >>> _ = env.reset(seed=0)
    >>> int(env.step("move right")[0])
    1
    >>> env.step("fly")[0]
    'Not an action. Answer with Move left, Move down, Move right or Move up.'
    >>> env.instructions.splitlines()[-1]
    'Answer with Move left, Move down, Move right or Move up.'

    Action names come from the environment (``action_names`` in ``gym_trl.text.discovery``); numbers work as well.
    Actions of other spaces are written as numbers or as JSON (``gym_trl.text.spaces``). A text that is not an action
    does not reach the environment: the observation explains the valid actions, and ``info["action_valid"]`` is false.
    If ``info`` has an ``action_mask``, ``info["admissible_actions"]`` lists the names.

    Args:
        env: Environment whose observations are text.
        act: Function from text to an action. Default: as described above.
        names: Names of the actions of a ``Discrete`` space, instead of the environment's.

    Raises:
        ConfigError: There are more or fewer names than actions, or two are the same.
        NotTextError: Actions cannot be written as text, and ``act`` is missing.
    """

    def __init__(self, env: gym.Env[Any, Any], act: Act | None = None, names: tuple[str, ...] | None = None) -> None:
        super().__init__(env, act=act, names=names)
        self.action_space = AnyText()
        self.names = tuple(action_names(env) if names is None else names)
        if names and isinstance(env.action_space, spaces.Discrete):
            number, different = int(env.action_space.n), {name.strip() for name in self.names}
            if not number == len(self.names) == len(different):
                raise ConfigError(f"names must be {counted(number, 'different name')}, got {self.names!r:.200}")
        self._act = act
        self._takes_text = holds_text(env.action_space)
        if act is None and not self._takes_text:
            check_actions(env.action_space)

    @property
    def instructions(self) -> str:
        """The environment's instructions (``instructions_of``), and a sentence on actions."""
        rules = instructions_of(self.env)
        how = "" if self._act or self._takes_text else f"Answer with {explain(self.env.action_space, self.names)}."
        return "\n".join(part for part in (rules, how) if part)

    @property
    def converted_space(self) -> spaces.Space[Any] | None:
        """Action space to which texts are converted; ``None`` if they are not, or by a function of the user's."""
        return None if self._act is not None or self._takes_text else self.env.action_space

    def rewrite(self, text: str) -> str | None:
        """Return an action as ``random_policy`` writes it; ``None`` if the text is not an action.

        >>> import gymnasium as gym
        >>> env = TextAction(gym.make("FrozenLake-v1"))
        >>> env.rewrite("move UP"), env.rewrite("3"), env.rewrite("fly")
        ('Move up', 'Move up', None)
        """
        if self.converted_space is None:
            return text
        try:
            return write(self.converted_space, self._read(text), self.names)
        except ValueError:
            return None

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that samples from the environment's action space, or from the actions that ``info`` allows.

        The draws are independent of those of an environment with the same seed.
        """
        if (make := random_policy_of(self.env)) is not None:
            return make(seed)
        draw, rng = sampler(self.env.action_space, seed), np.random.default_rng(derive_seed(seed, "listed"))

        def act(observation: str) -> str:
            if listed := listed_actions(self.env, self.last_info):
                return listed[int(rng.integers(len(listed)))]
            action = draw([self.instructions, observation], self.last_info.get("action_mask"))
            return str(action) if self._takes_text else write(self.env.action_space, action, self.names)

        return act

    def _restart(self, observation: Any, info: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return observation, self._named(info)

    def _step(self, action: str) -> Step:
        try:
            made = self._read(action)
        except ValueError as error:
            return str(error), 0.0, False, False, {"action_valid": False}
        observation, reward, terminated, truncated, info = self.env.step(made)
        return (
            observation,
            reward,
            terminated,
            truncated,
            self._named({"action_valid": True, **info}),
        )

    def _read(self, action: str) -> Any:
        if self._act is not None:
            return self._act(action)
        return action if self._takes_text else parse(self.env.action_space, action, self.names)

    def _named(self, info: dict[str, Any]) -> dict[str, Any]:
        mask = info.get("action_mask")
        if mask is None or "admissible_actions" in info or len(self.names) != np.size(mask):
            return info
        return {**info, "admissible_actions": [name for name, allowed in zip(self.names, mask, strict=True) if allowed]}
