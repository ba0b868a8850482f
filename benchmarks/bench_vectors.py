"""Measure the cost of a vector step, beside the bare loop, Gymnasium's vectors and GEM's.

    python benchmarks/bench_vectors.py    # includes GEM's if it is installed (requirements-external.txt)

All step 64 environments of the same game. The measurements alternate, so that other load affects all alike.
"""

import statistics
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from report import QUICK, Column, Table, in_process, publish, run

COUNT, STEPS, ROUNDS = 64, 10, 10 if QUICK else 100


def microseconds(step: Callable[[], Any]) -> float:
    began = time.process_time()
    for _ in range(STEPS):
        step()
    return (time.process_time() - began) / STEPS * 1e6


def ours() -> dict[str, float]:
    """Return medians over alternating rounds; Gymnasium's processes by the wall clock."""
    import gymnasium as gym
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    from gym_trl import TextVectorEnv

    game = "TrlEnv/GuessNumber-v0"
    envs: list[Any] = [gym.make(game) for _ in range(COUNT)]
    games: list[Any] = [gym.make(game).unwrapped for _ in range(COUNT)]
    vector, sync = TextVectorEnv.make(game, COUNT), SyncVectorEnv([lambda: gym.make(game)] * COUNT)
    for env in (*envs, *games, vector, sync):
        env.reset(seed=0)

    def loop(envs: list[Any]) -> None:
        for env in envs:
            if env.step("25")[2]:
                env.reset()

    actions = ("25",) * COUNT
    steps = {
        "games alone": lambda: loop(games),
        "bare loop": lambda: loop(envs),
        "TextVectorEnv": lambda: vector.step(actions),
        "SyncVectorEnv": lambda: sync.step(actions),
    }
    rounds = [{name: microseconds(step) for name, step in steps.items()} for _ in range(ROUNDS)]
    medians = {name: statistics.median(one[name] for one in rounds) for name in steps}
    processes = AsyncVectorEnv([lambda: gym.make(game)] * COUNT)
    processes.reset(seed=0)
    began = time.perf_counter()
    for _ in range(50):
        processes.step(actions)
    medians["AsyncVectorEnv"] = (time.perf_counter() - began) / 50 * 1e6
    processes.close()
    return medians


def gems() -> float:
    """Return the median microseconds of GEM's vector of the same game."""
    import gem

    envs = gem.make_vec(["game:GuessTheNumber-v0-hard"] * COUNT)
    envs.reset()
    actions = ["\\boxed{25}"] * COUNT
    return statistics.median(microseconds(lambda: envs.step(actions)) for _ in range(ROUNDS))


def main() -> None:
    medians = ours()
    if find_spec("gem"):
        medians["GEM"] = in_process(gems)
    columns: list[Column] = [
        ("", lambda name: name),
        ("µs", lambda name: medians[name]),
        ("of ours", lambda name: medians[name] / medians["TextVectorEnv"]),
    ]
    figures = {"environments": COUNT, "microseconds_a_step": medians}
    publish("vectors", figures, tables=[Table.of("vectors", columns, medians)])


if __name__ == "__main__":
    run(main)
