"""Measure a system's cost per turn, without the model and the game, and its growth with the episode.

$ python benchmarks/bench_adapter_overhead.py [--quick] [NAME ...]

With names, these systems alone are measured anew and the others stay as they were.

Every system plays two episodes of the same game with an engine that answers at once (``systems/free.py``), with Qwen3's
chat template, from the call that the trainer makes to what it gets back. Counted is the processor's time of its
process, the better of two repeats (of one, with the most turns), without that of the game itself.
"""

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from report import QUICK, RESULTS, Table, publish
from systems import SYSTEMS
from systems.worker import PlayError, Worker

TURNS = (2, 16, 64) if QUICK else (2, 16, 64, 256)
VOCABULARIES = (1_000, 150_000)
MIDDLE, LARGEST = 64, VOCABULARIES[-1]
CHOSEN = [name for name in SYSTEMS if name in sys.argv[1:]]
QUICKLY = ("gym_trl", "environment_factory")
NAMES = CHOSEN or (QUICKLY if QUICK else tuple(SYSTEMS))
LEFT_OUT = ("gym_trl_served", "lockstep_threads", "one_by_one")  # the code of others, and so their numbers
REPEATS = 2
PATIENCE_US = 30_000  # a system that needs so much for a turn is not asked for longer episodes


def measure(worker: Worker, name: str) -> dict[str, Any]:
    """Return microseconds per turn: by turns with the largest vocabulary, and by vocabulary with a middle number."""
    by_turns: dict[int, float] = {}
    by_vocabulary: dict[int, float] = {}
    for turns in TURNS:
        by_turns[turns] = one(worker, name, turns, LARGEST)
        if turns >= MIDDLE and by_turns[turns] > PATIENCE_US:
            break
    for vocabulary in VOCABULARIES[:-1]:
        by_vocabulary[vocabulary] = one(worker, name, MIDDLE, vocabulary)
    if MIDDLE in by_turns:
        by_vocabulary[LARGEST] = by_turns[MIDDLE]
    shown = ", ".join(f"{turns}: {spent:,.0f}" for turns, spent in by_turns.items())
    print(f"{name:20} {shown}", flush=True)
    return {"by_turns": by_turns, "by_vocabulary": by_vocabulary}


def one(worker: Worker, name: str, turns: int, vocabulary: int) -> float:
    """Return one figure, in microseconds of processor time."""
    alone = worker.call("free", "game_alone", turns, REPEATS)
    repeats = REPEATS if turns <= MIDDLE else 1
    spent = worker.call("free", "play", SYSTEMS[name].module, turns, vocabulary, repeats)
    return float(max(spent - alone, 0.0))


def all_systems() -> dict[str, dict[str, Any]]:
    """Measure each system in a process with its own packages; a failure is recorded with its reason."""
    folders: dict[str | None, list[str]] = defaultdict(list)
    for name in NAMES:
        if name not in LEFT_OUT:
            folders[SYSTEMS[name].folder].append(name)
    figures: dict[str, dict[str, Any]] = {}
    for folder, names in folders.items():
        for name in names:
            figures[name] = {"why_not": "its worker died"}
        try:
            with Worker(folder) as worker:
                for name in names:
                    try:
                        figures[name] = measure(worker, name)
                    except PlayError as error:
                        figures[name] = {"why_not": str(error)}
                        print(f"{name:20} {error}", flush=True)
                        if not worker.alive:
                            break
        except PlayError as error:
            figures |= {name: {"why_not": str(error)} for name in names}
            print(f"{', '.join(names)}: {error}", flush=True)
    return figures


def as_measured(found: dict[str, Any]) -> dict[str, Any]:
    """Return a system's figures, with keys converted back to numbers after JSON."""
    return {
        key: {int(by): spent for by, spent in value.items()} if isinstance(value, dict) else value
        for key, value in found.items()
    }


def marginal(by_turns: dict[int, float]) -> float | None:
    """Return microseconds per turn beyond the first two, up to the middle number, without fixed costs of a rollout."""
    if MIDDLE not in by_turns:
        return None
    return (by_turns[MIDDLE] * MIDDLE - by_turns[TURNS[0]] * TURNS[0]) / (MIDDLE - TURNS[0])


def rows(figures: dict[str, dict[str, Any]]) -> list[list[str | float | None]]:
    """Return a line per system, with its cost relative to ours at the middle number of turns and per further turn."""
    of_ours = figures.get("gym_trl", {}).get("by_turns", {})
    ours, our_turn = of_ours.get(MIDDLE), marginal(of_ours) if of_ours else None
    table: list[list[str | float | None]] = []
    for name, found in figures.items():
        if why := found.get("why_not"):
            table.append([SYSTEMS[name].title, why, *[None] * (len(TURNS) + len(VOCABULARIES) + 1)])
            continue
        by_turns, by_vocabulary = found["by_turns"], found["by_vocabulary"]
        middle, turn = by_turns.get(MIDDLE), marginal(by_turns)
        table.append(
            [
                SYSTEMS[name].title,
                *(by_turns.get(turns) for turns in TURNS),
                *(by_vocabulary.get(size) for size in VOCABULARIES[:-1]),
                middle / ours if middle and ours else None,
                turn,
                turn / our_turn if turn and our_turn else None,
            ]
        )
    return table


def draw(figures: dict[str, dict[str, Any]], figure: Any) -> None:
    """Draw a curve per system."""
    axes: Sequence[Any] = figure.subplots(1, 2, width_ratios=[3, 2], sharey=True)
    for name, found in figures.items():
        if "why_not" in found:
            continue
        style = {"linewidth": 2.5, "color": "black"} if name == "gym_trl" else {"linewidth": 1.2}
        for place, by in zip(axes, (found["by_turns"], found["by_vocabulary"]), strict=True):
            place.plot(list(by), list(by.values()), marker="o", markersize=3, label=SYSTEMS[name].title, **style)
    axes[0].set(xscale="log", yscale="log", xlabel=f"turns of an episode (vocabulary {LARGEST:,})")
    axes[0].set_ylabel("microseconds of the processor a turn")
    axes[0].set_xticks(TURNS, [str(turns) for turns in TURNS])
    axes[1].set(xscale="log", xlabel=f"vocabulary ({MIDDLE} turns)")
    axes[1].legend(fontsize=6)


def main() -> None:
    """Measure and publish."""
    figures = all_systems()
    if CHOSEN:
        file = RESULTS / "adapter_overhead.json"
        before = json.loads(file.read_text(encoding="utf-8"))["systems"] if file.exists() else {}
        figures = {name: as_measured(found) for name in SYSTEMS if (found := figures.get(name) or before.get(name))}
    header = [
        "",
        *(f"{turns} turns" for turns in TURNS),
        *(f"{MIDDLE} turns, {size:,} tokens" for size in VOCABULARIES[:-1]),
        f"of ours at {MIDDLE}",
        "each turn more",
        "of ours",
    ]
    publish(
        "adapter_overhead",
        {"vocabulary": LARGEST, "systems": figures},
        tables=[Table("adapter_overhead", header, rows(figures))],
        picture=lambda figure: draw(figures, figure),
    )


if __name__ == "__main__":
    main()
