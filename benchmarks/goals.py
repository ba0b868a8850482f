"""Compare the published results with the project's goals.

    python benchmarks/goals.py    # rewrites the table of goals in README.md; suite.py does it at its end

Every figure is read from ``results/``. A goal that is missed has its reason beside it.
"""

import json
import operator
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import report
from report import Table, publish, shown

Figures: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """Figures of a benchmark, and the limit that all of them should keep."""

    what: str
    benchmark: str
    figures: Callable[[Figures], list[float]]
    limit: float
    unit: str = ""
    at_least: bool = False
    """The figures should be at least the limit; otherwise at most."""
    reason: str = ""
    """Why the goal is missed, if it is."""

    def met(self, figures: list[float]) -> bool:
        """Return whether all figures keep the limit.

        >>> Goal("step", "vectors", list, 2.0, at_least=True).met([2.1, 1.9])
        False
        """
        keeps = operator.ge if self.at_least else operator.le
        return all(keeps(figure, self.limit) for figure in figures)


def rollouts(latency_ms: int, figure: Callable[[Figures], list[float]]) -> Callable[[Figures], list[float]]:
    """Return a function from results to the figures of all games with this latency."""

    def figures(found: Figures) -> list[float]:
        return [one for entry in found["conditions"] if entry["latency_ms"] == latency_ms for one in figure(entry)]

    return figures


SHARED = ("skyrl", "textarena")
"""Systems whose loops of single episodes get an engine loop of ours in the benchmark (``systems/shared_engine.py``)."""


def best_peer(entry: Figures) -> list[float]:
    peers = (one for name, one in entry["systems"].items() if not name.startswith(("gym_trl", *SHARED)))
    return [min(one["times"] for one in peers)]


def best_on_our_engine(entry: Figures) -> list[float]:
    return [min(entry["systems"][name]["times"] for name in SHARED)]


def over_floor(entry: Figures) -> list[float]:
    return [entry["systems"]["gym_trl"]["seconds"] / entry["floors"]["seconds"]]


def served(entry: Figures) -> list[float]:
    return [entry["systems"]["gym_trl_served"]["times"]]


def peers_overhead(found: Figures) -> list[float]:
    ours, *peers = (one["by_turns"] for one in found["systems"].values() if "by_turns" in one)
    return [min(peer["64"] for peer in peers) / ours["64"]]


def without_tokenizer(found: Figures) -> list[float]:
    ours = found["systems"]["gym_trl"]["replayed"]
    return [ours["by_turns"]["64"], ours["each_turn_more"]]


def median(rounds: Figures, name: str) -> float:
    return float(statistics.median(rounds[name]))


def by_default(found: Figures) -> list[float]:
    return [median(found["default_s"], "no option") / median(found["default_s"], "thread, by hand")]


def boxed(found: Figures) -> list[float]:
    games = (found["beside_peers"][name] for name in ("GuessNumber", "Mastermind", "TowerOfHanoi"))
    return [game["boxed"] / game["gem"] for game in games]


def vectors(found: Figures) -> list[float]:
    return [found["microseconds_a_step"]["GEM"] / found["microseconds_a_step"]["TextVectorEnv"]]


def sleepers(found: Figures) -> list[float]:
    return [one["share"] for name, one in found["sleepers"].items() if name.startswith("256") and "process" in name]


def first_step(found: Figures) -> list[float]:
    return [median(found["starts"], "`gym-trl train`, to the first step")]


def imported(found: Figures) -> list[float]:
    return [1e3 * found["rows"]["gym-trl after gymnasium"]["import_s"]]


def soaked(found: Figures) -> list[float]:
    return [found["per_1000_episodes"][part]["uss_kb"][0] for part in ("inline", "process")]


def computed(found: Figures) -> list[float]:
    return [row["of_length"] for row in found["rows"] if row["engine"] == "TransformersEngine"]


def windowed(found: Figures) -> list[float]:
    return [row["of_lockstep"] for row in found["rows"] if row["engine"] == "TransformersEngine"]


def minutes(found: Figures) -> list[float]:
    return [found["minutes"]]


