"""Conversion of any environment to text: observations, actions, or both."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import gymnasium as gym

from gym_trl.envs.external.minigrid import describe, is_minigrid
from gym_trl.errors import ConfigError, NotTextError
from gym_trl.spaces import AnyText, holds_text
from gym_trl.text.discovery import action_names, field_names, marks
from gym_trl.text.spaces import check, check_actions, explain, parse, render
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.base import Reset, Step, TextWrapper, instructions_of, layers_of, text_of

Observe: TypeAlias = Callable[[Any, dict[str, Any]], str] | Literal["render"]
"""Function ``(observation, info) -> str``, or ``"render"``."""
Act: TypeAlias = Callable[[str], Any]
"""Function from text to an action; raises ``ValueError`` with a hint if the text is not a valid action."""


def as_text(env: gym.Env[Any, Any], *, observe: Observe | None = None, act: Act | None = None) -> gym.Env[str, str]:
    """Return ``env`` with text observations and text actions; a text environment is returned unchanged.

    >>> env = as_text(gym.make("FrozenLake-v1", is_slippery=False), observe="render")
    >>> env.reset(seed=0)[0].splitlines()[0], env.step("Move down")[0].splitlines()[1:3]
    ('[S|on red]FFF', ['SFFF', '[F|on red]HFH'])

    Args:
        env: Any environment.
        observe: Function ``(observation, info) -> str``, or ``"render"``. Default: see ``TextObservation``.
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

    >>> env = TextObservation(gym.make("CartPole-v1"))
    >>> print(env.reset(seed=0)[0])
    Cart Position: 0.013696169
    Cart Velocity: -0.02302133
    Pole Angle: -0.045902647
    Pole Angular Velocity: -0.048347235
    >>> env = TextObservation(gym.make("FrozenLake-v1"), observe=lambda square, info: f"You are on square {square}.")
    >>> env.reset(seed=0)[0]
    'You are on square 0.'

    Without ``observe`` text is unchanged, MiniGrid is described by a list of visible objects, and any other value is
    shown as ``gym_trl.text.spaces.render`` does, with field names from the docstring. A wrapper that changes the
    observations is never undone: around it neither names nor renderings of the environment are used.

    Args:
        env: Any environment.
        observe: Function ``(observation, info) -> str``; or ``"render"``, which shows the environment's ``"ansi"``
            rendering instead of the observation, with colours as words. Default: as described above.

    Raises:
        ConfigError: ``observe`` is neither, or the environment's rendering cannot be shown.
        NotTextError: The observations cannot be converted to text.
    """

    def __init__(self, env: gym.Env[Any, Any], observe: Observe | None = None) -> None:
        super().__init__(env, observe=observe)
        self.observe = observe
        changed = changed_by(env)
        self._names = () if changed else field_names(env)
        self._minigrid = observe is None and not changed and is_minigrid(env)
        if observe == "render":
            own = env.unwrapped
            if changed:
                raise ConfigError(f'observe="render" would undo {changed}: leave out one of them')
            if "ansi" not in (own.metadata.get("render_modes") or ()) or own.render_mode not in (None, "ansi"):
                raise ConfigError(f'observe="render" needs the render mode "ansi", which {env} has not')
            own.render_mode = "ansi"
        elif observe is None and not self._minigrid:
            try:
                check(env.observation_space)
            except NotTextError as error:
                hint = "" if changed else ', or show its rendering with observe="render" if it renders text'
                raise NotTextError(f"{env} cannot be converted to text: {error}{hint}") from error
        elif observe is not None and not callable(observe):
            raise ConfigError(f'observe must be a function or "render", got {observe!r}')
        self.observation_space = AnyText()

    def shown(self, observation: Any, info: dict[str, Any], *, over: bool = False) -> str:
        """Return an observation as text."""
        if callable(self.observe):
            return self.observe(observation, info)
        if self.observe == "render":
            return marks(str(self.env.render())).strip("\n")
        if observation is None:
            raise TypeError(f"{self.env} returned no observation")
        if self._minigrid:
            return describe(observation)
        space = self.env.observation_space
        return text_of(observation) if holds_text(space) else render(space, observation, self._names)


class TextAction(TextWrapper):
    """Wrapper that plays an environment with text actions.

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
    If ``info`` says which actions are allowed, ``info["admissible_actions"]`` lists them as texts.

    Args:
        env: Environment whose observations are text.
        act: Function from text to an action. Default: as described above.

    Raises:
        NotTextError: Actions cannot be written as text, and ``act`` is missing.
    """

    def __init__(self, env: gym.Env[Any, Any], act: Act | None = None) -> None:
        super().__init__(env, act=act)
        self.names = tuple(action_names(env))
        self.converted_space = None if act is not None or holds_text(env.action_space) else env.action_space
        """Action space to which texts are converted; ``None`` if they are not, or by a function of the user's."""
        if self.converted_space is not None:
            check_actions(self.converted_space)
        self.action_space = AnyText()
        self._act = act

    @property
    def instructions(self) -> str:
        """The environment's instructions, and a sentence on actions."""
        space = self.converted_space
        how = "" if space is None else f"Answer with {explain(space, self.names)}."
        return "\n".join(part for part in (instructions_of(self.env), how) if part)

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """List the allowed actions by their names."""
        return observation, self._named(info)

    def act(self, action: str) -> Step:
        """Play the action that a text stands for."""
        try:
            if self._act is not None:
                made = self._act(action)
            else:
                made = action if self.converted_space is None else parse(self.converted_space, action, self.names)
        except ValueError as error:
            return str(error), 0.0, False, False, {"action_valid": False}
        observation, reward, terminated, truncated, info = self.env.step(made)
        return observation, reward, terminated, truncated, self._named({"action_valid": True, **info})

    def _named(self, info: dict[str, Any]) -> dict[str, Any]:
        listed = listed_actions(self.env, info, self.names)
        return info if listed is None else {**info, "admissible_actions": listed}


def changed_by(env: gym.Env[Any, Any]) -> str:
    """Return the class of a wrapper that changes an environment's observations; empty if they are its own.

    >>> changed_by(gym.make("FrozenLake-v1")), changed_by(gym.wrappers.FlattenObservation(gym.make("FrozenLake-v1")))
    ('', 'FlattenObservation')
    """
    for layer in layers_of(env)[:-1]:
        space, inside = layer.observation_space, layer.env.observation_space
        # A property may make the space anew each time; then equal spaces are taken for the same.
        same = space is inside or (space == inside and inside is not layer.env.observation_space)
        if isinstance(layer, gym.ObservationWrapper) or not same:
            return type(layer).__name__
    return ""
