"""Measure the cost of a step in another process, and of one slow environment for the others.

$ python benchmarks/bench_executors.py

* round trip: one environment with observations of 1 KB, one step after the other: inline, thread, process, and
  Gymnasium's AsyncVectorEnv with one environment;
* one of 64 is slow: 63 environments that answer at once and one that takes 100 ms a step. A vector environment waits
  for it at every step; a pool's other episodes do not. Microseconds for each step of the quick ones;
* default: 24 episodes of an environment that takes texts, says nothing of itself and sleeps for 100 ms a step, played
  to their ends with no option, with executor="thread" and with executor="inline": seconds, medians of rounds in turn;
* sleepers: up to 256 environments that sleep for 20 ms a step in as many processes, and in as many threads of this one,
  on these cores: the share of the ideal that comes through, and what a step costs of the processor, here and there.

The machine should have nothing else to do: what else runs takes its share of the cores (the load is written down).
"""

import logging
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import psutil
from gymnasium.vector import AsyncVectorEnv
from report import QUICK, Table, bars, publish

from gym_trl import GymSpec
from gym_trl.executors.adaptive import AdaptivePool
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.protocol import EnvPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Task

KILOBYTE = "x" * 1024
STEPS, SLOW_S, SLEEP_S = 2_000, 0.1, 0.02
TURNS, ROUNDS = 6, 1 if QUICK else 5
SLEEPERS = (16,) if QUICK else (16, 64, 256)


class Sleeper(gym.Env[str, str]):
    """Environment that sleeps in each step and returns a kilobyte."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.observation_space = self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Start an episode, a slow one if the seed is odd."""
        return KILOBYTE, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Sleep, and return the observation."""
        if self.seconds:
            time.sleep(self.seconds)
        return KILOBYTE, 0.0, False, False, {}


def make(env_id: str) -> gym.Env[str, str]:
    """Make an environment whose id is its time to sleep."""
    return Sleeper(float(env_id))


def begin(pool: EnvPool, seconds: list[float]) -> None:
    """Start an episode in each environment."""
    for key, sleep in enumerate(seconds):
        pool.reset(str(key), Task(str(sleep), 0))
    left = len(seconds)
    while left:
        left -= len(pool.collect(block=True))


def round_trip(pool: EnvPool) -> float:
    """Return the median microseconds of a step."""
    begin(pool, [0.0])
    times = []
    for _ in range(STEPS):
        began = time.perf_counter()
        pool.step("0", "go")
        pool.collect(block=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1e6


def vector_round_trip() -> float:
    """Return the median microseconds of a step of Gymnasium's processes."""
    with_one = AsyncVectorEnv([Sleeper])
    with_one.reset(seed=0)
    times = []
    for _ in range(200):
        began = time.perf_counter()
        with_one.step(("go",))
        times.append(time.perf_counter() - began)
    with_one.close()
    return statistics.median(times) * 1e6


def beside_a_slow_one(pool: EnvPool) -> float:
    """Return microseconds for each step of the quick environments beside a slow one."""
    begin(pool, [SLOW_S] + [0.0] * 63)
    for number in range(64):
        pool.step(str(number), "go")
    done, began = 0, time.perf_counter()
    while done < 20_000:
        for key, _ in pool.collect(block=True):
            done += key != "0"
            pool.step(key, "go")
    return (time.perf_counter() - began) / done * 1e6


def vector_beside_a_slow_one() -> float:
    """Return the same for Gymnasium's vector environment, whose quick environments wait."""
    vector = AsyncVectorEnv([partial(Sleeper, SLOW_S)] + [Sleeper] * 63)
    vector.reset(seed=0)
    began = time.perf_counter()
    for _ in range(10):
        vector.step(("go",) * 64)
    took = time.perf_counter() - began
    vector.close()
    return took / (10 * 63) * 1e6


def sleepers(pool: EnvPool, number: int) -> dict[str, float]:
    """Return the share of the ideal that sleeping environments reach, and processor microseconds per step."""
    begin(pool, [SLEEP_S] * number)
    for place in range(number):
        pool.step(str(place), "go")
    others = psutil.Process().children()
    done, began, here, there = 0, time.perf_counter(), time.process_time(), processor(others)
    while (now := time.perf_counter()) - began < 4:
        for key, _ in pool.collect(block=True):
            done += 1
            pool.step(key, "go")
    cost = {"here": (time.process_time() - here) / done * 1e6, "there": (processor(others) - there) / done * 1e6}
    return {"share": done * SLEEP_S / number / (now - began), **cost}


