"""Measure the seconds on the clock from Enter to the first step of ``gym-trl train``, beside TRL's own import.

$ python benchmarks/bench_train_start.py [--quick]

TRL imports vLLM wherever it is installed; ``gym-trl train`` leaves it out unless it generates.
"""

import subprocess
import sys
from statistics import median
from tempfile import TemporaryDirectory
from time import monotonic

from report import QUICK, Column, Table, publish, run

ROUNDS = 1 if QUICK else 3
STARTS = (
    (
        ["-c", "from trl import GRPOTrainer; print('imported', flush=True)"],
        {"`from trl import GRPOTrainer`": "imported"},
    ),
    (
        ["-m", "gym_trl", "train", "--steps=1"],
        {"`gym-trl train`, to the evaluation before": "Playing", "`gym-trl train`, to the first step": "step 1/1"},
    ),
)


def seconds_until(words: list[str], marks: dict[str, str]) -> dict[str, float]:
    """Return the seconds until a Python program prints lines that begin with these words, and end it."""
    found: dict[str, float] = {}
    with TemporaryDirectory() as folder:
        began = monotonic()
        program = subprocess.Popen(
            [sys.executable, *words], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        with program:
            assert program.stdout is not None
            for line in program.stdout:
                found |= {
                    name: round(monotonic() - began, 2)
                    for name, told in marks.items()
                    if name not in found and line.startswith(told)
                }
                if len(found) == len(marks):
                    program.kill()
                    return found
    raise RuntimeError(f"{words} ended with {sorted(found)} of {sorted(marks)}")


def main() -> None:
    starts: dict[str, list[float]] = {}
    for _ in range(ROUNDS):
        for words, marks in STARTS:
            for name, seconds in seconds_until(words, marks).items():
                starts.setdefault(name, []).append(seconds)
    shown: list[Column] = [
        ("", "name"),
        ("s", lambda row: median(row["rounds"])),
        ("least and most", lambda row: f"{min(row['rounds']):.1f} to {max(row['rounds']):.1f}"),
    ]
    table = Table.of("train_start", shown, [{"name": name, "rounds": rounds} for name, rounds in starts.items()])
    publish("train_start", {"starts": starts}, tables=[table])


if __name__ == "__main__":
    run(main)
