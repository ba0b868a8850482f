"""Does the tiny model learn the games that it is known to learn, from random weights, with every seed?

$ python benchmarks/bench_learning.py
"""

import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
RUNS = [("TrlEnv/GuessNumber-v0", seed) for seed in range(6)] + [("TrlEnv/Echo-v0", seed) for seed in range(3)]


def train(env_id: str, seed: int) -> dict[str, Any]:
    """One run of the command that users type, and its summary."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [sys.executable, "-m", "gym_trl", "train", env_id, "--seed", str(seed), "--out", str(out)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        summary: dict[str, Any] = json.loads((out / "summary.json").read_text())
    return {"env": env_id, "seed": seed, **summary}


def main() -> None:
    """Train with every seed, print a table and write the results."""
    names = ("success_before", "success_after", "success_after_greedy", "return_after", "steps", "seconds")
    print(f"{'environment':24} seed " + " ".join(f"{name:>20}" for name in names))
    rows = []
    for env_id, seed in RUNS:
        rows.append(train(env_id, seed))
        print(f"{env_id:24} {seed:4} " + " ".join(f"{rows[-1][name]:20.3f}" for name in names), flush=True)
        RESULTS.mkdir(exist_ok=True)
        machine = {"machine": platform.machine(), "python": platform.python_version()}
        report = {**machine, "date": time.strftime("%Y-%m-%d"), "runs": rows}
        (RESULTS / "learning.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
