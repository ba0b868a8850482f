"""Run OpenEnv servers for the tests, each in a process of its own."""

import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TESTS = Path(__file__).parents[1]


@contextmanager
def serving(*args: str, port: int = 0) -> Iterator[str]:
    """Run ``gym-trl serve`` until the block ends, and provide its address."""
    with _server("-m", "gym_trl", "serve", *args, "--port", str(port)) as url:
        yield url


@contextmanager
def zoo() -> Iterator[str]:
    """Run the servers of ``openenv_zoo``, and provide their address."""
    with _server("-m", "uvicorn", "support.openenv_zoo:app", "--port", "0") as url:
        yield url


@contextmanager
def _server(*command: str) -> Iterator[str]:
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "NO_COLOR": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        shown = ""
        while not (found := re.search(r"running on (http://\S+:[0-9]+)", shown)):
            line = process.stderr.readline()
            assert line, shown
            shown += line
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield found[1]
    finally:
        process.kill()
        process.communicate()


class Cable:
    """Connection to a server that can be cut."""

    def __init__(self, url: str) -> None:
        host, port = re.findall(r"//([^:/]+):([0-9]+)", url)[0]
        self._target = (host, int(port))
        self._sockets: list[socket.socket] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = url.replace(f":{port}", f":{self._listening.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection at once without a closing handshake, as a network does."""
        sockets, self._sockets = self._sockets, []
        for one in sockets:
            with suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        while True:
            near, _ = self._listening.accept()
            far = socket.create_connection(self._target)
            self._sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._forward, args=(source, target), daemon=True).start()

    @staticmethod
    def _forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)
