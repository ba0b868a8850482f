"""Generator of the table of the library's games, and of their number, where a page has them."""

import inspect
import re
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym

import gym_trl
from gym_trl.wrappers.base import attribute_of

DOCS = Path(__file__).parent
PAGES = (DOCS / "environments.md", DOCS / "is_it_for_me.md", DOCS.parent / "README.md")
COUNT = re.compile(r"\d+(?= games( with presets|\*\* \| with solvers))")
MARKS = re.compile(r"(?<=<!-- games -->\n).*?(?=<!-- /games -->)", re.DOTALL)
HEAD = "| id | task | difficulties | turns | optimum |\n|---|---|---|---|---|"


def page(text: str) -> str:
    """Return the text of a page with the table between its marks, and the number of games."""
    return COUNT.sub(str(len(gym_trl.GAMES)), MARKS.sub(lambda _: table(), text))


@cache
def table() -> str:
    """Return the table."""
    return "\n".join([HEAD, *map(row, sorted(gym_trl.GAMES)), ""])


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
    for path in PAGES:
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")
