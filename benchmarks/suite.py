"""Run every comparison, one after the other, each in a process of its own.

    python benchmarks/suite.py            # all but the long ones; if it is stopped, finished results are kept
    python benchmarks/suite.py --quick    # a small version of each, into results/quick/
    python benchmarks/suite.py steps kv_reuse # only these

After all, the time of each is written, too.

If a benchmark fails or takes too long, the others still run, and the exit status is 1. A benchmark that needs a missing
program or package is left out, which is no failure.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from report import LEFT_OUT, Cell, Table, publish
from rich.console import Console

HERE = Path(__file__).parent
LOGS = HERE.parent / "runs" / "benchmarks"


@dataclass(frozen=True)
class Benchmark:
    """Script, its question, and its time limit in minutes."""

    name: str
    question: str
    limit_minutes: float = 12.0
    long: bool = False
    """Run only if it is named."""


SUITE = (
    Benchmark("rollouts", "How fast are whole rollouts, compared with other systems?", limit_minutes=15.0),
    Benchmark("fidelity", "Are the trained tokens the ones that the model saw?"),
    Benchmark(
        "credit", "How close to the truth are estimators of each turn's advantage?", limit_minutes=20.0, long=True
    ),
    Benchmark("adapter_overhead", "What does the adapter cost per turn, and does it grow?"),
    Benchmark("steps", "What does a step of 64 environments cost, in vectors and in executors?"),
    Benchmark("kv_reuse", "What do turns cost without vLLM?", limit_minutes=25.0),
    Benchmark("lm_step", "What does a step of a pretrained model cost?", limit_minutes=25.0),
)


def run(benchmark: Benchmark, *, quick: bool) -> tuple[str, float]:
    """Run one benchmark; return its outcome and its seconds."""
    command = [sys.executable, str(HERE / f"bench_{benchmark.name}.py"), *["--quick"] * quick]
    LOGS.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with (LOGS / f"{benchmark.name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(timeout=60 * benchmark.limit_minutes)
            ended = {0: "done", LEFT_OUT: "left out"}.get(status, f"failed with {status}")
        except subprocess.TimeoutExpired:
            ended = f"stopped after {benchmark.limit_minutes:.0f} minutes"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return ended, time.monotonic() - began


def main() -> int:
    """Run the requested benchmarks, and print their outcomes."""
    words = sys.argv[1:]
    quick, names = "--quick" in words, [word for word in words if word != "--quick"]
    if {"-h", "--help"} & set(names):
        print(__doc__)
        return 0
    known = [benchmark.name for benchmark in SUITE]
    if wrong := [name for name in names if name not in known]:
        print(f"no benchmark is called {wrong[0]!r}: there are {', '.join(known)}")
        return 2
    chosen = [benchmark for benchmark in SUITE if (benchmark.name in names if names else not benchmark.long)]
    console = Console()
    rows: list[list[Cell]] = []
    failed, total_s = 0, 0.0
    for number, benchmark in enumerate(chosen, start=1):
        console.print(f"[{number}/{len(chosen)}] {benchmark.name}: {benchmark.question}", markup=False)
        with console.status(f"{benchmark.name}: runs/benchmarks/{benchmark.name}.log"):
            ended, seconds = run(benchmark, quick=quick)
        log = (LOGS / f"{benchmark.name}.log").read_text(encoding="utf-8", errors="replace")
        console.print("\n".join(log.splitlines()[-25:]), markup=False, highlight=False)
        console.print(f"{benchmark.name}: {ended}, {seconds:.0f} s", markup=False)
        rows.append([benchmark.name, benchmark.question, ended, round(seconds)])
        failed += ended not in {"done", "left out"}
        total_s += seconds
    table = Table("suite", ["benchmark", "question", "ended", "seconds"], [*rows, ["all", "", "", round(total_s)]])
    publish("suite", {"minutes": total_s / 60}, tables=[table], part=bool(names))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
