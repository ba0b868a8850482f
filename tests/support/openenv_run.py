"""Run OpenEnv servers for the tests, each in a process of its own with a deadline."""

import atexit
import os
import re
import selectors
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from support.free_port import free_port

TESTS = Path(__file__).parents[1]
OLD = Path(sys.prefix) / ".peers" / "openenv-core"
"""Location of openenv-core 0.3.0, which has the modules of openenv 0.10."""
STARTING = 90


@contextmanager
def zoo(*, old: bool = False) -> Iterator[str]:
    """Run the servers of ``openenv_zoo``; ``old`` uses openenv-core 0.3.0."""
    port = free_port()
    command = ["-m", "uvicorn", "support.openenv_zoo:app", "--port", str(port), "--log-level", "error"]
    with _process(command, old=old) as process:
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + STARTING
        while not _answers(f"{url}/asked/nothing"):
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.1)
        yield url


@cache
def shared_zoo() -> str:
    """Return the address of the ``openenv_zoo`` servers shared by all tests of this process."""
    running = ExitStack()
    atexit.register(running.close)
    return running.enter_context(zoo())


@contextmanager
def serving(*args: str, old: bool = False) -> Iterator[str]:
    """Run ``gym-trl serve`` until the block ends."""
    with started(*args, old=old) as (url, _):
        yield url


@contextmanager
def started(*args: str, old: bool = False) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Provide the address and process of ``gym-trl serve`` until the block ends."""
    with _process(["-m", "gym_trl", "serve", *args, "--port", "0"], old=old) as process:
        yield address(process), process


def address(process: subprocess.Popen[bytes]) -> str:
    assert process.stdout is not None
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        assert selector.select(STARTING), "the server said nothing"
    line = process.stdout.readline().decode()
    found = re.search(r"http://\S+:[0-9]+", line)
    assert found, line + (process.stderr.read().decode() if process.stderr else "")
    return found[0]


def environment(*, old: bool = False) -> dict[str, str]:
    path = [str(OLD), str(TESTS)] if old else [str(TESTS)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}


@contextmanager
def _process(command: list[str], *, old: bool) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, *command], env=environment(old=old), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        yield process
    finally:
        process.kill()  # how it stops by itself is tested where that is the question
        process.communicate()


def _answers(url: str) -> bool:
    with suppress(OSError):
        urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=2).close()
        return True
    return False


class Cable:
    """Connection to a server that can be cut."""

    def __init__(self, url: str) -> None:
        host, port = re.findall(r"//([^:/]+):([0-9]+)", url)[0]
        self._target = (host, int(port))
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{port}", f":{self._listening.getsockname()[1]}").replace(host, "127.0.0.1")
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> "Cable":
        return self

    def __exit__(self, *error: object) -> None:
        self._listening.close()
        self.cut()

    def cut(self) -> None:
        """Break every connection at once without a closing handshake, as a network does."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(self._target, timeout=30)
                far.settimeout(None)
                self.connections += 1
                self._sockets += [near, far]
                for source, target in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
