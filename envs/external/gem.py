"""Adapter to the environments of GEM."""

import logging
from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError


class GEM(Adapter):
    r"""Environment of GEM, whose actions are in ``\boxed{}``.

    ::

        env = gym.make("External/GEM-v0", game="game:GuessTheNumber-v0-easy")
        env.step("\\boxed{5}")[0]
        'At turn 1, you guessed 5, and the target number is higher than 5.\nEnter your next guess.'

    The observation includes GEM's ``info["suffix"]``, which holds the board of some games. The environments parse
    ``\boxed{}`` themselves, so pass responses on unchanged: ``GymSpec("External/GEM-v0", env_kwargs={"game": ...},
    action_format=None)``. Each episode has a new environment and its own global random generators, because GEM draws
    from the process-wide ones. ``success`` is an end with a reward of 1.0.

    Args:
        game: Id of a GEM environment.
        render_mode: ``None``; rendering is not supported.
        **settings: Arguments of the environment.

    Raises:
        MissingDependencyError: GEM is not installed.
        ConfigError: The environment does not exist.
    """

    extra = "gem"

    def __init__(self, game: str, *, render_mode: None = None, **settings: Any) -> None:
        super().__init__()
        root = logging.getLogger()
        handlers, level = list(root.handlers), root.level
        try:
            gem = self._import("gem", "gem.envs")
        finally:  # the import configures logging of the whole process
            root.handlers[:] = handlers
            root.setLevel(level)
        if game not in gem.envs.registration.ENV_REGISTRY:
            raise ConfigError(f"GEM has no environment {game!r}")
        self.game = game
        self._make, self._settings = gem.make, settings
        self._env: Any = None

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each game of GEM; its questions need data from the hub."""
        cls._import("gem", "gem.envs")
        from gem.envs.registration import ENV_REGISTRY

        return [{"game": name} for name in sorted(ENV_REGISTRY) if name.startswith("game:")]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._env = self._make(self.game, **self._settings)
        return _shown(*self._env.reset(seed=seed)), {}

    def _play(self, action: str) -> Played:
        observation, reward, terminated, truncated, info = self._env.step(action)
        # At its turn limit GEM sets both flags.
        over = bool(terminated) and not truncated
        shown = str(observation) if terminated or truncated else _shown(observation, info)
        return Played(shown, float(reward), over, bool(truncated), success=over and float(reward) >= 1.0)


def _shown(observation: Any, info: dict[str, Any]) -> str:
    return "\n".join(str(part) for part in (observation, info.get("suffix")) if part)