GOALS = (
    Goal(
        "rollouts, environments of 0 ms: the best peer's seconds over ours",
        "rollouts", rollouts(0, best_peer), 1.25, at_least=True,
        reason="most of ours is the engine's own step, and a step of fewer episodes costs a CPU less",
    ),
    Goal(
        "the same, for SkyRL's and TextArena's loops, which get our engine loop here",
        "rollouts", rollouts(0, best_on_our_engine), 1.25, at_least=True,
        reason="the engine is stepped alike; SkyRL's own client sends HTTP, and TextArena asks for no logprobs",
    ),
    Goal(
        "rollouts, 100 ms: seconds over the floor",
        "rollouts", rollouts(100, over_floor), 1.1,
        reason="the floor is the longest episode alone, whose steps of one sequence are not shared with 63 others",
    ),
    *(
        Goal(
            f"rollouts over HTTP, {latency_ms} ms: seconds over those in the trainer's process",
            "rollouts", rollouts(latency_ms, served), 1.25,
            reason="vLLM's route decodes and sends each token's text; its engine in a process of its own, without "
            "HTTP, takes 1.12 and 1.19",
        )
        for latency_ms in (0, 100)
    ),
    Goal(
        "no option set, environment of 100 ms with text actions: seconds over threads chosen by hand",
        "executors", by_default, 1.15,
        reason="the first episode is played alone for three steps, once, to measure it: half of so short a rollout",
    ),
    Goal(
        "overhead per turn, 64 turns: the best peer's over ours",
        "adapter_overhead", peers_overhead, 5.0, at_least=True,
        reason="the best one is SkyRL's generator; a third of ours is the tokenizer's own",
    ),
    Goal(
        "the same without the tokenizer: at 64 turns, and each turn more",
        "adapter_overhead", without_tokenizer, 40.0, "µs",
        reason="per turn the episode's bookkeeping takes 10, engine, environment, delta and response 2 to 4 each; a "
        "rollout's fixed work adds 8 to 20 at 64 turns",
    ),
    Goal(
        "GuessNumber, Mastermind, TowerOfHanoi with boxes: steps/s over GEM's", "envs", boxed, 1.1, at_least=True,
        reason="`ParseAction` also separates thinking, counts unreadable responses and ignores steps after the end",
    ),
    Goal(
        "a vector step: GEM's time over ours", "vectors", vectors, 2.0, at_least=True,
        reason="the games alone take half of GEM's time",
    ),
    Goal(
        "256 sleeping environments, a process each: share of the ideal", "executors", sleepers, 0.85, at_least=True,
        reason="the worker's Python code finds cold caches, and the collector waits for a core; bare processes that "
        "sleep and write reach 92 to 99%",
    ),
    Goal(
        "`gym-trl train` to the first step", "train_start", first_step, 8.0, "s",
        reason="PyTorch, Transformers and TRL take most of it",
    ),
    Goal(
        "`import gym_trl` beyond Gymnasium's", "import", imported, 3.0, "ms",
        reason="it registers the environments and reads the table of leaves, which then imported a module more",
    ),
    Goal(
        "growth of memory in 1,000 episodes, inline and in processes", "soak", soaked, 1.0, "KB",
        reason="memory is taken in pages; in processes, CPython's free list of tuples grows to its bound",
    ),
    Goal("tokens computed of an episode's length, Transformers", "kv_reuse", computed, 1.1),
    Goal("20 turns with sliding windows, Transformers: of lockstep's seconds", "kv_windows", windowed, 0.35),
    Goal("all of `make bench`", "suite", minutes, 30.0, "minutes", reason="real engines and eleven other systems"),
)  # fmt: skip


def row(goal: Goal) -> list[str]:
    """Return the row of a goal: what, the goal, what was measured, the date, and the reason of a miss."""
    limit = f"{'at least' if goal.at_least else 'at most'} {shown(goal.limit)} {goal.unit}".strip()
    path = report.RESULTS / f"{goal.benchmark}.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    try:
        figures = goal.figures(found)
    except KeyError:
        figures = []
    if not figures:
        return [goal.what, limit, "not measured", "", ""]
    measured = f"{', '.join(f'{figure:.3g}' for figure in figures)} {goal.unit}".strip()
    met = goal.met(figures)
    return [goal.what, limit, measured if met else f"**{measured}**", found["date"], "" if met else goal.reason]


def main() -> None:
    rows = [row(goal) for goal in GOALS]
    missed = sum(cells[2].startswith("**") for cells in rows)
    header = ["what", "goal", "measured (**missed**)", "on", "why it is missed"]
    publish("goals", {"missed": missed}, tables=[Table("goals", header, rows)])


if __name__ == "__main__":
    main()