def whole_rollout(executor: str | None) -> float:
    """Return the seconds for 24 episodes of six steps, from a new ``GymSpec`` on, with an immediate engine."""
    spec = GymSpec("Benchmarks/Slow-v0", num_tasks=24, num_eval_tasks=0, action_format=None, executor=executor)
    chat, limits = ByteChat(), Limits(tokens_per_turn=9)
    episodes = [Episode(task, chat=chat, limits=limits) for task in spec.tasks("train")]
    began = time.perf_counter()
    with spec.make_pool() as pool:
        played = run_episodes(episodes, pool=pool, engine=ScriptedEngine(lambda request: chat.say("go")))
    assert all(len(one.turns) == TURNS for one in played)
    return time.perf_counter() - began


def by_default() -> dict[str, list[float]]:
    """Return the seconds of each round, alternating the ways."""
    gym.register("Benchmarks/Slow-v0", partial(Sleeper, SLOW_S), max_episode_steps=TURNS)
    ways = {"no option": None, "thread, by hand": "thread", "inline, by hand": "inline"}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, executor in ways.items():
            seconds[name].append(whole_rollout(executor))
    return seconds


def processor(processes: list[psutil.Process]) -> float:
    """Return the processor seconds of processes."""
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


def main() -> None:
    """Measure, print and write."""
    pools: dict[str, Callable[[], Any]] = {
        "inline": partial(InlinePool, make),
        "inline, measured while it is played": partial(AdaptivePool, make),
        "thread": partial(ThreadPool, make),
        "process": partial(ProcessPool, make, workers=1),
    }
    load = os.getloadavg()[0]
    round_trips: dict[str, float] = {}
    for name, build in pools.items():
        with build() as pool:
            round_trips[name] = round_trip(pool)
    round_trips["AsyncVectorEnv"] = vector_round_trip()
    with ProcessPool(make, workers=8) as pool:
        beside = {"process, 8 workers": beside_a_slow_one(pool)}
    beside["AsyncVectorEnv"] = vector_beside_a_slow_one()
    logging.getLogger("gym_trl.executors.adaptive").setLevel(logging.ERROR)  # it logs its choice for each pool
    rounds = by_default()
    slept = {}
    waiting: dict[str, Callable[..., Any]] = {"process": ProcessPool, "thread": ThreadPool}
    for number in SLEEPERS:
        for name, start in waiting.items():
            with start(make, workers=number) as pool:
                slept[f"{number}, a {name} each"] = sleepers(pool, number)
    rows = [["a step and its answer", name, f"{value:.0f} µs"] for name, value in round_trips.items()] + [
        ["a step beside a slow one", name, f"{value:.0f} µs"] for name, value in beside.items()
    ]
    by_hand = statistics.median(rounds["thread, by hand"])
    default = [
        [
            name,
            f"{statistics.median(seconds):.2f} s",
            f"{min(seconds):.2f} to {max(seconds):.2f}",
            f"{statistics.median(seconds) / by_hand:.2f}",
        ]
        for name, seconds in rounds.items()
    ]
    columns = ("share", "here", "there")
    sleeping = [
        [name, f"{row['share']:.0%}", *(f"{row[key]:.0f} µs" for key in columns[1:])] for name, row in slept.items()
    ]
    publish(
        "executors",
        {
            "load": load,
            "round_trip_us": round_trips,
            "beside_a_slow_one_us": beside,
            "default_s": rounds,
            "sleepers": slept,
        },
        tables=[
            Table("executors", ["", "where", "median or mean"], rows),
            Table(
                "default", ["24 episodes of 100 ms a step", "median", "least to most", "of threads by hand"], default
            ),
            Table("sleepers", ["environments", "of the ideal", "processor, here", "processor, there"], sleeping),
        ],
        picture=lambda figure: draw(figure, round_trips, slept),
    )


def draw(figure: Any, round_trips: dict[str, float], slept: dict[str, dict[str, float]]) -> None:
    """Draw round trips, and the share of the ideal of sleeping environments."""
    left, right = figure.subplots(1, 2)
    bars(left, round_trips, "µs for a step and its answer")
    shares = {name: 100 * row["share"] for name, row in slept.items()}
    bars(right, shares, f"% of the ideal, environments that sleep for {1000 * SLEEP_S:g} ms a step")


if __name__ == "__main__":
    main()
