"""Processes that a worker has started, also those in sessions of their own, and their end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from shutil import which

MARK = "GYM_TRL_WORKER"
"""Environment variable with the name of a worker, which the processes that it starts inherit."""
_ROUNDS = 20
_PR_SET_CHILD_SUBREAPER = 36
_PROC = Path("/proc")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose own parent has ended (Linux: ``PR_SET_CHILD_SUBREAPER``).

    They would otherwise become children of process 1, and could no longer be found. Elsewhere nothing is changed.
    """
    if sys.platform == "linux":
        import ctypes

        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Return the ids of all running processes below a process, children before their own children.

    >>> child = subprocess.Popen(["sleep", "60"], start_new_session=True)
    >>> child.pid in descendants(os.getpid())
    True
    >>> end([child.pid])
    >>> child.wait()
    -9
    """
    children: dict[int, list[int]] = {}
    for process, parent in _parents():
        children.setdefault(parent, []).append(process)
    tree = [pid]
    for parent in tree:
        tree += children.get(parent, [])
    return tree[1:]


def marked(mark: str) -> list[int]:
    """Return the ids of all running processes that a worker has started, from the mark that they have inherited.

    This finds processes whose worker has ended. On systems without ``/proc`` there are none.
    """
    entry = f"{MARK}={mark}".encode()
    processes = []
    for number in _numbers():
        with suppress(OSError):  # it has ended meanwhile, or belongs to another user
            if entry in (_PROC / str(number) / "environ").read_bytes().split(b"\0"):
                processes.append(number)
    return processes


def end_descendants(pid: int) -> None:
    """End all processes below a process; repeated, because they may start others meanwhile."""
    for _ in range(_ROUNDS):
        if not (tree := descendants(pid)):
            return
        end(tree)


def end(pids: list[int]) -> None:
    """End processes, as far as they still run."""
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def _numbers() -> list[int]:
    with suppress(OSError):
        return [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]
    return []


def _parents() -> Iterator[tuple[int, int]]:
    """Yield the id of each running process with that of its parent."""
    numbers = _numbers()
    for number in numbers:
        with suppress(OSError):  # it has ended meanwhile
            # The name in brackets may itself contain brackets.
            state, parent = (_PROC / str(number) / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            if state != b"Z":
                yield number, int(parent)
    if not numbers:
        with suppress(OSError, subprocess.SubprocessError):
            command = [which("ps") or "ps", "-A", "-o", "pid=,ppid="]
            listed = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603 -- our own command
            for line in listed.stdout.splitlines():
                process, parent_id = line.split()
                yield int(process), int(parent_id)
