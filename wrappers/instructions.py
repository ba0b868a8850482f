"""What is said before a game begins."""

from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.inner import instructions_of


class Instructions(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    r"""Give an environment instructions, instead of its own or below them.

    >>> import gymnasium as gym
    >>> env = gym.make("TrlEnv/Echo-v0")
    >>> Instructions(env, "Say it again.").instructions
    'Say it again.'
    >>> Instructions(env, "Think first.", append=True).instructions.splitlines()[-1]
    'Think first.'

    They are what a rollout says before the first observation. Wrappers that are put around this one add their own
    sentences to them, as ``ParseAction`` does; ``Instructions(env, "")`` around those leaves everything out.

    Args:
        env: Any environment.
        text: What to say.
        append: Say it on a line of its own below what the environment says.

    Raises:
        ConfigError: ``text`` is not a string.
    """

    def __init__(self, env: gym.Env[Any, Any], text: str, append: bool = False) -> None:
        if not isinstance(text, str):
            raise ConfigError(f"instructions must be text, got {type(text).__name__}: {text!r:.80}")
        gym.utils.RecordConstructorArgs.__init__(self, text=text, append=append)
        gym.Wrapper.__init__(self, env)
        self.text = text
        self.append = append

    @property
    def instructions(self) -> str:
        """What is said before the first observation."""
        own = instructions_of(self.env) if self.append else ""
        return "\n".join(part for part in (own, self.text) if part)
