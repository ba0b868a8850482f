"""Wrapper that sets an environment's instructions."""

from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.base import TextWrapper, instructions_of


class Instructions(TextWrapper):
    r"""Wrapper that replaces an environment's instructions or appends to them.

    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> Instructions(env, "Say it again.").instructions
    'Say it again.'
    >>> Instructions(env, "Think first.", append=True).instructions.splitlines()[-1]
    'Think first.'

    A rollout shows the instructions before the first observation. Wrappers around this one, such as ``ParseAction``,
    add their own sentences; ``Instructions(env, "")`` around those removes all.

    Args:
        env: Any environment.
        text: The instructions.
        append: Append ``text`` as a new line to the environment's instructions.

    Raises:
        ConfigError: ``text`` is not a string.
    """

    reads_text = False

    def __init__(self, env: gym.Env[Any, Any], text: str, append: bool = False) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"instructions must be text, got {type(text).__name__}: {text!r:.80}")
        super().__init__(env, text=text, append=append)
        self.text, self.append = text, append

    @property
    def instructions(self) -> str:
        """Text before the first observation."""
        own = instructions_of(self.env) if self.append else ""
        return "\n".join(part for part in (own, self.text) if part)
