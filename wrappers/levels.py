"""Wrapper with several difficulty levels, chosen by the task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.base import Reset, TextWrapper


class Levels(TextWrapper):
    """Wrapper that plays level ``options["level"]`` of ``reset``, or 0; each level has its own arguments.

    >>> env = Levels(gym.make, [{"id": "TrlEnv/GuessNumber-v0", "high": high} for high in (10, 1000)])
    >>> env.reset(seed=0)[0], env.reset(seed=0, options={"level": 1})[0]
    ('Guess 1 to 10 in 6 tries.', 'Guess 1 to 1000 in 6 tries.')

    The level is part of the task, so all members of a group play the same level, on any worker and after any other
    episode. ``GymSpec``'s ``curriculum`` raises the level as the model learns. A level's environment is made when it is
    first played; other reset options are passed on to it.

    Args:
        make: Function that makes the environment of a level, with its wrappers, from its arguments.
        levels: Arguments by level, from easy to hard.

    Raises:
        ConfigError: At reset, the level does not exist.
    """

    def __init__(self, make: Callable[..., gym.Env[Any, Any]], levels: Sequence[Mapping[str, Any]]) -> None:
        super().__init__(make(**levels[0]))
        self.levels = levels
        self._make, self._made = make, {0: self.env}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode on ``options["level"]``."""
        options = dict(options or {})
        level = options.pop("level", 0)
        if level not in range(len(self.levels)):
            raise ConfigError(f"level must be an integer from 0 to {len(self.levels) - 1}, got {level!r}")
        if level not in self._made:
            self._made[level] = self._make(**self.levels[level])
        self.env = self._made[level]
        return super().reset(seed=seed, options=options or None)

    def close(self) -> None:
        """Close the environments of all levels."""
        for env in self._made.values():
            env.close()
