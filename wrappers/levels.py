"""Wrapper with several difficulty levels, chosen by the task."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.wrappers.base import Reset, TextWrapper


class Levels(TextWrapper):
    """Wrapper that plays level ``options["level"]`` of ``reset``, or 0; each level has its own ``gym.make`` arguments.

    >>> env = Levels(gym.make("TrlEnv/GuessNumber-v0"), [{"high": 10}, {"high": 1000, "turns": 10}])
    >>> env.reset(seed=0)[0], env.reset(seed=0, options={"level": 1})[0]
    ('Guess 1 to 10 in 6 tries.', 'Guess 1 to 1000 in 10 tries.')

    The level is part of the task, so all members of a group play the same level, on any worker and after any other
    episode. ``GymSpec``'s ``curriculum`` raises the level as the model learns. A level's environment is made when it is
    first played, with all wrappers inside of this one; other reset options are passed on to it.

    Args:
        env: Environment made by ``gym.make``, with its wrappers.
        levels: Arguments of ``gym.make`` by level, from easy to hard, which override those of ``env``.
        make: Function that makes the environment of a level from its arguments. Default: ``gym.make(env.spec)``.

    Raises:
        ConfigError: ``levels`` is empty, or the environment has no spec; at reset, the level does not exist.
    """

    reads_text = False

    def __init__(
        self,
        env: gym.Env[Any, Any],
        levels: Sequence[Mapping[str, Any]],
        make: Callable[..., gym.Env[Any, Any]] | None = None,
    ) -> None:
        if not levels:
            raise ConfigError("levels must be a list of arguments with at least one level")
        if make is None and env.spec is None:
            raise ConfigError(f"{env} has no spec to make its levels from: it must be made by gym.make, or have make=")
        super().__init__(env, levels=levels, make=make)
        self.levels = [dict(arguments) for arguments in levels]
        self._make, self._base = make, env
        self._made: dict[int, gym.Env[Any, Any]] = {}
        _ = self.spec  # cached now: the spec of the given environment, not of a level
        self.env = self._at(0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        """Start an episode on ``options["level"]``."""
        options = dict(options or {})
        self.env = self._at(options.pop("level", 0))
        return super().reset(seed=seed, options=options or None)

    def close(self) -> None:
        """Close the environments of all levels."""
        for env in (self._base, *self._made.values()):
            env.close()

    def _at(self, level: Any) -> gym.Env[Any, Any]:
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < len(self.levels):
            raise ConfigError(f"level must be an integer from 0 to {len(self.levels) - 1}, got {level!r}")
        if level not in self._made:
            make = self._make or self._remake
            self._made[level] = make(**self.levels[level])
        return self._made[level]

    def _remake(self, **arguments: Any) -> gym.Env[Any, Any]:
        assert self._base.spec is not None
        return gym.make(self._base.spec, **arguments)
