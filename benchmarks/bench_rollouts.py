"""Whole rollouts of real games, next to other systems and to what no system can beat: the real vLLM on a CPU.

$ python benchmarks/bench_rollouts.py [--quick] [names of systems]

64 episodes in groups of four, of GuessNumber and Wordle: 2 to 20 turns, by a Pareto draw from the game's seed, of about
15 tokens each, by a tiny model that has learnt how answers are written (``systems/generator.py``) and nothing about the
games. A step of an environment takes as long as the exponential draw of its seed and turn says. All systems play the
same games with the same model, engine settings and limits; ours and those that have a choice step environments in
threads where they wait. Rounds alternate; figures are medians.

Two floors: all tokens of our rollout in one batch, whose engine steps and seconds are the least that generating them
takes, and the turns and waits of the episode that takes longest, alone. The larger of both is the floor of the seconds.
Systems that play one episode after the other play the first sixteen, once; their steps and seconds are multiplied by
the turns that are missing.
"""

import statistics
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from report import QUICK, Cell, Table, publish
from systems import SYSTEMS, Game, Run, System
from systems.generator import game_of, saved_model
from systems.worker import PlayError, Worker

EPISODES = 32 if QUICK else 64
FEW = 8 if QUICK else 16
GAMES = ("GuessNumber",) if QUICK else ("GuessNumber", "Wordle")
LATENCIES_MS = (0, 100) if QUICK else (0, 20, 100)
ROUNDS = 1 if QUICK else 3
QUICK_SYSTEMS = ("gym_trl", "lockstep_threads", "environment_factory")
OURS = "gym_trl"


@dataclass
class Row:
    """What a system did under one condition, round by round."""

    seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    prefilled: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    error: str | None = None

    def add(self, run: Run, scale: float) -> None:
        """Write down a round; ``scale`` stands for the episodes that were left out."""
        counts = run.counts
        self.seconds.append(counts.seconds * scale)
        self.steps.append(counts.steps * scale)
        self.sampled.append(counts.sampled * scale)
        self.prefilled.append(counts.prefilled * scale)
        self.turns.append(sum(episode.turns for episode in run.played) * scale)


class Workers:
    """A process for each folder, started when it is first needed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._workers: dict[str | None, Worker] = {}

    def of(self, system: System) -> Worker:
        """The one that has this system's packages."""
        worker = self._workers.get(system.folder)
        if worker is None or not worker.alive:
            worker = self._workers[system.folder] = self._stack.enter_context(Worker(system.folder))
        return worker

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def measure(names: list[str]) -> list[dict[str, Any]]:
    """One entry for each game and latency."""
    with Workers() as workers:
        for name in names:  # what an engine and a trainer make on first use
            attempt(workers, name, game_of("GuessNumber", episodes=FEW, latency_s=0.0))
        return [under(workers, names, game_name, latency_ms) for game_name in GAMES for latency_ms in LATENCIES_MS]


def attempt(workers: Workers, name: str, game: Game) -> Run | str:
    """A rollout, or why there is none."""
    try:
        run: Run = workers.of(SYSTEMS[name]).call(SYSTEMS[name].module, "play", game)
    except PlayError as error:
        return str(error)
    return run


