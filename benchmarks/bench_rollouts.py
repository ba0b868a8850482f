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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from report import QUICK, Cell, Table, medians, publish, require, run, shown
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


class Workers:
    """Processes by folder of packages, started on first use."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._workers: dict[str | None, Worker] = {}

    def call(self, folder: str | None, *words: Any) -> Any:
        worker = self._workers.get(folder)
        if worker is None or not worker.alive:
            worker = self._workers[folder] = self._stack.enter_context(Worker(folder))
        return worker.call(*words)

    def play(self, name: str, game: Game) -> Run:
        """Return a system's rollout; a failure raises ``PlayError``."""
        system = SYSTEMS[name]
        played: Run = self.call(system.folder, system.module, system.function, game)
        return played

    def warm_up(self, names: Sequence[str]) -> None:
        """Start engines and trainers, the processes of all folders at the same time."""
        game = game_of("GuessNumber", episodes=FEW, latency_s=0.0)

        def of_folder(folder: str | None) -> None:
            for name in (name for name in names if SYSTEMS[name].folder == folder):
                with suppress(PlayError):  # which its measurement will say
                    self.play(name, game)
                print(f"{name} is ready", flush=True)

        folders = {SYSTEMS[name].folder for name in names}
        with ThreadPoolExecutor(len(folders)) as threads:
            list(threads.map(of_folder, folders))


