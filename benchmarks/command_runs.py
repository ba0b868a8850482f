"""Trainings that benchmarks run as users do, with ``gym-trl train``, and continue after an interruption."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from report import HERE


def train(folder: Path, words: Sequence[str], *, enough: Callable[[], bool] = lambda: False) -> None:
    """Run ``gym-trl train`` with ``words`` on one thread, or continue it, and stop it as soon as it is ``enough``.

    Raises:
        RuntimeError: it failed; its output is in the file that the message names.
    """
    log = folder.with_name(f"{folder.name}.log")
    if all((folder / name).exists() for name in ("checkpoints", "config.json")):
        words = [f"--resume={folder}"]
    else:
        shutil.rmtree(folder, ignore_errors=True)
        words = [*words, f"--out={folder}"]
    folder.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "gym_trl", "train", *words]
    paths = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    with log.open("a", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environ)
        stopped = False
        while process.poll() is None:
            time.sleep(1)
            if not stopped and enough():
                process.send_signal(signal.SIGINT)  # as Ctrl-C: it stops after this step and leaves a complete folder
                stopped = True
    if process.returncode and not stopped:
        raise RuntimeError(f"gym-trl train {' '.join(words)} failed: see {log}")
