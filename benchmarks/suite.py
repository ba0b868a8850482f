"""Run the benchmarks one after the other, each in a process of its own: ``make bench``.

    python benchmarks/suite.py            # all but the long ones; if it is stopped, finished results are kept
    python benchmarks/suite.py --quick    # a small version of each, into results/quick/
    python benchmarks/suite.py steps learning   # these alone

If one fails or takes too long, the others still run, and the exit status is 1. One that needs a package that is missing
is left out, which is no failure. What each says is in ``runs/benchmarks/``.
"""

import os
import signal
import subprocess
import sys
import time

from report import HERE, LEFT_OUT, LOGS, QUICK, WORDS, Cell, Table, publish

MINUTES = {"rollouts": 15, "fidelity": 12, "adapter_overhead": 12, "steps": 12, "kv_reuse": 25, "lm_step": 25}
"""Time limit of each benchmark."""
LONG = {"credit": 20, "learning": 90}
"""Those that run only if they are named."""


def run(name: str, minutes: float) -> list[Cell]:
    """Run a benchmark, and return its name, how it ended, and its seconds."""
    command = [sys.executable, str(HERE / f"bench_{name}.py"), *["--quick"] * QUICK]
    began = time.monotonic()
    with (LOGS / f"{name}.log").open("w", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(timeout=60 * minutes)
            ended = {0: "done", LEFT_OUT: "left out"}.get(status, f"failed with {status}")
        except subprocess.TimeoutExpired:
            ended = f"stopped after {minutes} minutes"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return [name, ended, round(time.monotonic() - began)]


def main() -> None:
    known = MINUTES | LONG
    if wrong := [name for name in WORDS if name not in known]:
        raise SystemExit(f"no benchmark is called {wrong[0]!r}: there are {', '.join(known)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in WORDS or MINUTES:
        print(f"{name}: {LOGS / name}.log", flush=True)
        rows.append(run(name, known[name]))
        print((LOGS / f"{name}.log").read_text(encoding="utf-8", errors="replace")[-3000:], *rows[-1], flush=True)
    publish("suite", {}, [Table("suite", ["benchmark", "ended", "seconds"], rows)], part=bool(WORDS))
    if any(ended not in ("done", "left out") for _, ended, _ in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
