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
BEFORE_TABLE = """Success rates of random legal actions, the blind baseline and the solver, by preset:
"""
HEAD = """# Games

The environments of the library, with their scores and an episode played by the solver.

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
    return "\n".join([HEAD, overview(ids), *map(section, ids)])


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
    rows = "\n".join(row(game) for game in presets)
    shown = next((game for game in reversed(presets[:2]) if len(transcript(game)) <= LINES), presets[0])
    env = shown.make()
    return f"""
## {env_id}

{summary(env_id)} ({links(env_id)})

| preset | arguments | optimum | solver | blind | random | turns of the solver |
|---|---|---|---|---|---|---|
{rows}

> {env.get_wrapper_attr("instructions").strip().replace(chr(10), chr(10) + "> ")}

```text
{chr(10).join(cut(transcript(shown)))}
```
"""


def row(game: Game) -> str:
    """Return a game's line in the table of its presets."""
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
    cells = [game.difficulty or "", f"`{listed}`" if listed else "", *numbers, f"{turns.turns:.1f}" if turns else ""]
    return f"| {' | '.join(cells)} |"


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
