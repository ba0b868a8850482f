"""Base class of the games of the NetHack Learning Environment, with the terminal's screen as observation."""

from typing import Any

from gym_trl.envs.external.adapter import Adapter, Played

_COMPASS = {"N": "north", "S": "south", "E": "east", "W": "west"}


class NetHackGame(Adapter):
    """Game whose class names an environment of NLE, and takes it with ``_play_in``."""

    _actions: dict[str, int]

    def _play_in(self, game: Any) -> None:
        """Play in an environment of NLE, with the names of its actions."""
        self._game = game
        names = [_name(action) for action in game.actions]
        self._actions = {
            name if names.count(name) == 1 else f"{name} ({type(action).__name__})": place
            for place, (name, action) in enumerate(zip(names, game.actions, strict=True))
        }

    def _begin(self, seed: int, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        self._game.seed(core=seed, disp=seed, reseed=False)
        observation, _ = self._game.reset()
        return _screen(observation), self._more()

    def _play(self, action: str) -> Played:
        place = self._actions.get(" ".join(action.split()).lower())
        if place is None:
            return Played("That is no action.", valid=False, more=self._more())
        observation, reward, terminated, truncated, info = self._game.step(place)
        cut = bool(truncated) or info["end_status"].name == "ABORTED"  # NLE also calls that terminated
        won = info["is_ascended"] or info["end_status"].name == "TASK_SUCCESSFUL"
        # The screen after the end is empty.
        shown = _screen(observation) or "The game is over."
        more = {} if terminated or truncated else self._more()
        return Played(shown, float(reward), terminated and not cut, cut, success=bool(won), more=more)

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