@dataclass
class Condition:
    """Game and latency, with each system's rounds and the floors."""

    game: str
    latency_ms: int
    names: Sequence[str]
    rounds: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    floors: list[dict[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts = {name: self._part(name) for name in self.names}
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.whole = self._some(EPISODES)

    def _some(self, episodes: int, **options: Any) -> Game:
        return game_of(self.game, episodes=episodes, latency_s=self.latency_ms / 1000, **options)

    def _part(self, name: str) -> Game | None:
        """Return the episodes that a system plays; ``None`` if it is not measured here."""
        system = SYSTEMS[name]
        waits_add = system.one_by_one or (system.steps_in_sequence and self.latency_ms > 0)
        if ((system.slow or waits_add) and self.game != GAMES[0]) or (system.for_waits and not self.latency_ms):
            return None
        if system.one_by_one:
            return self._some(FEW, group_size=2)
        return self._some(min(SOME, EPISODES) if waits_add else EPISODES)

    def measure(self, workers: Workers, name: str) -> None:
        """Run a system unless it failed before."""
        if name in self.errors:
            return
        try:
            played = workers.play(name, self.parts[name])
        except PlayError as error:
            self.errors[name] = str(error)
            print(f"{self.game}, {self.latency_ms} ms, {name}: {error}", flush=True)
            return
        self.rounds.setdefault(name, []).append(self._scaled(played))
        print(f"{self.game}, {self.latency_ms} ms, {name}: {self.rounds[name][-1]['seconds']:.2f} s", flush=True)
        if name == OURS:
            batch: Counts = workers.call(None, "floors", "generation", played.played)
            longest: Counts = workers.call(None, "floors", "longest_alone", self.whole, played.played)
            self.floors.append({"steps": batch.steps, "seconds": max(batch.seconds, longest.seconds)})

    def _scaled(self, played: Run) -> dict[str, float]:
        """Return a round's figures; those of a part of the episodes are scaled to the whole game."""
        counts = played.counts
        if len(played.played) == EPISODES:
            return {"seconds": counts.seconds, "steps": counts.steps}
        part = [(one.seed or 0, one.turns) for one in played.played]
        everything = [(seed, turns_of(seed)) for seed in self.whole.seeds]
        scale = sum(turns for _, turns in everything) / sum(turns for _, turns in part)
        seconds = (counts.seconds - self._waits(part)) * scale + self._waits(everything)
        return {"seconds": seconds, "steps": counts.steps * scale}

    def _waits(self, games: Sequence[tuple[int, int]]) -> float:
        """Return the total waiting time of games, each given by its seed and turns."""
        return sum(sum(delays(seed, self.whole.latency_s)[:turns]) for seed, turns in games)

    def result(self) -> dict[str, Any]:
        """Return the medians for the report."""
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
        }
        condition = {"game": self.game, "latency_ms": self.latency_ms}
        return {**condition, "floors": medians(self.floors), "systems": systems, "errors": self.errors}


def measure(names: Sequence[str]) -> list[dict[str, Any]]:
    """Return a result for each condition that the time allows."""
    conditions = [Condition(game, latency_ms, names) for latency_ms in LATENCIES_MS for game in GAMES]
    with ExitStack() as stack:
        workers = Workers(stack)
        workers.warm_up(names)
        deadline = time.monotonic() + 60 * MINUTES
        for number in range(ROUNDS):
            for place, condition in enumerate(conditions):
                playing = list(condition.parts)
                first = (place + number * len(playing) // ROUNDS) % len(playing)
                for name in playing[first:] + playing[:first]:
                    if time.monotonic() < deadline:
                        condition.measure(workers, name)
    done = [condition.result() for condition in conditions if condition.floors]
    return sorted(done, key=lambda entry: (GAMES.index(entry["game"]), entry["latency_ms"]))


HEADER = (
    *("", "latency", "engine steps", "of the floor", "seconds", "least to most"),
    *("of the floor", "ours is so many times as fast", "episodes"),
)


def table(measured: list[dict[str, Any]], game: str) -> Table:
    """Return the table of all latencies of a game, the best first."""
    rows: list[list[Cell]] = []
    for entry in measured:
        if entry["game"] != game:
            continue
        latency, floors, errors = f"{entry['latency_ms']} ms", entry["floors"], entry["errors"]
        rows.append(["floors", latency, round(floors["steps"]), 1.0, floors["seconds"], None, 1.0, None, None])
        done = {name: system for name, system in entry["systems"].items() if name not in errors}
        for name, one in sorted(done.items(), key=lambda item: item[1]["seconds"]):
            every = [round_["seconds"] for round_ in one["rounds"]]
            work = [round(one["steps"]), one["steps"] / floors["steps"]]
            over = [one["seconds"], f"{shown(min(every))} to {shown(max(every))}", one["seconds"] / floors["seconds"]]
            rows.append([SYSTEMS[name].title, latency, *work, *over, one["times"], one["episodes"]])
        rows += [[SYSTEMS[name].title, latency, error, *[None] * 6] for name, error in errors.items()]
    return Table(f"rollouts-{game}", HEADER, rows)


def draw(measured: list[dict[str, Any]], figure: Any) -> None:
    """Draw the seconds over the floor: a panel for each game and latency, a bar for each system."""
    figure.set_size_inches(12, 4.5)
    names = [name for name in SYSTEMS if any(name in entry["systems"] for entry in measured)]
    for panel, entry in zip(figure.subplots(1, len(measured), sharey=True, squeeze=False)[0], measured, strict=True):
        seconds = [entry["systems"].get(name, {}).get("seconds", 0.0) for name in names]
        over = [one / entry["floors"]["seconds"] for one in seconds]
        bars = panel.barh([SYSTEMS[name].title for name in names], over)
        panel.bar_label(bars, [f"{one:.3g}" if one else "" for one in over], padding=2)
        panel.axvline(1.0, color="black", linewidth=0.8)
        panel.margins(x=0.25)
        panel.set_title(f"{entry['game']}, {entry['latency_ms']} ms", fontsize=10)
    figure.axes[0].invert_yaxis()
    figure.supxlabel("seconds, as a multiple of the floor")


def main() -> None:
    require("vllm")
    names, part = compared(("gym_trl", "lockstep_threads", "environment_factory") if QUICK else ())
    saved_model()
    measured = measure([OURS, *(name for name in names if name != OURS)])
    notes = {system.title: system.notes for system in SYSTEMS.values() if system.notes}
    publish(
        "rollouts",
        {"episodes": EPISODES, "load": os.getloadavg(), "notes": notes, "conditions": measured},
        [table(measured, game) for game in GAMES],
        picture=lambda figure: draw(measured, figure),
        part=part,
    )


if __name__ == "__main__":
    run(main)
