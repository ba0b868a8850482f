# mypy: allow-untyped-defs, allow-untyped-calls, allow-any-generics
"""Run scripts in forks of a process that has imported torch and TRL, and done nothing with them.

A script still has a process of its own, but not the seconds that the imports take.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from free_port import free_port

IMPORTED = ["datasets", "torch", "transformers", "trl.trainer.grpo_trainer"]


def run(*command, env=None, timeout=200):
    """Run like ``subprocess.run([sys.executable, *command], ...)``, with the errors on the standard output too."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        process = start(*command, env=env, said=said)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, output=said.read_text())
        assert process.exitcode is not None
        return subprocess.CompletedProcess(command, process.exitcode, stdout=said.read_text(), stderr=said.read_text())


def run_ranks(script, folder, *arguments, processes=1, timeout=200):
    """Run a script as each of some distributed processes; return the JSON of each from ``folder/rankN.json``."""
    for status, said in end_ranks(script, folder, *arguments, processes=processes, timeout=timeout):
        assert status == 0, said[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


def end_ranks(script, folder, *arguments, processes=1, timeout=200):
    """Run a script as each of some distributed processes, to the end; return the exit status and output of each."""
    port = free_port()
    started = []
    for rank in range(processes):
        env = {}
        if processes > 1:  # as torchrun would have it
            env = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
            env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
        said = folder / f"said-{rank}"
        started.append((start(script, folder, *arguments, env=env, said=said), said))
    for process, _ in started:
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
    return [(process.exitcode, said.read_text()) for process, said in started]


def start(*command, env=None, said):
    """Start like ``subprocess.Popen`` with more variables, ``env``, and the output in a file."""
    forks = get_context("forkserver")
    forks.set_forkserver_preload(IMPORTED)
    before, os.environ["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS"), "1"
    try:
        words = [str(word) for word in command]
        variables = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
        process = forks.Process(target=become, args=(words, variables, str(said)))
        process.start()
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        os.environ |= {"OMP_NUM_THREADS": before} if before else {}
    return process


def become(command, env, said):
    """Replace the fork's process by the script."""
    with Path(said).open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ |= env
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")
