"""Generator of the table of the library's games in docs/environments.md."""

import inspect
import re
from pathlib import Path
from typing import Any

import gymnasium as gym

import gym_trl
from gym_trl.wrappers.base import attribute_of

PAGE = Path(__file__).parent / "environments.md"
MARKS = re.compile(r"(?<=<!-- games -->\n).*?(?=<!-- /games -->)", re.DOTALL)
HEAD = "| id | task | difficulties | turns | optimum |\n|---|---|---|---|---|"


def page(text: str) -> str:
    """Return the text of a page with the table between its marks."""
    table = "\n".join([HEAD, *map(row, sorted(gym_trl.GAMES)), ""])
    return MARKS.sub(lambda _: table, text)


def row(env_id: str) -> str:
    """Return a game's line of the table."""
    presets: list[str | None] = list(made(env_id, None).presets) or [None]
    envs = [made(env_id, difficulty) for difficulty in presets]
    bests = [attribute_of(env, "optimal_success") for env in envs]
    cells = [
        f"`{env_id}`",
        " ".join((inspect.getdoc(type(envs[0])) or "").split("\n\n")[0].split()).replace("``", "`"),
        ", ".join(filter(None, presets)),
        each([f"{left:g}" if (left := getattr(env, "turns_left", None)) else "" for env in envs]),
        each(["?" if best is None else f"{best:.3g}" for best in bests]),
    ]
    return f"| {' | '.join(cells)} |"


def made(env_id: str, difficulty: str | None) -> Any:
    """Make a game with one of its presets, at its first task."""
    arguments: dict[str, Any] = {} if difficulty is None else {"difficulty": difficulty}
    env: Any = gym.make(env_id, **arguments).unwrapped
    env.reset(seed=0, options={"instance": 0} if env.num_instances else None)
    return env


def each(values: list[str]) -> str:
    """Return the values of all difficulties, or one if they are the same."""
    return values[0] if len(set(values)) == 1 else ", ".join(values)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
