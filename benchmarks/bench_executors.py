"""Measure the cost of a step in another process, and of one slow environment for the others.

$ python benchmarks/bench_executors.py

* round trip: one environment with observations of 1 KB, one step after the other;
* beside a slow one: 63 environments that respond at once and one that takes 100 ms a step; microseconds per step of
  the fast ones;
* sleepers: up to 256 environments that sleep for 20 ms a step, in a process or a thread each: the share of the ideal
  number of steps, and processor time per step in this process and in the others.

Run it on an idle machine. The load is in the results.
"""

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import gymnasium as gym
import psutil
from gymnasium.vector import AsyncVectorEnv
from report import QUICK, Column, Table, medians, publish, run

from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.protocol import EnvPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.spaces import AnyText
from gym_trl.types import Task

KILOBYTE = "x" * 1024
SLOW_S, SLEEP_S = 0.1, 0.02
SLEEPERS, SLEEPERS_S = (16,) if QUICK else (16, 64, 256), 1.0 if QUICK else 3.0
POOLS: tuple[tuple[str, Callable[..., Any], dict[str, int]], ...] = (
    ("inline", InlinePool, {}),
    ("thread", ThreadPool, {}),
    ("process", ProcessPool, {"workers": 1}),
)


class Sleeper(gym.Env[str, str]):
    """Environment that sleeps in each step and returns a kilobyte."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.observation_space = self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return KILOBYTE, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.seconds:
            time.sleep(self.seconds)
        return KILOBYTE, 0.0, False, False, {}


def make(env_id: str) -> gym.Env[str, str]:
    """Make an environment whose id is its time to sleep."""
    return Sleeper(float(env_id))


async def begin(pool: EnvPool, seconds: list[float]) -> None:
    await asyncio.gather(*(pool.execute(str(key), Task(str(sleep), 0)) for key, sleep in enumerate(seconds)))


def median_us(step: Callable[[], object], steps: int) -> float:
    times = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def round_trip(pool: EnvPool) -> float:
    async def steps(count: int) -> float:
        await begin(pool, [0.0])
        times = []
        for _ in range(count):
            began = time.perf_counter()
            await pool.execute("0", "go")
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1e6

    return asyncio.run(steps(2_000))


def vector_round_trip() -> float:
    with closing(AsyncVectorEnv([Sleeper])) as vector:
        vector.reset(seed=0)
        return median_us(lambda: vector.step(("go",)), 200)


def beside_a_slow_one(pool: EnvPool) -> float:
    """Return microseconds for each step of the quick environments beside a slow one."""
    done = 0

    async def steps(key: str) -> None:
        nonlocal done
        while done < 20_000:
            await pool.execute(key, "go")
            done += key != "0"

    async def beside() -> float:
        await begin(pool, [SLOW_S] + [0.0] * 63)
        began = time.perf_counter()
        await asyncio.gather(*(steps(str(number)) for number in range(64)))
        return time.perf_counter() - began

    return asyncio.run(beside()) / done * 1e6


def vector_beside_a_slow_one() -> float:
    with closing(AsyncVectorEnv([partial(Sleeper, SLOW_S)] + [Sleeper] * 63)) as vector:
        vector.reset(seed=0)
        began = time.perf_counter()
        for _ in range(10):
            vector.step(("go",) * 64)
        return (time.perf_counter() - began) / (10 * 63) * 1e6


def sleepers(pool: EnvPool, number: int) -> dict[str, float]:
    """Return the medians of three rounds of ``sleeping``."""
    return medians([sleeping(pool, number) for _ in range(3)])


def sleeping(pool: EnvPool, number: int) -> dict[str, float]:
    """Return the share of the ideal that sleeping environments reach, and processor microseconds per step."""
    done = 0

    async def steps(key: str, end: float) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await pool.execute(key, "go")
            done += 1

    async def sleep() -> dict[str, float]:
        await begin(pool, [SLEEP_S] * number)
        others = psutil.Process().children()
        began, here, there = time.perf_counter(), time.process_time(), processor(others)
        await asyncio.gather(*(steps(str(place), began + SLEEPERS_S) for place in range(number)))
        seconds = time.perf_counter() - began
        cost = {"here": (time.process_time() - here) / done * 1e6, "there": (processor(others) - there) / done * 1e6}
        return {"share": done * SLEEP_S / number / seconds, **cost}

    return asyncio.run(sleep())


def processor(processes: list[psutil.Process]) -> float:
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def main() -> None:
    load = os.getloadavg()[0]
    round_trips: dict[str, float] = {}
    for name, start, options in POOLS:
        with start(make, **options) as pool:
            round_trips[name] = round_trip(pool)
    round_trips["AsyncVectorEnv"] = vector_round_trip()
    with ProcessPool(make, workers=8) as pool:
        beside = {"process, 8 workers": beside_a_slow_one(pool), "AsyncVectorEnv": vector_beside_a_slow_one()}
    slept = {}
    for number in SLEEPERS:
        for name, start, _ in POOLS[:0:-1]:
            with start(make, workers=number) as pool:
                slept[f"{number}, a {name} each"] = sleepers(pool, number)
    steps = [
        [what, name, f"{value:.0f} µs"]
        for what, found in {"a step and its answer": round_trips, "a step beside a slow one": beside}.items()
        for name, value in found.items()
    ]
    sleeping: list[Column] = [
        ("environments", lambda name: name),
        ("of the ideal", lambda name: f"{slept[name]['share']:.0%}"),
        ("processor, here", lambda name: f"{slept[name]['here']:.0f} µs"),
        ("processor, there", lambda name: f"{slept[name]['there']:.0f} µs"),
    ]
    publish(
        "executors",
        {
            "load": load,
            "round_trip_us": round_trips,
            "beside_a_slow_one_us": beside,
            "sleepers": slept,
        },
        tables=[
            Table("executors", ["", "where", "median or mean"], steps),
            Table.of("sleepers", sleeping, slept),
        ],
    )


if __name__ == "__main__":
    run(main)
