"""Generator of docs/games.md, the table of the library's games."""

import inspect
from pathlib import Path
from typing import Any

import gymnasium as gym

import gym_trl
from gym_trl.wrappers.base import attribute_of

PAGE = Path(__file__).parent / "games.md"
HEAD = """# Games

The environments of the library. Start with Echo, which a tiny model learns in a minute, then GuessNumber, where the
answer to a guess has to be used, then FrozenLake, where single turns decide.

`gym-trl list ID` shows a game's arguments and rules, `gym-trl play ID` lets you play it, and
`gym-trl check ID` measures its solver, random play and the best policy that does not read. The columns `turns` (at
most, in task 0) and `optimum` (the success rate of perfect play where it is known) have a number for each difficulty.

| id | task | difficulties | turns | optimum |
|---|---|---|---|---|"""
FOOT = "\n`python docs/make_games.py` writes this page.\n"


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *map(row, sorted(gym_trl.GAMES)), FOOT])


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
    PAGE.write_text(page(), encoding="utf-8")
