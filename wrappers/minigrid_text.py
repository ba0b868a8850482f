"""Text observations of MiniGrid and BabyAI environments."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym

_MINIGRID = "minigrid.minigrid_env:MiniGridEnv"
_WAYS = {"Ahead": (0, -1), "Left": (-1, 0), "Right": (1, 0)}
_FACING = ("east", "south", "west", "north")


def minigrid_text(env: gym.Env[Any, Any]) -> Callable[[Any, dict[str, Any]], str] | None:
    """Return a function from observations of a MiniGrid or BabyAI environment to text; ``None`` for any other.

    >>> minigrid_text(gym.make("FrozenLake-v1")) is None
    True
    """
    return _MiniGrid() if _is_minigrid(env) else None


def _is_minigrid(env: gym.Env[Any, Any]) -> bool:
    return any(f"{kind.__module__}:{kind.__name__}" == _MINIGRID for kind in type(env.unwrapped).__mro__)


class _MiniGrid:
    """Function from an observation to text: mission, direction, carried object and visible objects, nearest first.

    ::

        Mission: go to the red ball
        You face east and carry nothing.
        Ahead: 2 steps free, then a wall. Left: a wall. Right: 3 steps free.
        You see: a red ball, 2 ahead and 1 right; a locked blue door, 2 ahead and 3 right.

    Only the agent's own view is described, as in the observation. Walls are mentioned only where they end the free way
    ahead and to the sides.
    """

    def __init__(self) -> None:
        from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

        self.colours, self.kinds = IDX_TO_COLOR, IDX_TO_OBJECT
        self.states = {number: name for name, number in STATE_TO_IDX.items()}

    def __call__(self, observation: dict[str, Any], info: dict[str, Any]) -> str:
        view = observation["image"]
        middle, last = view.shape[0] // 2, view.shape[1] - 1  # the agent is in the middle of the last row and faces up
        carried = self._thing(view[middle, last])
        seen = []
        for column in range(view.shape[0]):
            for row in range(view.shape[1]):
                thing = self._thing(view[column, row])
                ahead, right = last - row, column - middle
                if thing and thing != "a wall" and (ahead, right) != (0, 0):
                    seen.append((ahead + abs(right), ahead, right, thing))
        lines = [
            f"Mission: {observation['mission']}",
            f"You face {_FACING[int(observation['direction'])]} and carry {carried or 'nothing'}.",
            " ".join(self._way(name, view, step) for name, step in _WAYS.items()),
        ]
        listed = [f"{thing}, {_where(ahead, right)}" for _, ahead, right, thing in sorted(seen)]
        return "\n".join([*lines, f"You see: {'; '.join(listed)}." if listed else "You see nothing else."])

    def _thing(self, cell: Any) -> str:
        """Return the object in a cell of the view; an empty string for an empty or unseen cell."""
        kind = self.kinds[int(cell[0])]
        if kind in ("unseen", "empty", "floor", "agent"):
            return ""
        if kind in ("wall", "lava"):
            return "a wall" if kind == "wall" else "lava"
        state = f"{self.states[int(cell[2])]} " if kind == "door" else ""
        words = f"{state}{self.colours[int(cell[1])]} {kind}"
        return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"

    def _way(self, name: str, view: Any, step: tuple[int, int]) -> str:
        """Return the length of the free way in one direction, as text."""
        column, row = view.shape[0] // 2 + step[0], view.shape[1] - 1 + step[1]
        free = 0
        while 0 <= column < view.shape[0] and row >= 0 and self.kinds[int(view[column, row][0])] != "unseen":
            if thing := self._thing(view[column, row]):
                return f"{name}: {thing}." if not free else f"{name}: {_steps(free)} free, then {thing}."
            free, column, row = free + 1, column + step[0], row + step[1]
        return f"{name}: {_steps(free)} free." if free else f"{name}: out of sight."


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def _where(ahead: int, right: int) -> str:
    parts = [f"{ahead} ahead"] if ahead else []
    if right:
        parts.append(f"{abs(right)} {'right' if right > 0 else 'left'}")
    return " and ".join(parts)
