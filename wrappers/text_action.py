"""Wrapper that converts text to actions of any space."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gym_trl.errors import ConfigError
from gym_trl.seeding import derive_seed
from gym_trl.spaces import AnyText, holds_text
from gym_trl.text.action_samples import ActionSampler
from gym_trl.text.discovery import action_names
from gym_trl.text.textify import check_actions, counted, explain, parse, write
from gym_trl.types import Policy
from gym_trl.wrappers.admissible_actions import listed_actions
from gym_trl.wrappers.frozen import FrozenAfterEnd, Step
from gym_trl.wrappers.inner import instructions_of

Act = Callable[[str], Any]
"""Function from text to an action; raises ``ValueError`` with a hint if the text is not a valid action."""


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
    Actions of other spaces are written as numbers or as JSON (``gym_trl.text.textify``). A text that is not an action
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
            check_actions(env.action_space, self.names)

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
        if self.env.has_wrapper_attr("random_policy"):
            own: Policy = self.env.get_wrapper_attr("random_policy")(seed)
            return own
        draw, rng = ActionSampler(self.env.action_space, seed), np.random.default_rng(derive_seed(seed, "listed"))

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
