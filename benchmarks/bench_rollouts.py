"""Compare whole rollouts of real games with other systems and lower bounds: the real vLLM on a CPU.

$ python benchmarks/bench_rollouts.py [--quick] [minutes] [names of systems]

64 episodes in groups of four, of GuessNumber and Wordle: 2 to 20 turns, by a Pareto draw from the game's seed, of about
15 tokens each, by a tiny model that has learnt how answers are written (``systems/generator.py``) and nothing about the
games. A step of an environment takes as long as the exponential draw of its seed and turn says. All systems play the
same games with the same model, engine settings and limits; ours and those that have a choice step environments in
threads where they wait. There are two rounds, and another system begins each; seconds are the mean of both, and how
many times as fast ours is, that of both ratios. What takes more than three times as long as ours is measured once.

Two floors: all tokens of our rollout in one batch, whose engine steps and seconds are the least that generating them
takes, and the turns and waits of the episode that takes longest, alone. The larger of both is the floor of the seconds.
Systems that play one episode after the other play the first eight, once: their steps, tokens and seconds of work are
multiplied by the turns that are missing, and to that comes what all 64 episodes wait for their environments. What there
is no time for (eleven minutes) is left out, which is a part of the second round at first.
"""

import ast
import os
import statistics
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from report import QUICK, Cell, Table, publish, require
from systems import SYSTEMS, Counts, Game, Run, System
from systems.game import delays, turns_of
from systems.generator import game_of, saved_model
from systems.worker import PlayError, Worker

EPISODES = 16 if QUICK else 64
FEW = 8
GAMES = ("GuessNumber",) if QUICK else ("GuessNumber", "Wordle")
LATENCIES_MS = (100,) if QUICK else (100, 0, 20)  # in the order of interest, should time be short
ROUNDS = 1 if QUICK else 2
MINUTES = 1 if QUICK else 11
QUICK_SYSTEMS = ("gym_trl", "lockstep_threads", "environment_factory")
OURS = "gym_trl"
SYSTEMS_FOLDER = Path(__file__).parent / "systems"
SLOW = 3  # times as long as ours, and once is enough


@dataclass
class Row:
    """Results of a system under one condition, round by round."""

    seconds: list[float] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    sampled: list[float] = field(default_factory=list)
    prefilled: list[float] = field(default_factory=list)
    turns: list[float] = field(default_factory=list)
    error: str | None = None

    def add(self, run: Run, whole: Game | None = None) -> None:
        """Record a round; ``whole`` is the game that an episode-by-episode run extrapolates to."""
        counts, scale, waits = run.counts, 1.0, (0.0, 0.0)
        if whole is not None:
            turns = [(episode.seed or 0, episode.turns) for episode in run.played]
            everything = [(seed, turns_of(seed)) for seed in whole.seeds]
            scale = sum(count for _, count in everything) / sum(count for _, count in turns)
            waits = waiting_s(turns, whole.latency_s), waiting_s(everything, whole.latency_s)
        self.seconds.append((counts.seconds - waits[0]) * scale + waits[1])
        self.processor_seconds.append(counts.processor_seconds * scale)
        self.steps.append(counts.steps * scale)
        self.sampled.append(counts.sampled * scale)
        self.prefilled.append(counts.prefilled * scale)
        self.turns.append(sum(episode.turns for episode in run.played) * scale)


def waiting_s(turns: list[tuple[int, int]], latency_s: float) -> float:
    """Return the total waiting time of these games' environments, each given by its seed and turns."""
    return sum(sum(delays(seed, latency_s)[:count]) for seed, count in turns)


class Workers:
    """Processes by folder of packages, started on first use."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._workers: dict[str | None, Worker] = {}

    def of(self, system: System) -> Worker:
        """Return the worker with this system's packages."""
        worker = self._workers.get(system.folder)
        if worker is None or not worker.alive:
            worker = self._workers[system.folder] = self._stack.enter_context(Worker(system.folder))
        return worker

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def attempt(workers: Workers, name: str, game: Game) -> Run | str:
    """Return a rollout, or the reason of its failure."""
    try:
        run: Run = workers.of(SYSTEMS[name]).call(SYSTEMS[name].module, "play", game)
    except PlayError as error:
        return str(error)
    return run


