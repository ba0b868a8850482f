"""Generator of docs/games.md, which has the numbers of every game and one episode played by its solver.

    python docs/make_games.py            # write the page
    python docs/make_games.py --check    # exit with status 1 if the page is not up to date

The scores of policies come from the output of ``gym-trl validate --measure``; everything else is computed here.
"""

import inspect
import sys
from pathlib import Path

import gymnasium as gym

import gym_trl
from gym_trl.env_checker.validation import Game, games
from gym_trl.envs.text_env import TextEnv
from gym_trl.evaluation.blind import is_near
from gym_trl.evaluation.play import optimum
from gym_trl.rollout.text_player import play
from gym_trl.sandbox.isolation import bubblewrap_problem
from gym_trl.types import Task

PAGE = Path(__file__).parent / "games.md"
LINES = 60
PRESETS = ("easy", "medium", "hard")
HEADER = ["preset", "arguments", "optimum", "solver", "blind", "random", "turns of the solver"]
BEFORE_TABLE = """Success rates of random legal actions, the blind baseline and the solver, by preset:
"""
TILE_LINES = 5
TILE_WIDTH = 34
STARTERS = ("Echo", "GuessNumber", "FrozenLake")
TILES = """# Games

The environments of the library. Start with Echo, which a tiny model learns in a minute, then GuessNumber, where the
answer to a guess has to be used, then FrozenLake, where single turns decide. The word beside a name says how often
random legal play succeeds in the easiest preset, from where training starts: *often* (at least 30%), *sometimes* (at
least 5%) or *seldom*, where a model learns from rewards on the way or needs a [warm start](guides/warm_start.md).
"""
HEAD = """
## Scores

* `solver` and `random`: success rates (and mean returns, where they differ) over the episodes of
  `gym-trl validate --measure`.
* `replay`: an episode of the solver beside one of random legal actions, in [the viewer](viewer.md).
  `Enter` opens the solver's episode, and there `j` and `k` go through the turns. Only the site that `make docs` builds
  has the replays.
* `card`: [what `gym-trl card` measures](cards/index.md) of it with its default arguments.
* `optimum`: the best possible score, exact; `?` if it is unknown.
* `blind`: the best score without looking at observations, reached by the best sequence of actions that a search found,
  on held-out episodes, with its 95% interval. Only a score above it shows that a model uses the observations. It is
  **bold** if it comes near the optimum: at least 80% of the way from random play.

`python docs/make_games.py` writes this page, and `make test` checks that it is current.
"""


def page() -> str:
    """Return the whole page."""
    ids = sorted(gym_trl.GAMES)
    return "\n".join([TILES, tiles(ids), HEAD, overview(ids), *map(section, ids)])


def tiles(ids: list[str]) -> str:
    """Return a tile for each game, those to start with first: name, difficulty and a few lines of an episode."""
    first = [f"TrlEnv/{name}-v0" for name in STARTERS]
    lines = ['<div class="grid cards" markdown>', ""]
    for env_id in [*first, *(env_id for env_id in ids if env_id not in first)]:
        name = env_id.partition("/")[2].removesuffix("-v0")
        lines += [f"-   [**{name}**](#{anchor(env_id)}) · {rate_of_chance(env_id)}", "", "    ```text"]
        lines += [f"    {line}".rstrip() for line in beginning(env_id)]
        lines += ["    ```", "", f"    [replay](replays/{name}-v0.html#/group/0/all)", ""]
    return "\n".join([*lines, "</div>", ""])


def rate_of_chance(env_id: str) -> str:
    """Return the word for the success rate of random legal actions in the easiest preset."""
    env = games([env_id])[0].make().unwrapped
    assert isinstance(env, TextEnv)
    measured = env.baselines["random"].measured
    assert measured is not None
    return "often" if measured.success >= 0.3 else "sometimes" if measured.success >= 0.05 else "seldom"


