"""Systems in processes: one process, and one engine, for each folder of packages.

    with Worker("trl-env") as worker:
        run = worker.call("trl_env", "play", game)

The process runs ``python -m systems.worker DESCRIPTOR``.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib import import_module
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from systems import SYSTEMS

HERE = Path(__file__).parents[1]
VENV = HERE.parent / ".venv"
LOGS = HERE.parent / "runs" / "benchmarks"
_END_S = 20.0


class PlayError(Exception):
    """Error for a system that raised; the message is the last line of its traceback, the rest is in its log."""


class Worker:
    """Process with the packages of ``folder`` first on its path."""

    def __init__(self, folder: str | None = None) -> None:
        path = [str(HERE), str(HERE.parent / "tests")]
        if folder is not None:
            found = [place / folder for place in (VENV / ".bench", VENV / ".peers") if (place / folder).is_dir()]
            if not found:
                raise PlayError(f"its packages are not installed: make .venv/.bench/{folder}")
            path.insert(0, str(found[0]))
        LOGS.mkdir(parents=True, exist_ok=True)
        self.log = LOGS / f"worker-{folder or 'ours'}.log"
        self._connection, theirs = Pipe()
        with theirs, self.log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "systems.worker", str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def call(self, module: str, function: str, *arguments: Any, timeout_s: float = 300.0) -> Any:
        """Return the result of ``systems.MODULE.FUNCTION(*arguments, generator)`` in the process.

        Raises:
            PlayError: It raised, took too long, or its process died. After the last two, this worker is of no use.
        """
        try:
            self._connection.send((module, function, arguments))
            if not self._connection.poll(timeout_s):
                self._kill()
                raise PlayError(f"not done after {timeout_s:.0f} s")
            error, returned = self._connection.recv()
        except (EOFError, OSError) as gone:
            raise PlayError(f"its process died, see {self.log.name}") from gone
        if error is not None:
            raise PlayError(error)
        return returned

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """Terminate the process and all that it started."""
        self._connection.close()  # which ends the process
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self._kill()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def compared(quick: Iterable[str] = ()) -> tuple[list[str], bool]:
    """Return the systems to compare, and whether the command names them; without names, all or the ``quick`` ones.

    Raises:
        SystemExit: A name on the command line is not a system's.
    """
    named = [word for word in sys.argv[1:] if not word.startswith("-")]
    if wrong := [name for name in named if name not in SYSTEMS]:
        raise SystemExit(f"no system is called {wrong[0]!r}: there are {', '.join(SYSTEMS)}")
    return list(named or quick or SYSTEMS), bool(named)


def each_system(
    names: Iterable[str], measure: Callable[[Worker, str], dict[str, Any]], *, parallel: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the figures of each system, or ``{"why_not": ...}``; ``parallel`` measures the folders concurrently."""

    def of_folder(folder: str | None) -> dict[str, dict[str, Any]]:
        figures: dict[str, dict[str, Any]] = {}
        mine = [name for name in names if SYSTEMS[name].folder == folder]
        try:
            with Worker(folder) as worker:
                for name in mine:
                    try:
                        figures[name] = measure(worker, name)
                    except PlayError as error:
                        figures[name] = {"why_not": str(error)}
                    print(f"{name:20} {figures[name]}", flush=True)
        except PlayError as error:
            figures = {name: {"why_not": str(error)} for name in mine}
        return figures

    names = [name for name in names if SYSTEMS[name].compared]
    folders = {SYSTEMS[name].folder for name in names}
    with ThreadPoolExecutor(len(folders) if parallel else 1) as threads:
        found = {name: row for part in threads.map(of_folder, folders) for name, row in part.items()}
    return {name: found[name] for name in SYSTEMS if name in found}


def serve(descriptor: int) -> None:
    """Execute calls until the connection closes."""
    from systems.generator import Generator

    generator = Generator()
    with Connection(descriptor) as connection, suppress(EOFError):
        while True:
            module, function, arguments = connection.recv()
            try:
                returned = getattr(import_module(f"systems.{module}"), function)(*arguments, generator)
                connection.send((None, returned))
            except Exception as error:  # any error of a system becomes its row
                traceback.print_exc()
                connection.send((f"{type(error).__name__}: {error}".splitlines()[0][:300], None))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
