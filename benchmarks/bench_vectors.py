"""Measure the cost of a vector step, beside the bare loop, Gymnasium's vectors and GEM's.

    python benchmarks/bench_vectors.py            # GEM's too, where bench_envs.py --peers has installed it
    python benchmarks/bench_vectors.py --steps    # not how well sleeping workers share, which needs a machine at rest

All step 64 environments of the same game. The measurements alternate, so that other load affects all alike.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import QUICK, RESULTS, Table, bars, publish

GEM = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
COUNT, STEPS, ROUNDS = 64, 10, 10 if QUICK else 100
LATENCY_S = 0.020


def microseconds(step: Callable[[], Any], steps: int = STEPS) -> float:
    """Return the processor microseconds of a step."""
    began = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - began) / steps * 1e6


def in_process() -> dict[str, float]:
    """Return medians over alternating rounds; Gymnasium's processes by the wall clock."""
    import gymnasium as gym
    from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

    import gym_trl

    assert gym_trl
    game = "TrlEnv/GuessNumber-v0"
    envs: list[Any] = [gym.make(game) for _ in range(COUNT)]
    for env in envs:
        env.reset(seed=0)

    def loop(envs: list[Any]) -> None:
        for env in envs:
            if env.step("25")[2]:
                env.reset()

    games: list[Any] = [gym.make(game).unwrapped for _ in range(COUNT)]
    for env in games:
        env.reset(seed=0)

    ours, sync = gym.make_vec(game, COUNT), SyncVectorEnv([lambda: gym.make(game)] * COUNT)
    actions = ("25",) * COUNT
    ours.reset(seed=0)
    sync.reset(seed=0)
    steps = {
        "games alone": lambda: loop(games),
        "bare loop": lambda: loop(envs),
        "TextVectorEnv": lambda: ours.step(actions),
        "SyncVectorEnv": lambda: sync.step(actions),
    }
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS):
        for name, step in steps.items():
            found[name].append(microseconds(step))
    medians = {name: statistics.median(numbers) for name, numbers in found.items()}
    processes = AsyncVectorEnv([lambda: gym.make(game)] * COUNT)
    processes.reset(seed=0)
    began = time.perf_counter()
    for _ in range(50):
        processes.step(actions)
    medians["AsyncVectorEnv"] = (time.perf_counter() - began) / 50 * 1e6
    processes.close()
    return medians


def gems() -> float:
    """Measure GEM's vector of the same game, in its own environment."""
    import gem

    envs = gem.make_vec(["game:GuessTheNumber-v0-hard"] * COUNT)
    envs.reset()
    actions = ["\\boxed{25}"] * COUNT
    return statistics.median(microseconds(lambda: envs.step(actions)) for _ in range(ROUNDS))


def sleeping() -> Any:
    """Make a game whose steps sleep for 20 ms."""
    import gymnasium as gym
    from gymnasium.wrappers import TransformAction

    def slow(action: str) -> str:
        time.sleep(LATENCY_S)
        return action

    game = gym.make("TrlEnv/GuessNumber-v0", turns=10**6, high=10**6)
    return TransformAction(game, slow, game.action_space)


def scaling() -> dict[str, dict[int, float]]:
    """Return the ratio of a step's ideal time (each worker sleeps through its share in turn) to the real one."""
    from gym_trl.vector import TextVectorEnv

    shares: dict[str, dict[int, float]] = {}
    for executor in ("thread", "process"):
        for workers in (8, 32) if QUICK else (2, 8, 32):
            envs = TextVectorEnv([sleeping] * COUNT, executor=executor, workers=workers)
            envs.reset(seed=0)
            envs.step(["1"] * COUNT)
            began = time.perf_counter()
            for _ in range(5):
                envs.step(["1"] * COUNT)
            real = (time.perf_counter() - began) / 5
            shares.setdefault(executor, {})[workers] = COUNT / workers * LATENCY_S / real
            envs.close()
    return shares


def main() -> None:
    """Measure, print and write."""
    if "--gem" in sys.argv[1:]:
        print(gems())
        return
    medians = in_process()
    if GEM.exists():
        ran = subprocess.run(
            [str(GEM), __file__, "--gem", *["--quick"] * QUICK], capture_output=True, text=True, check=True
        )
        medians["GEM"] = float(ran.stdout.splitlines()[-1])
    for name, number in medians.items():
        print(f"{name:<15} {number:>8.0f} us", flush=True)
    measured = RESULTS / "vectors.json"
    shares = json.loads(measured.read_text())["share_of_ideal_with_20_ms"] if "--steps" in sys.argv[1:] else scaling()
    ours = medians["TextVectorEnv"]
    tables = [
        Table("vectors", ["", "µs", "of ours"], [[name, value, value / ours] for name, value in medians.items()]),
        Table(
            "sleeping_vectors",
            ["executor", *(f"{workers} workers, % of the ideal" for workers in shares["thread"])],
            [[executor, *(100 * share for share in found.values())] for executor, found in shares.items()],
        ),
    ]
    figures = {"environments": COUNT, "microseconds_a_step": medians, "share_of_ideal_with_20_ms": shares}
    label = f"µs for a step of {COUNT} environments"
    publish("vectors", figures, tables=tables, picture=lambda figure: bars(figure.subplots(), medians, label, log=True))


if __name__ == "__main__":
    main()
