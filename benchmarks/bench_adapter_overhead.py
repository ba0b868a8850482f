"""Measure a system's cost per turn, without the model and the game, and its growth with the episode.

$ python benchmarks/bench_adapter_overhead.py [--quick] [NAME ...]     # the systems named, printed only

Every system plays two episodes of the same game with an engine that answers at once (``systems/free.py``), with Qwen3's
chat template, from the call that the trainer makes to what it gets back. Measured is the processor time of its process,
the median of the rounds (of one, with the most turns), without the game's own.
"""

from statistics import median
from typing import Any

from report import QUICK, Column, Table, publish, require, run
from systems import SYSTEMS
from systems.worker import Worker, compared, each_system

TURNS = (2, 16, 64) if QUICK else (2, 16, 64, 256)
VOCABULARY, MIDDLE = 150_000, 64
ROUNDS = 1 if QUICK else 3
PATIENCE_US = 30_000
"""A system that needs more for a turn is not measured with longer episodes."""


def measure(worker: Worker, name: str) -> dict[str, Any]:
    """Return microseconds per turn: by the number of turns, and of each turn more."""
    by_turns: dict[int, float] = {}
    spread: tuple[float, float] = (0.0, 0.0)
    for turns in TURNS:
        rounds = microseconds(worker, name, turns)
        by_turns[turns] = median(rounds)
        if turns == MIDDLE:
            spread = min(rounds), max(rounds)
        if turns >= MIDDLE and by_turns[turns] > PATIENCE_US:
            break
    # Without the fixed costs of a rollout: per turn beyond the first two.
    more = (by_turns[MIDDLE] * MIDDLE - by_turns[TURNS[0]] * TURNS[0]) / (MIDDLE - TURNS[0])
    return {"by_turns": by_turns, "spread": spread, "each_turn_more": more}


def microseconds(worker: Worker, name: str, turns: int) -> list[float]:
    alone = median(worker.call("free", "game_alone", turns, ROUNDS))
    rounds = ROUNDS if turns <= MIDDLE else 1
    spent = worker.call("free", "play", SYSTEMS[name].module, turns, VOCABULARY, rounds)
    return [max(one - alone, 0.0) for one in spent]


def table(figures: dict[str, dict[str, Any]]) -> Table:
    """Return a row per system; failed ones have their reason in the first column of figures."""
    ours = figures.get("gym_trl", {})

    def by(turns: int) -> Any:
        return lambda row: row.get("by_turns", {}).get(turns)

    def of_ours(get: Any) -> Any:
        return lambda row: get(row) / get(ours) if "by_turns" in row and "by_turns" in ours else None

    columns: list[Column] = [
        ("", "title"),
        (f"{TURNS[0]} turns", lambda row: row.get("why_not") or row["by_turns"][TURNS[0]]),
        *((f"{turns} turns", by(turns)) for turns in TURNS[1:]),
        (f"lowest to highest at {MIDDLE}", _spread),
        (f"of ours at {MIDDLE}", of_ours(by(MIDDLE))),
        ("each turn more", "each_turn_more"),
        ("of ours", of_ours(lambda row: row["each_turn_more"])),
    ]
    rows = [{"title": SYSTEMS[name].title, **found} for name, found in figures.items()]
    return Table.of("adapter_overhead", columns, rows)


def _spread(row: Any) -> str:
    low, high = row.get("spread", (0.0, 0.0))
    return f"{low:,.0f} to {high:,.0f}" if high else ""


def main() -> None:
    require("vllm")
    names, part = compared(("gym_trl", "environment_factory") if QUICK else ())
    figures = each_system(names, measure)
    publish("adapter_overhead", {"vocabulary": VOCABULARY, "systems": figures}, [table(figures)], part=part)


if __name__ == "__main__":
    run(main)
