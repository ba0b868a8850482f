"""Check that the tiny model learns some games from random weights, with every seed.

$ python benchmarks/bench_learning.py
$ python benchmarks/bench_learning.py --vllm      # generating with a colocated vLLM, on a CPU
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import QUICK, Cell, Column, Table, publish, run
from support import vllm_cpu

from gym_trl.records import read_lines

GUESS, ECHO = "TrlEnv/GuessNumber-v0", "TrlEnv/Echo-v0"
RUNS = [(ECHO, 0)] if QUICK else [(GUESS, seed) for seed in range(6)] + [(ECHO, seed) for seed in range(3)]
RUNS_WITH_VLLM = [(GUESS, seed) for seed in range(1 if QUICK else 3)]
RATIO = "sampling/importance_sampling_ratio"


def train(env_id: str, seed: int, *, vllm: bool) -> dict[str, Any]:
    """Train once; return the summary, and with vLLM the logged logprob figures."""
    words = [env_id, "--seed", str(seed), *(["--vllm", "colocate"] if vllm else [])]
    summary, logs = run_training(words, vllm_on_cpu=vllm)
    scores = {
        f"{key}_{when}": (summary[when]["model"][key] or {}).get("mean")
        for key in ("success", "return")
        for when in ("before", "after")
    }
    return {"env": env_id, "seed": seed, **summary, **scores, **(ratios(logs) if vllm else {})}


def run_training(words: Sequence[str], *, vllm_on_cpu: bool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Run ``gym-trl train`` with these arguments; return its summary and the lines of its metrics.

    Raises:
        RuntimeError: it failed; the message is the end of what it wrote.
    """
    on_cpu = ["-m", "support.vllm_run", "gym_trl"]
    variables = {**vllm_cpu.SETTINGS, **vllm_cpu.own_port(), "PYTHONPATH": sys.path[0]} if vllm_on_cpu else {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        ran = subprocess.run(
            [sys.executable, *(on_cpu if vllm_on_cpu else ["-m", "gym_trl"]), "train", *words, "--out", str(out)],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise RuntimeError(f"gym-trl train {' '.join(words)} failed: {ran.stderr.strip()[-2000:]}")
        logs = [line for _, line in read_lines(out / "metrics.jsonl")]
        return {**json.loads((out / "summary.json").read_text()), "seconds": logs[-1]["seconds"]}, logs


def ratios(logs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the difference of the trainer's and vLLM's probabilities: over all steps, and at some of them."""
    means = [log[f"{RATIO}/mean"] for log in logs]
    names = ("step", "env/success", *(f"{RATIO}/{what}" for what in ("min", "mean", "max")))
    return {
        "ratio_min": min(log[f"{RATIO}/min"] for log in logs),
        "ratio_mean_lowest": min(means),
        "ratio_mean_highest": max(means),
        "ratio_max": max(log[f"{RATIO}/max"] for log in logs),
        "log": [{name: log[name] for name in names} for log in logs if log["step"] in (1, 20) or not log["step"] % 50],
    }


def table(name: str, runs: list[dict[str, Any]]) -> Table:
    names = ["success_before", "success_after", "return_after", "steps", "seconds"]
    if "ratio_min" in runs[0]:
        names += ["ratio_min", "ratio_mean_lowest", "ratio_mean_highest", "ratio_max"]

    def shown(key: str) -> Callable[[dict[str, Any]], Cell]:
        return lambda run: f"{run[key]:.6f}" if "ratio" in key else run[key]

    columns: list[Column] = [("environment", lambda run: run["env"].removeprefix("TrlEnv/")), ("seed", "seed")]
    return Table.of(name, columns + [(key.replace("_", " "), shown(key)) for key in names], runs)


def main() -> None:
    """Train with every seed; write the results after each run."""
    vllm = "--vllm" in sys.argv[1:]
    name, runs = "learning_vllm" if vllm else "learning", []
    for env_id, seed in RUNS_WITH_VLLM if vllm else RUNS:
        runs.append(train(env_id, seed, vllm=vllm))
        publish(name, {"runs": runs}, tables=[table(name, runs)])


if __name__ == "__main__":
    run(main)