def beginning(env_id: str) -> list[str]:
    """Return the lines around the first answer of the solver's episode in the easiest preset."""
    lines = [line for line in "\n".join(transcript(games([env_id])[0])).split("\n") if line.strip()]
    lines = [line if len(line) <= TILE_WIDTH else f"{line[: TILE_WIDTH - 1]}…" for line in lines]
    answer = next(number for number, line in enumerate(lines) if line.startswith("> "))
    start = max(0, answer + 1 - TILE_LINES // 2 - 1)
    return lines[start : start + TILE_LINES]


def overview(ids: list[str]) -> str:
    """Return the table with one line per game: its summary, and the success rates of its presets."""
    lines = [BEFORE_TABLE, "| environment | task | easy | medium | hard | |", "|---|---|---|---|---|---|"]
    for env_id in ids:
        reached = {game.difficulty or "medium": reach(game) for game in games([env_id])}
        scores = [reached.get(name, "") for name in PRESETS]
        cells = [f"[{env_id}](#{anchor(env_id)})", summary(env_id), *scores, links(env_id)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def reach(game: Game) -> str:
    """Return the measured success rates of random legal actions, the blind baseline and the solver."""
    env = game.make().unwrapped
    assert isinstance(env, TextEnv)
    measured = [env.baselines[name].measured for name in ("random", "blind", "solver")]
    chance, blind, solver = ("?" if one is None else f"{one.success:.2f}" for one in measured)
    return f"{chance}→{f'**{blind}**' if near(env) else blind}→{solver}"


def near(env: TextEnv) -> bool:
    """Return True if the blind baseline comes near the optimum."""
    blind, chance, solver = (env.baselines[name].measured for name in ("blind", "random", "solver"))
    assert blind is not None
    assert chance is not None
    assert solver is not None
    best = optimum(env).success
    return is_near(blind.success, chance.success, solver.success if best is None else best)


def anchor(env_id: str) -> str:
    """Return the anchor of a heading."""
    return env_id.lower().replace("/", "")


def links(env_id: str) -> str:
    """Return links to the replay that the hook of the site makes, and to the card."""
    name = env_id.partition("/")[2]
    return f"[replay](replays/{name}.html#/group/0/all), [card](cards/{name}.md)"


def summary(env_id: str) -> str:
    """Return the first sentence of a game's docstring."""
    text = inspect.getdoc(type(gym.make(env_id).unwrapped)) or ""
    return " ".join(text.split("\n\n")[0].split()).replace("``", "`")


def section(env_id: str) -> str:
    """Return a game's heading, numbers and transcript."""
    presets = games([env_id])
    rows = table([HEADER, *map(row, presets)])
    shown = next((game for game in reversed(presets[:2]) if len(transcript(game)) <= LINES), presets[0])
    env = shown.make()
    return f"""
## {env_id}

{summary(env_id)} ({links(env_id)})

{rows}

> {env.get_wrapper_attr("instructions").strip().replace(chr(10), chr(10) + "> ")}

```text
{chr(10).join(cut(transcript(shown)))}
```
"""


def table(rows: list[list[str]]) -> str:
    """Return a table as Markdown, without the columns that have no values."""
    filled = [number for number in range(len(rows[0])) if any(row[number] for row in rows[1:])]
    kept = [[row[number] for number in filled] for row in rows]
    kept.insert(1, ["---"] * len(filled))
    return "\n".join(f"| {' | '.join(row)} |" for row in kept)


def row(game: Game) -> list[str]:
    """Return a game's cells in the table of its presets."""
    env = game.make()
    assert isinstance(env.unwrapped, TextEnv)
    baselines, best = env.unwrapped.baselines, optimum(env)
    arguments = env.unwrapped.presets.get(game.difficulty, {})  # type: ignore[call-overload]
    listed = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    pays = env.unwrapped.reward_modes[0] != "success"
    numbers = [level(best.success, best.mean_return if pays else None)]
    for name in ("solver", "blind", "random"):
        measured = baselines[name].measured
        assert measured is not None, f"{game} was never measured: gym-trl validate --measure"
        if name == "blind":
            numbers.append(blind(env.unwrapped))
        else:
            numbers.append(level(measured.success, measured.mean_return if pays else None))
    turns = baselines["solver"].measured
    return [game.difficulty or "", f"`{listed}`" if listed else "", *numbers, f"{turns.turns:.1f}" if turns else ""]


def blind(env: TextEnv) -> str:
    """Return the published blind baseline with its interval, and its mean return where that is published too."""
    found = env.blind_baselines
    one = found["success"]
    shown = f"{one.measured.success:.3f} [{one.low:.3f}, {one.high:.3f}]"
    shown = f"**{shown}**" if near(env) else shown
    if paid := found.get("return"):
        shown += f" ({paid.measured.mean_return:+.3f} [{paid.low:+.3f}, {paid.high:+.3f}])"
    return shown


def level(success: float | None, mean_return: float | None) -> str:
    """Return the success rate, followed by the mean return if it differs."""
    shown = "?" if success is None else f"{success:.3f}"
    return shown if mean_return is None else f"{shown} ({mean_return:+.3f})"


def transcript(game: Game) -> list[str]:
    """Return the lines of an episode played by the solver."""
    lines: list[str] = []
    played = play(game.make(), Task(game.env_id, 0), lambda env: env.get_wrapper_attr("solver")())
    for turn in played.turns:
        lines += [*turn.observation.split("\n"), f"> {turn.answer.text}"]
    return [*lines, *played.messages[-1].content.split("\n"), f"(reward {played.turns[-1].reward:g})"]


def cut(lines: list[str]) -> list[str]:
    """Return the lines, or the beginning and the end if there are too many."""
    half = LINES // 2
    return lines if len(lines) <= LINES else [*lines[:half], f"[{len(lines) - 2 * half} lines]", *lines[-half:]]


def main() -> int:
    """Write the page or check it."""
    if bubblewrap_problem() is not None:  # this script runs only its own programs
        gym.spec("TrlEnv/CodeAgent-v0").kwargs["isolation"] = "limits"
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
