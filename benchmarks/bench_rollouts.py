"""Compare whole rollouts of real games with other systems and lower bounds: the real vLLM on a CPU.

$ python benchmarks/bench_rollouts.py [--quick] [NAME ...]     # the systems named, printed only

README.md describes the games and the conditions. All systems play the same games with the same model, engine settings
and limits, three rounds each, and each round begins with another system. Seconds are medians of the rounds.

There are two floors: all tokens of our rollout in one batch, and the turns and waits of the longest episode alone. The
larger one is the floor of the seconds.

Slow systems play the first game only, and less of it: a system that plays one episode after the other plays four, and
one that steps one environment after the other plays 16 if environments wait. Work is scaled to the turns of all
episodes, and the waits of all are added; the column of episodes says so. When the time is up, the rest is left out.
"""

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

from report import QUICK, Cell, Table, grouped_bars, medians, publish, require, run, shown
from systems import SYSTEMS, Counts, Game, Run
from systems.game import delays, turns_of
from systems.generator import game_of, saved_model
from systems.worker import PlayError, Worker, compared

EPISODES = 16 if QUICK else 64
FEW, SOME = 4, 16
GAMES = ("GuessNumber",) if QUICK else ("GuessNumber", "Wordle")
LATENCIES_MS = (100,) if QUICK else (100, 0)
ROUNDS = 1 if QUICK else 3
MINUTES = 1 if QUICK else 6
OURS = "gym_trl"


def part_of(name: str, game_name: str, latency_ms: int) -> Game | None:
    """Return the episodes that a system plays; ``None`` if it is not measured here."""
    system, latency_s = SYSTEMS[name], latency_ms / 1000
    waits_add = system.one_by_one or (system.steps_in_sequence and latency_ms > 0)
    if ((system.slow or waits_add) and game_name != GAMES[0]) or (system.for_waits and not latency_ms):
        return None
    if system.one_by_one:
        return game_of(game_name, episodes=FEW, latency_s=latency_s, group_size=2)
    return game_of(game_name, episodes=min(SOME, EPISODES) if waits_add else EPISODES, latency_s=latency_s)


def figures_of(run: Run, whole: Game) -> dict[str, float]:
    """Return a round's figures; those of a part of the episodes are scaled to the ``whole`` game."""
    scale, waits = 1.0, (0.0, 0.0)
    if len(run.played) < len(whole.seeds):
        turns = [(episode.seed or 0, episode.turns) for episode in run.played]
        everything = [(seed, turns_of(seed)) for seed in whole.seeds]
        scale = sum(count for _, count in everything) / sum(count for _, count in turns)
        waits = waiting_s(turns, whole.latency_s), waiting_s(everything, whole.latency_s)
    return {
        "seconds": (run.counts.seconds - waits[0]) * scale + waits[1],
        "processor_seconds": run.counts.processor_seconds * scale,
        "steps": run.counts.steps * scale,
        "sampled": run.counts.sampled * scale,
        "prefilled": run.counts.prefilled * scale,
    }


def waiting_s(turns: list[tuple[int, int]], latency_s: float) -> float:
    """Return the total waiting time of these games' environments, each given by its seed and turns."""
    return sum(sum(delays(seed, latency_s)[:count]) for seed, count in turns)


class Workers:
    """Processes by folder of packages, started on first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._workers: dict[str | None, Worker] = {}
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """Seconds spent on each system and on the floors, with their start."""

    def call(self, name: str, folder: str | None, *words: Any) -> Any:
        began = time.monotonic()
        worker = self._workers.get(folder)
        try:
            if worker is None or not worker.alive:
                worker = self._workers[folder] = self._stack.enter_context(Worker(folder))
            return worker.call(*words)
        finally:
            self.seconds[name] += time.monotonic() - began

    def play(self, name: str, game: Game) -> Run:
        """Return a system's rollout; a failure raises ``PlayError``."""
        system = SYSTEMS[name]
        run: Run = self.call(name, system.folder, system.module, system.function, game)
        return run

    def warm_up(self, names: list[str]) -> None:
        """Start engines and trainers, the processes of all folders at the same time."""
        game = game_of("GuessNumber", episodes=FEW, latency_s=0.0)

        def of_folder(folder: str | None) -> None:
            for name in (name for name in names if SYSTEMS[name].folder == folder):
                with suppress(PlayError):
                    self.play(name, game)
                print(f"{name} is ready after {self.seconds[name]:.0f} s", flush=True)

        folders = {SYSTEMS[name].folder for name in names}
        with ThreadPoolExecutor(len(folders)) as threads:
            list(threads.map(of_folder, folders))


