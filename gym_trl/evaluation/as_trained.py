"""Environments as a training with some of ``GymSpec``'s options wraps them, for whatever measures them."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import gymnasium as gym

from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.wrappers.as_text import as_text
from gym_trl.wrappers.declare_success import declare_success
from gym_trl.wrappers.parse_action import action_writer

MakeEnv: TypeAlias = Callable[..., gym.Env[Any, Any]]

CONVERSION = {"action_format", "cut_actions", "observe", "act", "instructions", "state_key"}
"""Options that convert an environment to text: all scores that it declares still apply."""
_OF_INVALID_ACTIONS = {"invalid_penalty", "end_after_invalid"}
"""Options under which the optimum and the scores of random play and the solver apply: these play valid actions."""


def text_env(make: Callable[[], gym.Env[Any, Any]], name: str = "") -> TextEnvironment:
    """Return an environment with text and declared success; ``name``, which executors give, has no effect."""
    return as_text(declare_success(make()))


def as_trained(make: MakeEnv, options: Mapping[str, Any]) -> MakeEnv:
    """Return a function that makes environments as a training with these options does; ``make`` if there are none.

    >>> env = as_trained(lambda: gym.make("FrozenLake-v1"), {"turn_limit": 1, "action_format": "boxed"})()
    >>> _ = env.reset(seed=0)
    >>> *_, truncated, info = env.step("Move left")
    >>> truncated, info["action"]
    (True, 'Move left')

    Policies of a check write actions without marks; each is marked as a model would, if there is an ``action_format``.

    Raises:
        ConfigError: an option is invalid.
    """
    return _Maker(make, options) if options else make


class _Maker:
    def __init__(self, make: MakeEnv, options: Mapping[str, Any]) -> None:
        own = {name: value for name, value in options.items() if name != "state_key"}  # see search_keys
        self._spec = EnvSpec.of_options(make, {"action_format": None, **own})
        self._as_valid = options.keys() <= CONVERSION | _OF_INVALID_ACTIONS

    def __call__(self) -> TextEnvironment:
        [name] = self._spec.weights
        return _Written(self._spec.make(name), valid_apply=self._as_valid)


class _Written(gym.Wrapper[str, str, str, str]):
    """Wrapper that marks actions as a model does, and declares no scores of another task.

    Args:
        env: Environment of a training.
        valid_apply: The declared optimum, of policies without invalid actions, applies to it.
    """

    def __init__(self, env: TextEnvironment, *, valid_apply: bool) -> None:
        super().__init__(env)
        self._write = action_writer(env)
        if not valid_apply:
            self.optimal_success = self.optimal_return = None

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Play an action."""
        try:
            response = self._write(action)
        except ConfigError:  # the format cannot express it, so that it is an unreadable response
            response = action
        return self.env.step(response)
