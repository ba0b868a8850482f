"""Level of the training tasks, which follows the success rate."""

from collections.abc import Iterable, MutableMapping
from dataclasses import replace
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.types import Task

RISE, FALL, EPISODES = 0.75, 0.1, 128
"""Success rates at which the level rises and falls, and the number of episodes of which they are computed."""


def at_level(task: Task, level: int) -> Task:
    """Return the task with its level set."""
    return replace(task, options={**task.options, "level": level})


def count(state: MutableMapping[str, Any], levels: int, played: Iterable[tuple[int, bool | None]]) -> None:
    """Count the successes of scored episodes on the current level, and change the level when there are enough.

    >>> state = {"level": 0}
    >>> count(state, 3, [(0, True)] * 120)
    >>> count(state, 3, [(0, False)] * 8)
    >>> state["level"]
    1

    Args:
        state: Current level and counts, which checkpoints hold.
        levels: Number of levels.
        played: Level and success of scored episodes of all processes; those of another level are ignored.

    Raises:
        ConfigError: None of enough episodes declares success.
    """
    level = state.get("level", 0)
    here = [success for own, success in played if own == level]
    won, total = state.get("won", 0) + here.count(True), state.get("played", 0) + len(here)
    declared = state.get("declared", 0) + len(here) - here.count(None)
    if total >= EPISODES:
        if not declared:
            raise ConfigError(
                f"a curriculum needs declared success, and none of {total} episodes declared any: set "
                "GymSpec(success=...) to a return to reach or 'info'"
            )
        level = min(max(level + (won >= RISE * total) - (won <= FALL * total), 0), levels - 1)
        won = total = declared = 0
    state.update(level=level, won=won, played=total, declared=declared)