class Condition:
    """Game and latency, with each system's rounds and the floors."""

    def __init__(self, game_name: str, latency_ms: int, names: list[str]) -> None:
        self.name, self.latency_ms = game_name, latency_ms
        self.whole = game_of(game_name, episodes=EPISODES, latency_s=latency_ms / 1000)
        parts = {name: part_of(name, game_name, latency_ms) for name in names}
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.rounds: dict[str, list[dict[str, float]]] = {name: [] for name in self.parts}
        self.errors: dict[str, str] = {}
        self.floors: list[dict[str, float]] = []

    def play(self, workers: Workers, name: str) -> None:
        """Run a system unless it failed before."""
        rounds = self.rounds[name]
        if name in self.errors:
            return
        try:
            run = workers.play(name, self.parts[name])
        except PlayError as error:
            self.errors[name] = str(error)
        else:
            rounds.append(figures_of(run, self.whole))
            if name == OURS:
                batch: Counts = workers.call("floors", None, "floors", "generation", run.played)
                longest: Counts = workers.call("floors", None, "floors", "longest_alone", self.whole, run.played)
                floor = {"steps": batch.steps, "processor_seconds": batch.processor_seconds}
                self.floors.append({**floor, "generation_s": batch.seconds, "alone_s": longest.seconds})
        said = self.errors.get(name) or f"{rounds[-1]['seconds']:.2f} s"
        print(f"{self.name}, {self.latency_ms} ms, {name}: {said}", flush=True)

    def result(self) -> dict[str, Any]:
        """Return the medians for the report."""
        floors = medians(self.floors)
        ours = self.rounds[OURS]
        systems = {
            name: {
                **medians(rounds),
                # Of the same rounds: what was measured an hour apart cannot be compared on this machine.
                "times": statistics.median(
                    one["seconds"] / own["seconds"] for one, own in zip(rounds, ours, strict=False)
                ),
                "episodes": len(self.parts[name].seeds),
                "rounds": rounds,
            }
            for name, rounds in self.rounds.items()
            if rounds
        }
        return {
            "game": self.name,
            "latency_ms": self.latency_ms,
            "floors": {**floors, "seconds": max(floors["generation_s"], floors["alone_s"])},
            "systems": systems,
            "errors": self.errors,
        }


def measure(names: list[str]) -> list[dict[str, Any]]:
    """Return a result for each condition that the time allows."""
    conditions = [Condition(game_name, latency_ms, names) for latency_ms in LATENCIES_MS for game_name in GAMES]

    def order() -> Iterator[tuple[Condition, str]]:
        for number in range(ROUNDS):
            for place, condition in enumerate(conditions):
                playing = list(condition.parts)
                first = (place + number * len(playing) // ROUNDS) % len(playing)
                yield from ((condition, name) for name in playing[first:] + playing[:first])

    with ExitStack() as stack:
        workers = Workers(stack)
        workers.warm_up(names)
        deadline = time.monotonic() + 60 * MINUTES
        for condition, name in order():
            if time.monotonic() < deadline:
                condition.play(workers, name)
        for name, seconds in sorted(workers.seconds.items(), key=lambda item: -item[1]):
            print(f"{name} took {seconds:.0f} s in all", flush=True)
    done = [condition.result() for condition in conditions if condition.floors]
    return sorted(done, key=lambda entry: (GAMES.index(entry["game"]), entry["latency_ms"]))


HEADER = (
    *("", "latency", "engine steps", "of the floor", "seconds", "least to most"),
    *("of the floor", "ours is so many times as fast", "episodes"),
)


def table(measured: list[dict[str, Any]], game_name: str) -> Table:
    """Return the table of all latencies of a game, the best first."""
    rows: list[list[Cell]] = []
    for entry in measured:
        if entry["game"] != game_name:
            continue
        latency, floors, errors = f"{entry['latency_ms']} ms", entry["floors"], entry["errors"]
        steps, least = floors["steps"], floors["seconds"]
        rows.append(["floors", latency, round(steps), 1.0, least, None, 1.0, None, None])
        done = {name: system for name, system in entry["systems"].items() if name not in errors}
        for name, one in sorted(done.items(), key=lambda item: item[1]["seconds"]):
            every = [round_["seconds"] for round_ in one["rounds"]]
            spread = f"{shown(min(every))} to {shown(max(every))}"
            work = [round(one["steps"]), one["steps"] / steps]
            over = [one["seconds"], spread, one["seconds"] / least, one["times"]]
            rows.append([SYSTEMS[name].title, latency, *work, *over, one["episodes"]])
        rows += [[SYSTEMS[name].title, latency, error, *[None] * 6] for name, error in errors.items()]
    return Table(f"rollouts-{game_name}", HEADER, rows)


def draw(measured: list[dict[str, Any]], figure: Any) -> None:
    """Draw the seconds over the floor, a bar for each system under each latency."""
    panels = figure.subplots(1, len(GAMES), sharey=True, squeeze=False)[0]
    names = [name for name in SYSTEMS if any(name in entry["systems"] for entry in measured)]
    for panel, game_name in zip(panels, GAMES, strict=True):
        entries = [entry for entry in measured if entry["game"] == game_name]
        over = {
            SYSTEMS[name].title: [
                name in entry["systems"] and entry["systems"][name]["seconds"] / entry["floors"]["seconds"]
                for entry in entries
            ]
            for name in names
        }
        label = "seconds, as a multiple of the floor" if panel is panels[0] else ""
        grouped_bars(panel, [f"{entry['latency_ms']} ms" for entry in entries], over, label)
        panel.set_yscale("log")
        panel.axhline(1.0, color="black", linewidth=0.8)
        panel.set_title(game_name)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=7)


def main() -> None:
    require(packages=["vllm"])
    names, part = compared(("gym_trl", "lockstep_threads", "environment_factory") if QUICK else ())
    saved_model()
    measured = measure([OURS, *(name for name in names if name != OURS)])
    notes = {system.title: system.notes for system in SYSTEMS.values() if system.notes}
    publish(
        "rollouts",
        {"episodes": EPISODES, "rounds": ROUNDS, "load": os.getloadavg(), "notes": notes, "conditions": measured},
        tables=[table(measured, game_name) for game_name in GAMES],
        picture=lambda figure: draw(measured, figure),
        part=part,
    )


if __name__ == "__main__":
    run(main)
