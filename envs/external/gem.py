"""Adapter to the environments of GEM."""

import logging
from typing import Any

from gym_trl.envs.external.adapter import Adapter
from gym_trl.envs.text_game import Step
from gym_trl.errors import ConfigError


class GEM(Adapter):
    r"""Environment of GEM, whose actions are in ``\boxed{}``.

    ::

        env = gym.make("External/GEM-v0", game="game:GuessTheNumber-v0-easy")
        env.step("\\boxed{5}")[0]
        'At turn 1, you guessed 5, and the target number is higher than 5.\nEnter your next guess.'

    The observation includes GEM's ``info["suffix"]``, which holds the board of some games. The environments parse
    ``\boxed{}`` themselves, so pass responses on unchanged: ``GymSpec("External/GEM-v0", env_kwargs={"game": ...},
    action_format=None)``. ``success`` is an end with a reward of 1.0.

    Args:
        game: Id of a GEM environment.
        **settings: Arguments of the environment.

    Raises:
        MissingDependencyError: GEM is not installed.
        ConfigError: The environment does not exist.
    """

    extra = "gem"

    def __init__(self, game: str, **settings: Any) -> None:
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
        self.game, self.settings, self._make = game, settings, gem.make

    def begin(self, seed: int) -> tuple[str, dict[str, Any]]:
        """Make an environment and reset it."""
        self._env = self._make(self.game, **self.settings)
        return _shown(*self._env.reset(seed=seed)), {}

    def play(self, action: str) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self._env.step(action)
        done = terminated or truncated  # at its turn limit GEM sets both flags
        shown = str(observation) if done else _shown(observation, info)
        solved = done and not truncated and float(reward) >= 1.0
        return Step(shown, bool(done), bool(solved), reward=float(reward), truncated=bool(truncated))


def _shown(observation: Any, info: dict[str, Any]) -> str:
    return "\n".join(str(part) for part in (observation, info.get("suffix")) if part)
