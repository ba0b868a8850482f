"""Compare what the tiny model learns with GRPO's advantage and with credit per turn, in steps and tokens.

    python benchmarks/bench_credit_learning.py                     # all games and seeds: some hours on one core
    python benchmarks/bench_credit_learning.py FrozenLake/pool/0   # only these; or FrozenLake, or FrozenLake/pool
    python benchmarks/bench_credit_learning.py --report            # publish what is complete, and train nothing
    python benchmarks/bench_credit_learning.py --quick

Each run is what a user types: ``gym-trl train ID --credit NAME --seed N``, on one thread. It is stopped when the mean
success of five steps has reached 90% of the optimum. Runs are kept in ``runs/credit-learning``; the same command
continues after an interruption, on another day, too, and publishes what is complete.
"""

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from command_runs import train
from report import HERE, QUICK, Column, Table, publish, published_runs, run

from gym_trl.records.json_lines import read_json_lines

ROOT = HERE.parent / "runs" / ("credit-learning-quick" if QUICK else "credit-learning")
CREDITS = ("episode", "gigpo", "pool")
SEEDS = range(1 if QUICK else 5)
WINDOW = 5
"""Number of steps over which success is averaged."""
SHARES = (0.5, 0.9)


@dataclass(frozen=True)
class Game:
    """Environment, its best possible success rate, and the options of ``gym-trl train``."""

    env_id: str
    optimum: float
    env: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    steps: int = 3 if QUICK else 200


_ONE = {"max-tokens": 1}
GAMES = {
    "FrozenLake": Game("FrozenLake-v1", 1.0, {"is_slippery": "false"}),
    "TowerOfHanoi": Game(
        "one_character:OneCharacter/TowerOfHanoi-v0",
        1.0,
        {"disks": 2, "start": "tower", "turns": 8},
        {"max-completion": 384, **_ONE},
    ),
    "GuessNumber": Game("TrlEnv/GuessNumber-v0", 1.0),
    "Maze": Game("one_character:OneCharacter/Maze-v0", 1.0, {"difficulty": "easy"}, {"max-completion": 768, **_ONE}),
    "Nim": Game("one_character:OneCharacter/Nim-v0", 0.9365, {"difficulty": "easy"}, {"max-completion": 256, **_ONE}),
    "TicTacToe": Game("TrlEnv/TicTacToe-v0", 0.9948, {"difficulty": "easy"}, {"max-completion": 256, **_ONE}),
}


@dataclass(frozen=True)
class Learnt:
    """Steps and tokens of one run until shares of the optimum; ``None`` where it did not get there."""

    game: str
    credit: str
    seed: int
    steps: list[int | None]
    tokens: list[int | None]
    curve: list[float]
    """Success of each step's episodes."""


def reached(curve: Sequence[float], goal: float) -> int | None:
    """Return the number of steps after which the mean of the last five is at least ``goal``.

    >>> reached([0.0, 0.5, 1.0, 1.0, 1.0, 1.0], 0.9), reached([0.0] * 9, 0.5)
    (6, None)
    """
    means = [statistics.fmean(curve[end - WINDOW : end]) for end in range(WINDOW, len(curve) + 1)]
    return next((WINDOW + number for number, mean in enumerate(means) if mean >= goal), None)


def read(name: str, credit: str, seed: int) -> Learnt:
    """Return what is in a run's folder so far, or what was published of it before."""
    file = ROOT / f"{name}-{credit}-{seed}" / "metrics.jsonl"
    if not file.exists() and (before := published().get((name, credit, seed))):
        return before
    logs = [log for log in read_json_lines(file) if "env/return" in log] if file.exists() else []
    curve = [float(log["env/success"]) for log in logs]
    steps = [reached(curve, share * GAMES[name].optimum) for share in SHARES]
    tokens = [None if step is None else int(logs[step - 1]["num_tokens"]) for step in steps]
    return Learnt(name, credit, seed, steps, tokens, curve)


def published() -> dict[tuple[str, str, int], Learnt]:
    """Return the runs in the published results, which may be those of another machine."""
    runs = published_runs("credit_learning")
    return {(one["game"], one["credit"], one["seed"]): Learnt(**one) for one in runs}


def is_complete(one: Learnt) -> bool:
    """Return True if a run has reached the last share of the optimum or its last step."""
    return one.steps[-1] is not None or len(one.curve) >= GAMES[one.game].steps


def train_one(name: str, credit: str, seed: int) -> None:
    """Run or continue one training until it is complete."""
    game = GAMES[name]
    words = [game.env_id, *(f"--env-kwargs={key}={value}" for key, value in game.env.items())]
    words += [f"--{key}={value}" for key, value in game.options.items()]
    words += [f"--credit={credit}", f"--seed={seed}", f"--steps={game.steps}", "--eval-episodes=16"]
    done = partial(read, name, credit, seed)
    train(ROOT / f"{name}-{credit}-{seed}", words, enough=lambda: done().steps[-1] is not None)