class Condition:
    """Game and latency, with each system's results and the floors."""

    def __init__(self, game_name: str, latency_ms: int, names: list[str]) -> None:
        self.name, self.latency_ms = game_name, latency_ms
        self.whole = game_of(game_name, episodes=EPISODES, latency_s=latency_ms / 1000)
        self.few = game_of(game_name, episodes=FEW, latency_s=latency_ms / 1000)
        self.rows = {name: Row() for name in names}
        self.floors: dict[str, list[float]] = {
            name: [] for name in ("steps", "generation_s", "generation_processor_s", "alone_s")
        }

    def play(self, workers: Workers, name: str) -> None:
        """Run a system unless it failed before or has been measured enough."""
        row, few, ours = self.rows[name], SYSTEMS[name].one_by_one, self.rows[OURS]
        if row.error or (row.seconds and (few or row.seconds[0] > SLOW * ours.seconds[0])):
            return
        run = attempt(workers, name, self.few if few else self.whole)
        if isinstance(run, str):
            row.error = run
            print(f"{self.name}, {self.latency_ms} ms, {name}: {run}", flush=True)
            return
        row.add(run, self.whole if few else None)
        print(f"{self.name}, {self.latency_ms} ms, {name}: {row.seconds[-1]:.2f} s", flush=True)
        if name == OURS:
            self._measure_floors(workers, run)

    def _measure_floors(self, workers: Workers, run: Run) -> None:
        worker = workers.of(SYSTEMS[OURS])
        batch: Counts = worker.call("floors", "generation", run.played)
        longest: Counts = worker.call("floors", "longest_alone", self.whole, run.played)
        for values, value in zip(
            self.floors.values(), (batch.steps, batch.seconds, batch.processor_seconds, longest.seconds), strict=True
        ):
            values.append(value)

    def result(self) -> dict[str, Any]:
        """Return the results for the report."""
        least = {name: statistics.median(values) for name, values in self.floors.items()}
        return {
            "game": self.name,
            "latency_ms": self.latency_ms,
            "floors": {**least, "seconds": max(least["generation_s"], least["alone_s"])},
            "systems": {name: vars(row) for name, row in self.rows.items()},
        }


