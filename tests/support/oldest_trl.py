"""The oldest TRL that works, which `make test-full` puts beside the newest."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support import warm
from support.free_port import free_port

VERSION = "1.14.0"
FOLDER = Path(sys.prefix) / f"trl-{VERSION}"
installed = pytest.mark.skipif(not FOLDER.is_dir(), reason=f"TRL {VERSION} is not installed: make test-full does it")


def run(script, folder, *arguments, timeout=280):
    """Run a script that writes ``folder/rank0.json`` with it, and return that."""
    return run_ranks(script, folder, *arguments, timeout=timeout)[0]


def run_ranks(script, folder, *arguments, processes=1, timeout=280):
    """Run a script as each of some distributed processes; return the JSON of each from ``folder/rankN.json``."""
    paths = os.pathsep.join([str(FOLDER), str(Path(__file__).parents[1])])
    command = [sys.executable, str(script), str(folder), *arguments]
    port, started = free_port(), []
    for rank in range(processes):
        ranks = warm.rank_variables(rank, processes, port)
        env = {**os.environ, **ranks, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
        with (folder / f"complaint-{rank}").open("w") as complaint:
            started.append(subprocess.Popen(command, env=env, stderr=complaint))
    try:
        for rank, process in enumerate(started):
            assert process.wait(timeout) == 0, (folder / f"complaint-{rank}").read_text()[-3000:]
    finally:
        for process in started:
            process.kill()
            process.wait()
    reports = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]
    assert {report["trl"] for report in reports} == {VERSION}
    return reports