def chosen() -> Iterator[tuple[str, str, int]]:
    """Yield the game, the estimator and the seed of each run that the command line asks for."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("--")]
    for seed in SEEDS:
        for name in [next(iter(GAMES))] if QUICK and not wanted else GAMES:
            for credit in CREDITS:
                if not wanted or any(f"{name}/{credit}/{seed}/".startswith(f"{word}/") for word in wanted):
                    yield name, credit, seed


def tables(runs: Sequence[Learnt]) -> list[Table]:
    """Return a table of medians, and one of every run."""

    def pairs() -> Iterator[dict[str, Any]]:
        for name in GAMES:
            for credit in CREDITS:
                mine = [one for one in runs if (one.game, one.credit) == (name, credit)]
                usual = [one for one in runs if (one.game, one.credit) == (name, "episode")]
                if mine:
                    yield {"game": name, "credit": credit, "seeds": len(mine), "runs": mine, "usual": usual}

    def middle(runs: Sequence[Learnt], column: str, place: int) -> float | None:
        values = [getattr(one, column)[place] for one in runs]
        known = statistics.median_low([float("inf") if value is None else value for value in values]) if runs else None
        return known if known is None or known < float("inf") else None

    def median(row: Mapping[str, Any], column: str, place: int, unit: float = 1.0) -> str:
        value = middle(row["runs"], column, place)
        return "not reached" if value is None else f"{value / unit:.0f}"

    def relative(row: Mapping[str, Any]) -> str | None:
        mine, usual = middle(row["runs"], "steps", -1), middle(row["usual"], "steps", -1)
        return None if mine is None or usual is None else f"{mine / usual:.0%}"

    def steps(place: int, row: Learnt) -> str:
        value = row.steps[place]
        return f"over {len(row.curve)}" if value is None else str(value)

    medians: list[Column] = [("game", "game"), ("credit", "credit"), ("seeds", "seeds")]
    medians += [(f"steps to {share:.0%}", partial(median, column="steps", place=n)) for n, share in enumerate(SHARES)]
    medians += [
        (f"thousand tokens to {share:.0%}", partial(median, column="tokens", place=n, unit=1e3))
        for n, share in enumerate(SHARES)
    ]
    every: list[Column] = [("game", lambda one: one["game"]), ("credit", lambda one: one["credit"])]

    def each_seed(place: int, row: Mapping[str, Any]) -> str:
        return ", ".join(steps(place, one) for one in row["runs"])

    every += [
        (f"steps to {share:.0%}, seeds in order", partial(each_seed, place)) for place, share in enumerate(SHARES)
    ]
    rows = list(pairs())
    return [
        Table.of("credit_learning", [*medians, ("of GRPO's steps to 90%", relative)], rows),
        Table.of("credit_learning_seeds", every, rows),
    ]


def picture(runs: Sequence[Learnt], figure: Any) -> None:
    """Draw success by step, a panel for each game."""
    names = [name for name in GAMES if any(one.game == name for one in runs)]
    figure.set_size_inches(5 * min(len(names), 2) + 1, 3.2 * -(-len(names) // 2))
    panels = figure.subplots(-(-len(names) // 2), min(len(names), 2), squeeze=False).ravel()
    colours = dict(zip(CREDITS, ("tab:gray", "tab:orange", "tab:blue"), strict=True))
    for panel, name in zip(panels, names, strict=False):
        for one in (one for one in runs if one.game == name):
            means = [statistics.fmean(one.curve[max(0, end - WINDOW) : end]) for end in range(1, len(one.curve) + 1)]
            label = one.credit if one.seed == 0 else None
            panel.plot(range(1, len(means) + 1), means, color=colours[one.credit], label=label, linewidth=1)
        panel.axhline(GAMES[name].optimum, color="black", linewidth=0.8)
        panel.set(title=name, xlabel="steps", ylabel="success", ylim=(0, 1.05))
    panels[0].legend()


def main() -> None:
    """Train what is missing, and publish after each run what is complete."""
    for name, credit, seed in chosen():
        if "--report" not in sys.argv and not is_complete(read(name, credit, seed)):
            train_one(name, credit, seed)
            one = read(name, credit, seed)
            print(f"{name} {credit} seed {seed}: steps {one.steps} to {SHARES}", flush=True)
            report()
    report()


def report() -> None:
    """Publish the complete runs of all games, whichever the command line asks for."""
    found = [read(name, credit, seed) for name in GAMES for credit in CREDITS for seed in SEEDS]
    runs = [one for one in found if is_complete(one)]
    if runs:
        figures = {"runs": [asdict(one) for one in runs]}
        publish("credit_learning", figures, tables=tables(runs), picture=partial(picture, runs))


if __name__ == "__main__":
    run(main)
