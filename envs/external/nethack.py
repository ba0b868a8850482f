"""Adapter to the NetHack Learning Environment."""

from typing import Any

import gymnasium as gym

from gym_trl.envs.external.adapter import Adapter, Played
from gym_trl.errors import ConfigError

_COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}


class NetHack(Adapter):
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
        self._game = made.unwrapped
        try:
            self._game.seed(core=1, disp=1, reseed=False)
        except RuntimeError as error:
            self._game.close()
            raise ConfigError(f"{task} cannot be trained on: {error}") from error
        actions: Any = self._game.actions
        names = [_name(action) for action in actions]
        self._actions = {
            name if names.count(name) == 1 else f"{name} ({type(action).__name__})": place
            for place, (name, action) in enumerate(zip(names, actions, strict=True))
        }
        self.instructions = (
            f"You play NetHack. Answer with one of: {', '.join(self._actions)}. The screen has the message above, the "
            "map with you as @, and your state below."
        )

    @classmethod
    def offered(cls) -> list[dict[str, Any]]:
        """Return the arguments of each task of NetHack."""
        cls._import("nle", "nle.env")
        return [{"task": env_id} for env_id in sorted(gym.registry) if env_id.startswith("NetHack")]

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._game.seed(core=seed, disp=seed, reseed=False)
        observation, _ = self._game.reset()
        return _screen(observation), self._more()

    def _play(self, action: str) -> Played:
        place = self._actions.get(" ".join(action.split()).lower())
        if place is None:
            return Played("That is no action.", valid=False, more=self._more())
        observation, reward, terminated, truncated, info = self._game.step(place)
        won = info["is_ascended"] or info["end_status"].name == "TASK_SUCCESSFUL"
        # The screen after the end is empty.
        shown = _screen(observation) or "The game is over."
        more = {} if terminated or truncated else self._more()
        return Played(shown, float(reward), bool(terminated), bool(truncated), success=bool(won), more=more)

    def _more(self) -> dict[str, Any]:
        return {"admissible_actions": list(self._actions)}


def _name(action: Any) -> str:
    kind, name = type(action).__name__, action.name
    if kind.startswith("CompassDirection"):
        direction = "".join(_COMPASS[letter] for letter in name)
        return f"far {direction}" if kind.endswith("Longer") else direction
    return str(name.lower().replace("num_", ""))


def _screen(observation: dict[str, Any]) -> str:
    """Return the screen as text, copied now because the game reuses the memory for the next screen."""
    lines = (bytes(row).decode("latin-1").rstrip(" \0") for row in observation["tty_chars"])
    return "\n".join(line for line in lines if line)
