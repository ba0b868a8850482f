"""One environment for all difficulties, of which each task names its own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium as gym

from gym_trl.errors import ConfigError


class Levels(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Play the level that ``reset`` is told in ``options["level"]``; each level is made with arguments of its own.

    >>> import gymnasium as gym
    >>> env = Levels(gym.make("TrlEnv/GuessNumber-v0"), [{"high": 10}, {"high": 1000, "turns": 10}])
    >>> env.reset(seed=0)[0], env.reset(seed=0, options={"level": 1})[0]
    ('Guess 1 to 10 in 6 tries.', 'Guess 1 to 1000 in 10 tries.')

    The level belongs to the task and not to the environment, so that all members of a group play the same one, whoever
    plays them and whatever was played before. What raises the level as the model learns is ``GymSpec``'s
    ``curriculum``. A level's environment is made when it is first played, with all wrappers that are inside of this
    one; other options are for its own ``reset``.

    Args:
        env: An environment that ``gym.make`` made, and its wrappers.
        levels: Arguments for ``gym.make`` by level, from easy to hard, instead of those that ``env`` has.
        level: The one that is played where the options name none.
        make: Makes the environment of a level from its arguments, where ``gym.make(env.spec)`` would not do.

    Raises:
        ConfigError: no levels, or an environment that has no spec; at reset, a level that does not exist.
    """

    swaps_env = True

    def __init__(
        self,
        env: gym.Env[Any, Any],
        levels: Sequence[Mapping[str, Any]],
        level: int = 0,
        make: Callable[..., gym.Env[Any, Any]] | None = None,
    ) -> None:
        if not levels:
            raise ConfigError("levels must be a list of arguments with at least one level")
        if make is None and env.spec is None:
            raise ConfigError(f"{env} has no spec to make its levels from: it must be made by gym.make, or have make=")
        gym.utils.RecordConstructorArgs.__init__(self, levels=levels, level=level, make=make)
        gym.Wrapper.__init__(self, env)
        self.levels = [dict(arguments) for arguments in levels]
        self.level = self._checked(level)
        self._make = make
        self._base = env
        self._made: dict[int, gym.Env[Any, Any]] = {}
        _ = self.spec  # is kept from now on: it is that of the environment given, and not of a level
        self.env = self._at(self.level)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode on ``options["level"]``."""
        options = dict(options or {})
        self.env = self._at(self._checked(options.pop("level", self.level)))
        return self.env.reset(seed=seed, options=options or None)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Play an action."""
        return self.env.step(action)

    def close(self) -> None:
        """Close the environments of all levels."""
        for env in (self._base, *self._made.values()):
            env.close()

    def _checked(self, level: Any) -> int:
        if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level < len(self.levels):
            raise ConfigError(f"level must be an integer from 0 to {len(self.levels) - 1}, got {level!r}")
        return level

    def _at(self, level: int) -> gym.Env[Any, Any]:
        if level not in self._made:
            arguments = self.levels[level]
            if self._make is not None:
                self._made[level] = self._make(**arguments)
            else:
                assert self._base.spec is not None
                self._made[level] = gym.make(self._base.spec, **arguments)
        return self._made[level]
