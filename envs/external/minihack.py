"""Adapter to MiniHack: small tasks in the world of NetHack."""

import random
from typing import Any

import gymnasium as gym

from gym_trl.envs.external.nethack_game import NetHackGame
from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.types import Policy


class MiniHack(NetHackGame):
    """Task of MiniHack, such as a room, a maze, a river or a single skill, with NetHack's screen as observation.

    ::

        env = gym.make("External/MiniHack-v0", task="MiniHack-Room-Random-5x5-v0")
        print(env.reset(seed=0)[0])
        Hello Agent, welcome to NetHack!  You are chaotic female human Rogue.
        .....
        ..<..
        .....
        .>...
        ...@.
        env.step("northwest")

    Actions are the names of the task's actions, as in NetHack; ``info["admissible_actions"]`` lists them, and other
    actions do not reach the game. Most tasks end with ``success`` at the stairs down, ``>``, and those of a skill when
    it is used; that gives 1.0. MiniHack also takes 0.01 for an action that takes no time, which is left out here
    (``penalty_step`` brings it back). The seed decides the level and the luck; after the limit of steps of a task the
    episode is cut off. In a small room random play finds the stairs within it: set a smaller ``turn_limit``.

    The tasks that MiniHack makes from MiniGrid's (``MultiRoom``, ``Crossing``) fail with the versions of MiniGrid that
    work with Gymnasium 1, Boxoban's levels must be downloaded with MiniHack's script, and custom tasks need a
    description: these are refused.

    Args:
        task: Gymnasium id of the task.
        render_mode: ``None``; rendering is not supported.
        **settings: Arguments of the task.

    Raises:
        MissingDependencyError: MiniHack, NLE or a setuptools before 81, which MiniHack imports, is not installed.
        ConfigError: The task does not exist, or cannot be made.
    """

    extra = "minihack"

    def __init__(self, task: str = "MiniHack-Room-Random-5x5-v0", *, render_mode: None = None, **settings: Any) -> None:
        super().__init__()
        self._import("minihack", "pkg_resources", "nle.env")
        if task not in _tasks():
            raise ConfigError(f"MiniHack has no task {task!r}; it has {_tasks()}")
        self.task = task
        chosen: dict[str, Any] = {"observation_keys": ("tty_chars",), "penalty_step": 0.0} | settings
        try:
            made: Any = gym.make(task, disable_env_checker=True, **chosen)
            made.unwrapped.seed(core=1, disp=1, reseed=False)
        except BaseException as error:
            raise_interrupt(error)
            raise ConfigError(f"{task} cannot be made: {described(error)}") from error
        self._play_in(made.unwrapped)
        name = task.removeprefix("MiniHack-").rpartition("-v")[0].replace("-", " ")
        self.instructions = (
            f"You play a small task in the world of NetHack: {name}. Reach the stairs down, >, unless the name is a "
            f"skill such as Eat, Wear or Pray, which you use on what is there. Answer with one of: "
            f"{', '.join(self._actions)}. The screen has the message above, the map with you as @, and your state "
            "below."
        )

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each task that can be made."""
        cls._import("minihack", "pkg_resources", "nle.env")
        refused = ("MultiRoom", "Crossing", "Boxoban", "Custom")
        return [{"task": task} for task in _tasks() if not any(word in task for word in refused)]

    def random_policy(self, seed: int) -> Policy:
        """Make a policy that plays random actions."""
        rng = random.Random(seed)
        actions = list(self._actions)
        return lambda observation: rng.choice(actions)


def _tasks() -> list[str]:
    return sorted(env_id for env_id in gym.registry if env_id.startswith("MiniHack-"))
