"""Text observations of MiniGrid and BabyAI environments."""

from typing import Any

import gymnasium as gym

_WAYS = {"Ahead": (0, -1), "Left": (-1, 0), "Right": (1, 0)}
_FACING = ("east", "south", "west", "north")


def is_minigrid(env: gym.Env[Any, Any]) -> bool:
    """Return whether an environment is one of MiniGrid or BabyAI.

    >>> is_minigrid(gym.make("FrozenLake-v1"))
    False
    """
    kinds = (f"{kind.__module__}:{kind.__name__}" for kind in type(env.unwrapped).__mro__)
    return "minigrid.minigrid_env:MiniGridEnv" in kinds


def describe(observation: dict[str, Any]) -> str:
    """Return an observation as text: mission, direction, carried object and visible objects, nearest first.

    ::

        Mission: go to the red ball
        You face east and carry nothing.
        Ahead: 2 steps free, then a wall. Left: a wall. Right: 3 steps free.
        You see: a red ball, 2 ahead and 1 right; a locked blue door, 2 ahead and 3 right.

    Only the agent's own view is described, as in the observation. Walls are mentioned only where they end the free way
    ahead and to the sides.
    """
    view = observation["image"]
    width, middle, last = view.shape[0], view.shape[0] // 2, view.shape[1] - 1  # the agent faces up in the last row
    carried = _thing(view[middle, last])
    seen = []
    for column in range(width):
        for row in range(view.shape[1]):
            thing, ahead, right = _thing(view[column, row]), last - row, column - middle
            if thing and thing != "a wall" and (ahead, right) != (0, 0):
                parts = [f"{ahead} ahead"] if ahead else []
                parts += [f"{abs(right)} {'right' if right > 0 else 'left'}"] if right else []
                seen.append((ahead + abs(right), ahead, right, f"{thing}, {' and '.join(parts)}"))
    ways = []
    for name, (across, down) in _WAYS.items():
        free, column, row, end = 0, middle + across, last + down, ""
        while 0 <= column < width and row >= 0 and not end and _kind(view[column, row]) != "unseen":
            end = _thing(view[column, row])
            free, column, row = free + (not end), column + across, row + down
        steps = f"{free} step{'' if free == 1 else 's'} free" if free else ""
        ways.append(f"{name}: {', then '.join(part for part in (steps, end) if part) or 'out of sight'}.")
    return "\n".join(
        [
            f"Mission: {observation['mission']}",
            f"You face {_FACING[int(observation['direction'])]} and carry {carried or 'nothing'}.",
            " ".join(ways),
            f"You see: {'; '.join(one[-1] for one in sorted(seen))}." if seen else "You see nothing else.",
        ]
    )


def _kind(cell: Any) -> str:
    from minigrid.core.constants import IDX_TO_OBJECT

    kind: str = IDX_TO_OBJECT[int(cell[0])]
    return kind


def _thing(cell: Any) -> str:
    """Return the object in a cell of the view; an empty string for an empty or unseen cell."""
    from minigrid.core.constants import IDX_TO_COLOR, STATE_TO_IDX

    kind = _kind(cell)
    if kind in ("unseen", "empty", "floor", "agent"):
        return ""
    if kind in ("wall", "lava"):
        return "a wall" if kind == "wall" else "lava"
    states = {number: f"{name} " for name, number in STATE_TO_IDX.items()}
    words = f"{states[int(cell[2])] if kind == 'door' else ''}{IDX_TO_COLOR[int(cell[1])]} {kind}"
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"
