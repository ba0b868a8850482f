"""Adapter to the NetHack Learning Environment."""

from typing import Any

import gymnasium as gym

from gym_trl.envs.external.nethack_game import NetHackGame
from gym_trl.errors import ConfigError


class NetHack(NetHackGame):
    """Task of the NetHack Learning Environment, with its terminal screen as observation.

    ::

        env = gym.make("External/NetHack-v0", task="NetHackScore-v0")
        env.reset(seed=0)[0].splitlines()[0]
        'Hello Agent, welcome to NetHack!  You are a neutral male human Monk.'
        env.step("far east")

    An observation is the screen without empty lines. Actions are the names of the task's actions: directions
    (``north``, ``far north``) and commands such as ``kick``; ``info["admissible_actions"]`` lists them, and other
    actions do not reach the game. NetHack ignores Gymnasium's seeds and reseeds itself during a game; the adapter sets
    fixed seeds for each episode, from which the moon and the time of day follow, too. Names and prices of shops still
    depend on the clock (NLE's issue 129). Rewards are the task's. ``success`` is a task that reports success, or an
    ascension; a task without either (``NetHackScore-v0``) never succeeds. The task ends after 5,000 steps, so set a
    ``turn_limit``.

    Args:
        task: Gymnasium id of the task; ``NetHackChallenge-v0`` cannot be seeded.
        render_mode: ``None``; rendering is not supported.
        **settings: Arguments of the task.

    Raises:
        MissingDependencyError: The NetHack Learning Environment is not installed.
        ConfigError: The task does not exist, or it cannot be seeded.
    """

    extra = "nethack"

    def __init__(self, task: str = "NetHackScore-v0", *, render_mode: None = None, **settings: Any) -> None:
        super().__init__()
        self._import("nle", "nle.env")
        if task not in (known := sorted(env_id for env_id in gym.registry if env_id.startswith("NetHack"))):
            raise ConfigError(f"NetHack has no task {task!r}; it has {known}")
        self.task = task
        made: Any = gym.make(task, disable_env_checker=True, **{"fix_moon_phase": True} | settings)
        try:
            made.unwrapped.seed(core=1, disp=1, reseed=False)
        except RuntimeError as error:
            made.close()
            raise ConfigError(f"{task} cannot be trained on: {error}") from error
        self._play_in(made.unwrapped)
        self.instructions = (
            f"You play NetHack. Answer with one of: {', '.join(self._actions)}. The screen has the message above, the "
            "map with you as @, and your state below."
        )

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each task of NetHack."""
        cls._import("nle", "nle.env")
        return [{"task": env_id} for env_id in sorted(gym.registry) if env_id.startswith("NetHack")]
