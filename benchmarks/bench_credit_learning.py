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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from command_runs import train
from report import HERE, QUICK, Cell, Table, named_runs, publish, published_runs, run

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


def tables(runs: Sequence[Learnt]) -> list[Table]:
    """Return a table of medians, and one of every run."""
    medians: list[dict[str, Cell]] = []
    every: list[dict[str, Cell]] = []
    for name in GAMES:
        usual = middle([one.steps[-1] for one in runs if (one.game, one.credit) == (name, "episode")])
        for credit in CREDITS:
            if not (mine := [one for one in runs if (one.game, one.credit) == (name, credit)]):
                continue
            steps = [middle([one.steps[place] for one in mine]) for place in range(len(SHARES))]
            tokens = [middle([one.tokens[place] for one in mine]) for place in range(len(SHARES))]
            row: dict[str, Cell] = {"game": name, "credit": credit, "seeds": len(mine)}
            row |= {f"steps to {share:.0%}": rounded(at) for share, at in zip(SHARES, steps, strict=True)}
            row |= {
                f"thousand tokens to {share:.0%}": rounded(at, unit=1e3)
                for share, at in zip(SHARES, tokens, strict=True)
            }
            relative = None if steps[-1] is None or usual is None else f"{steps[-1] / usual:.0%}"
            medians.append({**row, "of GRPO's steps to 90%": relative})
            shown = {
                f"steps to {share:.0%}, seeds in order": ", ".join(
                    f"over {len(one.curve)}" if one.steps[place] is None else str(one.steps[place]) for one in mine
                )
                for place, share in enumerate(SHARES)
            }
            every.append({"game": name, "credit": credit, **shown})
    return [Table.of_rows("credit_learning", medians), Table.of_rows("credit_learning_seeds", every)]


def middle(values: Sequence[int | None]) -> float | None:
    """Return the median, in which ``None`` is more than any number; ``None`` also without values."""
    found = statistics.median_low([float("inf") if value is None else value for value in values] or [float("inf")])
    return None if found == float("inf") else found


def rounded(value: float | None, *, unit: float = 1.0) -> str:
    return "not reached" if value is None else f"{value / unit:.0f}"


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
    trainings = [(name, credit, seed) for seed in SEEDS for name in GAMES for credit in CREDITS]
    for name, credit, seed in named_runs(trainings, quick="FrozenLake"):
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
