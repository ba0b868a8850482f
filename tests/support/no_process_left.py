"""Plugin of pytest that ends every process which a test has left behind, also when the run is terminated."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

import psutil
import pytest

_MARK = "GYM_TRL_TEST_RUN"
"""Environment variable by which processes of a test run are found, also those whose parent has ended."""
_PATIENCE_S = 5.0
"""Seconds in which processes may end by themselves after the last test."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that started the run, and not one of xdist's workers
        os.environ[_MARK] = str(os.getpid())
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """End the run as Ctrl-C does: the fixtures end what they have started."""
    raise KeyboardInterrupt


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End every process that a test has left behind, and name it."""
    if hasattr(config, "workerinput"):
        return
    # The fork server and resource tracker of multiprocessing end with this process.
    _, left = psutil.wait_procs(_started_by_tests(), timeout=_PATIENCE_S)
    for process in left:
        with suppress(psutil.Error):
            sys.stderr.write(f"a test left a process behind, which is ended: {process.pid} {process.cmdline()}\n")
            process.kill()


def _started_by_tests() -> list[psutil.Process]:
    found = {process.pid: process for process in psutil.Process().children(recursive=True)}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == str(os.getpid()):
                found[process.pid] = process
    found.pop(os.getpid(), None)
    return [process for process in found.values() if not _is_multiprocessings(process)]


def _is_multiprocessings(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any(word.startswith("from multiprocessing.") for word in process.cmdline())
    return False
