"""Wrapper that sets an environment's instructions."""

from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.base import TextWrapper


class Instructions(TextWrapper):
    """Wrapper that replaces an environment's instructions.

    >>> Instructions(gym.make("TrlEnv/Echo-v0"), "Say it again.").instructions
    'Say it again.'

    A rollout shows the instructions before the first observation. Wrappers around this one, such as ``ParseAction``,
    add their own sentences; ``Instructions(env, "")`` around those removes all.

    Args:
        env: Any environment.
        text: The instructions.

    Raises:
        ConfigError: ``text`` is not a string.
    """

    def __init__(self, env: gym.Env[Any, Any], text: str) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"instructions must be text, got {type(text).__name__}: {text!r:.80}")
        super().__init__(env, text=text)
        self.instructions = text
        """Text before the first observation."""