def under(workers: Workers, names: list[str], game_name: str, latency_ms: int) -> dict[str, Any]:
    """All systems under one condition, in turn, and the floors."""
    whole = game_of(game_name, episodes=EPISODES, latency_s=latency_ms / 1000)
    few = game_of(game_name, episodes=FEW, latency_s=latency_ms / 1000)
    rows = {name: Row() for name in names}
    floors: dict[str, list[float]] = {"steps": [], "generation_s": [], "alone_s": []}
    share = 1.0
    for number in range(ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            row, alone = rows[name], SYSTEMS[name].one_by_one
            if row.error or (alone and row.seconds):
                continue
            run = attempt(workers, name, few if alone else whole)
            if isinstance(run, str):
                row.error = run
            else:
                row.add(run, share if alone else 1.0)
                print(f"{game_name}, {latency_ms} ms, {name}: {row.seconds[-1]:.2f} s", flush=True)
            if name == OURS and not isinstance(run, str):
                share = sum(one.turns for one in run.played) / sum(one.turns for one in run.played[:FEW])
                worker = workers.of(SYSTEMS[OURS])
                batch = worker.call("floors", "generation", run.played)
                longest = worker.call("floors", "longest_alone", whole, run.played)
                floors["steps"].append(batch.steps)
                floors["generation_s"].append(batch.seconds)
                floors["alone_s"].append(longest.seconds)
    least = {name: statistics.median(values) for name, values in floors.items()}
    return {
        "game": game_name,
        "latency_ms": latency_ms,
        "floors": {**least, "seconds": max(least["generation_s"], least["alone_s"])},
        "systems": {name: vars(row) for name, row in rows.items()},
    }


HEADER = (
    *("", "latency", "engine steps", "of the floor"),
    *("tokens/s", "seconds", "of the floor", "ours is so many times as fast"),
)


def table(measured: list[dict[str, Any]], game_name: str) -> Table:
    """All latencies of a game, the best first."""
    rows: list[list[Cell]] = []
    for entry in measured:
        if entry["game"] != game_name:
            continue
        latency, floors, systems = f"{entry['latency_ms']} ms", entry["floors"], entry["systems"]
        rows.append(["floors", latency, round(floors["steps"]), 1.0, None, floors["seconds"], 1.0, None])
        ours = statistics.median(systems[OURS]["seconds"])
        done = {name: system for name, system in systems.items() if system["seconds"] and not system["error"]}
        for name, system in sorted(done.items(), key=lambda item: statistics.median(item[1]["seconds"])):
            seconds, steps = statistics.median(system["seconds"]), statistics.median(system["steps"])
            speed = statistics.median(system["sampled"]) / seconds
            over = [steps / floors["steps"], speed, seconds, seconds / floors["seconds"], seconds / ours]
            rows.append([SYSTEMS[name].title, latency, round(steps), *over])
        rows += [
            [SYSTEMS[name].title, latency, system["error"], *[None] * 5]
            for name, system in systems.items()
            if name not in done
        ]
    return Table(f"rollouts-{game_name}", HEADER, rows)


def draw(measured: list[dict[str, Any]], figure: Any) -> None:
    """Seconds over the floor, a bar for each system under each latency."""
    panels = figure.subplots(1, len(GAMES), sharey=True, squeeze=False)[0]
    for panel, game_name in zip(panels, GAMES, strict=True):
        entries = [entry for entry in measured if entry["game"] == game_name]
        names = [name for name in SYSTEMS if any(entry["systems"].get(name, {}).get("seconds") for entry in entries)]
        for index, name in enumerate(names):
            over = [
                statistics.median(entry["systems"][name]["seconds"]) / entry["floors"]["seconds"]
                if entry["systems"][name]["seconds"]
                else 0.0
                for entry in entries
            ]
            places = [place + (index - len(names) / 2) * 0.8 / len(names) for place in range(len(entries))]
            panel.bar(places, over, width=0.8 / len(names), label=SYSTEMS[name].title)
        panel.set_yscale("log")
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_xticks(range(len(entries)), [f"{entry['latency_ms']} ms" for entry in entries])
        panel.set_title(game_name)
    panels[0].set_ylabel("seconds, as a multiple of the floor")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)


def main() -> None:
    """Measure and publish."""
    wanted = [word for word in sys.argv[1:] if not word.startswith("-")]
    if wrong := [name for name in wanted if name not in SYSTEMS]:
        raise SystemExit(f"no system is called {wrong[0]!r}: there are {', '.join(SYSTEMS)}")
    names = [OURS, *(name for name in wanted or (QUICK_SYSTEMS if QUICK else SYSTEMS) if name != OURS)]
    saved_model()
    measured = measure(names)
    publish(
        "rollouts",
        {"episodes": EPISODES, "rounds": ROUNDS, "conditions": measured},
        tables=[table(measured, game_name) for game_name in GAMES],
        picture=lambda figure: draw(measured, figure),
    )


if __name__ == "__main__":
    main()
