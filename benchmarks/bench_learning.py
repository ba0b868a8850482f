"""Check that the tiny model learns some games from random weights, with every seed.

$ python benchmarks/bench_learning.py
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from report import QUICK, Column, Table, in_process, publish, run

from gym_trl.records import read_lines
from gym_trl.training import METRICS, train

GUESS, ECHO = "TrlEnv/GuessNumber-v0", "TrlEnv/Echo-v0"
RUNS = [(ECHO, 0)] if QUICK else [(GUESS, seed) for seed in range(6)] + [(ECHO, seed) for seed in range(3)]


def learn(env_id: str, seed: int) -> dict[str, Any]:
    """Train as ``gym-trl train ID --seed N`` does, and return what the model reaches before and after."""
    with TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        summary = train(env_id, seed=seed, out=folder, steps=10 if QUICK else None)
        *_, (_, last) = read_lines(folder / METRICS)
    reached = {
        f"{key} {when}": summary[when]["model"][key]["mean"]
        for key in ("success", "return")
        for when in ("before", "after")
    }
    return {"env": env_id, "seed": seed, "steps": summary["steps"], "seconds": last["seconds"], **reached}


def main() -> None:
    """Train with every seed; write the results after each run."""
    columns: list[Column] = [("environment", lambda one: one["env"].removeprefix("TrlEnv/"))]
    columns += [(key, key) for key in ("seed", "success before", "success after", "return after", "steps", "seconds")]
    runs: list[dict[str, Any]] = []
    for env_id, seed in RUNS:
        runs.append(in_process(learn, env_id, seed, timeout_s=3600.0))
        publish("learning", {"runs": runs}, [Table.of("learning", columns, runs)])


if __name__ == "__main__":
    run(main)
