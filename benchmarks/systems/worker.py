"""Systems in processes: one process, and one engine, for each folder of packages.

    with Worker("trl-env") as worker:
        run = worker.call("trl_env", "play", game)

The process runs ``python -m systems.worker ADDRESS``.
"""

import os
import signal
import subprocess
import sys
import tempfile
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parents[1]
VENV = HERE.parent / ".venv"
LOGS = HERE.parent / "runs" / "benchmarks"
_START_S = 120.0
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
        self._place = tempfile.TemporaryDirectory()
        address = str(Path(self._place.name) / "socket")
        with Listener(address, "AF_UNIX") as listener, self.log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "systems.worker", address],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            listener._listener._socket.settimeout(_START_S)  # type: ignore[attr-defined]
            try:
                self._connection: Connection[Any, Any] = listener.accept()
            except TimeoutError as error:
                self._kill()
                raise PlayError(f"its process did not start within {_START_S:.0f} s, see {self.log}") from error

    def call(self, module: str, function: str, *arguments: Any, timeout_s: float = 300.0) -> Any:
        """Return the result of ``systems.MODULE.FUNCTION(*arguments, generator)`` in the process.

        Raises:
            PlayError: it raised, took too long, or its process died; this worker is of no use in the last two.
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
        """Return whether the process accepts calls."""
        return self._process.poll() is None

    def close(self) -> None:
        """Terminate the process and all that it started."""
        self._connection.close()  # which ends it; what it has started ends with it
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=_END_S)
        self._kill()
        self._place.cleanup()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def serve(address: str) -> None:
    """Execute calls until the connection closes."""
    from systems.generator import Generator

    generator = Generator()
    with Client(address, "AF_UNIX") as connection, suppress(EOFError):
        while True:
            module, function, arguments = connection.recv()
            try:
                returned = getattr(import_module(f"systems.{module}"), function)(*arguments, generator)
                connection.send((None, returned))
            except Exception as error:  # any error of a system becomes its row
                traceback.print_exc()
                connection.send((f"{type(error).__name__}: {error}".splitlines()[0][:300], None))


if __name__ == "__main__":
    serve(sys.argv[1])
