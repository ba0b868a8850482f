"""Measure what a step of 64 environments costs: in vectors, and in executors beside Gymnasium's processes.

    python benchmarks/bench_steps.py    # on an idle machine; the load is in the results

A vector steps GuessNumber, which takes a microsecond itself. Executors step an environment that returns a kilobyte at
once, and 64 of them in rounds of one step each, as training does. The measurements alternate, so that other load
affects all alike.
"""

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import gymnasium as gym
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from report import QUICK, Cell, Table, alternating, publish, run

from gym_trl import TextVectorEnv
from gym_trl.executors.inline import EnvPool, InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.spaces import AnyText
from gym_trl.types import Task

GAME = "TrlEnv/GuessNumber-v0"
COUNT, STEPS, ROUNDS = 64, 20 if QUICK else 200, 1 if QUICK else 5


class Kilobyte(gym.Env[str, str]):
    """Environment that returns a kilobyte at once."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "x" * 1024, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "x" * 1024, 0.0, False, False, {}


def of_vector(make: Callable[[], Any]) -> float:
    """Return the microseconds of a step of all environments of a vector."""
    with closing(make()) as vector:
        vector.reset(seed=0)
        began = time.perf_counter()
        for _ in range(STEPS):
            vector.step(("25",) * COUNT)
        return (time.perf_counter() - began) / STEPS * 1e6


def of_pool(make: Callable[[Any], EnvPool]) -> float:
    """Return the microseconds of a round in which each of the environments is stepped once."""

    async def rounds(pool: EnvPool) -> float:
        await asyncio.gather(*(pool.execute(str(key), Task("Kilobyte", key)) for key in range(COUNT)))
        began = time.perf_counter()
        for _ in range(STEPS):
            await asyncio.gather(*(pool.execute(str(key), "go") for key in range(COUNT)))
        return (time.perf_counter() - began) / STEPS * 1e6

    with make(lambda _: Kilobyte()) as pool:
        return asyncio.run(rounds(pool))


VECTORS: dict[str, Callable[[], Any]] = {
    "TextVectorEnv": lambda: TextVectorEnv(gym.make_vec(GAME, COUNT)),
    "SyncVectorEnv": lambda: SyncVectorEnv([lambda: gym.make(GAME)] * COUNT),
    "AsyncVectorEnv": lambda: AsyncVectorEnv([lambda: gym.make(GAME)] * COUNT),
}
POOLS: dict[str, Callable[[], float]] = {
    "inline": lambda: of_pool(InlinePool),
    "thread": lambda: of_pool(ThreadPool),
    "process, 2 workers": lambda: of_pool(lambda make: ProcessPool(make, workers=2)),
    "AsyncVectorEnv": lambda: of_vector(lambda: AsyncVectorEnv([Kilobyte] * COUNT)),
}


def main() -> None:
    """Measure all, and publish a row for each."""
    load = os.getloadavg()[0]
    vectors = alternating(list(VECTORS), ROUNDS, lambda name: of_vector(VECTORS[name]))
    pools = alternating(list(POOLS), ROUNDS, lambda name: POOLS[name]())
    header = ["", "µs of a round of 64", "µs a step", "from to", "of the first"]
    tables = []
    for title, found in (("vectors", vectors), ("executors", pools)):
        median = {name: sorted(rounds)[len(rounds) // 2] for name, rounds in found.items()}
        first = next(iter(median.values()))
        rows: list[list[Cell]] = [
            [name, us, us / COUNT, f"{min(found[name]):,.0f} to {max(found[name]):,.0f}", us / first]
            for name, us in median.items()
        ]
        tables.append(Table(title, header, rows))
    publish("steps", {"load": load, "vectors": vectors, "executors": pools}, tables)


if __name__ == "__main__":
    run(main)
