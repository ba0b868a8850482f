"""Run scripts in forks of a process that has imported torch and TRL, and done nothing with them.

A script still has a process of its own, but not the seconds that the imports take.
"""

import gc
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

IMPORTED = ["datasets", "torch", "transformers", "trl.trainer.grpo_trainer"]


WHEN_IMPORTED = {
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # for vLLM, which TRL imports where it is installed: see vllm_cpu.SETTINGS
}
"""Variables that are read by what is imported, and are therefore those of every script."""


def free_port() -> int:
    """Return a port of loopback that was free a moment ago; use it soon."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
    return port


def run(*command, env=None, timeout=200):
    """Run like ``subprocess.run([sys.executable, *command], ...)``, with more variables in ``env``."""
    with tempfile.TemporaryDirectory() as folder:
        said = Path(folder) / "said"
        process = start(*command, env=env, said=said)
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(command, timeout, output=said.read_text(), stderr=errors(said))
        assert process.exitcode is not None
        return subprocess.CompletedProcess(command, process.exitcode, stdout=said.read_text(), stderr=errors(said))


def run_ranks(script, folder, *arguments, processes=1, env=None, timeout=200):
    """Run a script as each of some distributed processes; return the JSON of each from ``folder/rankN.json``."""
    ended = end_ranks(script, folder, *arguments, processes=processes, env=env, timeout=timeout)
    for status, complaint in ended:
        assert status == 0, complaint[-3000:]
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(processes)]


def end_ranks(script, folder, *arguments, processes=1, env=None, timeout=200):
    """Run a script as each of some distributed processes, to the end; return the exit status and errors of each."""
    port = free_port()
    started = []
    for rank in range(processes):
        own = {**(env or {}), **rank_variables(rank, processes, port)}
        said = folder / f"said-{rank}"
        started.append((start(script, folder, *arguments, env=own, said=said), said))
    for process, _ in started:
        process.join(timeout)
        if process.is_alive():
            process.kill()
            process.join()
    return [(process.exitcode, errors(said)) for process, said in started]


def rank_variables(rank, processes, port):
    """Return the variables that torchrun would give one of some processes; none to a process alone."""
    if processes == 1:
        return {}
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    named = {name: str(number) for name, number in numbers.items()}
    return {**named, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "ACCELERATE_USE_CPU": "true"}


def errors(said):
    """Return what a script wrote to its standard error."""
    return said.with_suffix(".errors").read_text()


def start(*command, env=None, said):
    """Start like ``subprocess.Popen``, with more variables, and the output and the errors in files."""
    forks = get_context("forkserver")
    forks.set_forkserver_preload(IMPORTED)
    before = {name: os.environ.get(name) for name in WHEN_IMPORTED}
    os.environ |= WHEN_IMPORTED
    try:
        words = [str(word) for word in command]
        variables = {**os.environ, **{name: str(value) for name, value in (env or {}).items()}}
        process = forks.Process(target=become, args=(words, variables, Path(said)))
        process.start()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value
    return process


def become(command, env, said):
    """Replace the fork's process by the script."""
    gc.freeze()  # as in tiny_trainer
    for descriptor, path in ((1, said), (2, said.with_suffix(".errors"))):
        with path.open("w", encoding="utf-8") as file:
            os.dup2(file.fileno(), descriptor)
    os.environ.clear()
    os.environ |= env
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")