def measure(names: list[str], minutes: float) -> list[dict[str, Any]]:
    """Return a result for each condition that the time allows."""
    deadline = time.monotonic() + 60 * minutes
    conditions = [Condition(game_name, latency_ms, names) for latency_ms in LATENCIES_MS for game_name in GAMES]
    with Workers() as workers:
        for name in names:  # warm up engines and trainers
            began = time.monotonic()
            attempt(workers, name, game_of("GuessNumber", episodes=FEW, latency_s=0.0))
            print(f"{name} is ready after {time.monotonic() - began:.0f} s", flush=True)
        alone = [name for name in names if SYSTEMS[name].one_by_one]
        together = [name for name in names if name not in alone]
        for number in range(ROUNDS):
            for place, condition in enumerate(conditions):
                first = (place + number * len(together) // ROUNDS) % len(together)
                for name in together[first:] + together[:first]:
                    if time.monotonic() < deadline:
                        condition.play(workers, name)
            for condition in conditions:
                for name in alone:
                    if time.monotonic() < deadline:
                        condition.play(workers, name)
    done = [condition.result() for condition in conditions if condition.floors["steps"]]
    return sorted(done, key=lambda entry: (GAMES.index(entry["game"]), entry["latency_ms"]))


HEADER = (
    *("", "latency", "engine steps", "of the floor", "seconds of processor"),
    *("tokens/s", "seconds", "of the floor", "ours is so many times as fast", "rounds"),
)


def table(measured: list[dict[str, Any]], game_name: str) -> Table:
    """Return the table of all latencies of a game, the best first."""
    rows: list[list[Cell]] = []
    for entry in measured:
        if entry["game"] != game_name:
            continue
        latency, floors, systems = f"{entry['latency_ms']} ms", entry["floors"], entry["systems"]
        busy = floors["generation_processor_s"]
        rows.append(["floors", latency, round(floors["steps"]), 1.0, busy, None, floors["seconds"], 1.0, None, None])
        ours = systems[OURS]["seconds"]
        systems = {name: system for name, system in systems.items() if system["seconds"] or system["error"]}
        done = {name: system for name, system in systems.items() if system["seconds"] and not system["error"]}
        for name, system in sorted(done.items(), key=lambda item: statistics.median(item[1]["seconds"])):
            seconds, steps = statistics.median(system["seconds"]), statistics.median(system["steps"])
            speed = statistics.median(system["sampled"]) / seconds
            busy = statistics.median(system["processor_seconds"]) or None  # unknown for servers
            # Of the same rounds: what is beside each other on this machine is comparable, an hour later is not.
            times = statistics.median(took / own for took, own in zip(system["seconds"], ours, strict=False))
            over = [steps / floors["steps"], busy, speed, seconds, seconds / floors["seconds"], times]
            rows.append([SYSTEMS[name].title, latency, round(steps), *over, len(system["seconds"])])
        rows += [
            [SYSTEMS[name].title, latency, system["error"], *[None] * 7]
            for name, system in systems.items()
            if name not in done
        ]
    return Table(f"rollouts-{game_name}", HEADER, rows)


def notes_of(module: str) -> tuple[str, ...]:
    """Return the ``NOTES`` of a system's module without importing it: its packages may be in another folder.

    >>> notes_of("lockstep_threads") == notes_of("lockstep")
    True
    """
    for statement in ast.parse((SYSTEMS_FOLDER / f"{module}.py").read_text(encoding="utf-8")).body:
        match statement:
            case ast.Assign(targets=[ast.Name(id="NOTES")], value=value):
                return tuple(ast.literal_eval(value))
            case ast.ImportFrom(module=str(found), names=names) if any(name.name == "NOTES" for name in names):
                return notes_of(found.removeprefix("systems."))
    return ()


def notes() -> Table:
    """Return the table of notes on the systems."""
    told = [(system.title, "; ".join(notes_of(system.module))) for system in SYSTEMS.values()]
    return Table("rollouts-notes", ("", "how it is played"), [[title, said] for title, said in told if said])


def draw(measured: list[dict[str, Any]], figure: Any) -> None:
    """Draw the seconds over the floor, a bar for each system under each latency."""
    panels = figure.subplots(1, len(GAMES), sharey=True, squeeze=False)[0]
    names = [name for name in SYSTEMS if any(entry["systems"].get(name, {}).get("seconds") for entry in measured)]
    for panel, game_name in zip(panels, GAMES, strict=True):
        entries = [entry for entry in measured if entry["game"] == game_name]
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
    require(packages=["vllm"])
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    wanted = [word for word in words if not word.isdigit()]
    minutes = next((int(word) for word in words if word.isdigit()), MINUTES)
    if wrong := [name for name in wanted if name not in SYSTEMS]:
        raise SystemExit(f"no system is called {wrong[0]!r}: there are {', '.join(SYSTEMS)}")
    names = [OURS, *(name for name in wanted or (QUICK_SYSTEMS if QUICK else SYSTEMS) if name != OURS)]
    saved_model()
    measured = measure(names, minutes)
    publish(
        "rollouts",
        {"episodes": EPISODES, "rounds": ROUNDS, "load": os.getloadavg(), "conditions": measured},
        tables=[*(table(measured, game_name) for game_name in GAMES), notes()],
        picture=lambda figure: draw(measured, figure),
        part=bool(wanted) or minutes < MINUTES,
    )


if __name__ == "__main__":
    main()
