"""Process that forks workers: a fork starts in milliseconds, and shares the memory of what the server has imported.

The server is a new interpreter that has imported this package's executors and nothing else, so a worker inherits no
state of the program. Environment variables, working directory, ``sys.path`` and stderr are the program's at the time
of the fork; other properties of the process, such as limits and CPU affinity, at the time of the first one.
"""

import gc
import os
import pickle
import selectors
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import ClassVar

_NUMBER = struct.Struct("!q")
_LOOK_S = 1.0
_PIPES = 5
_START = "from gym_trl.executors import fork_server, process, worker; fork_server.run(worker.serve)"


class ForkedProcess:
    """Process that the server has forked, with the part of ``subprocess.Popen`` that a worker needs.

    Args:
        stdin: Read end of the pipe with the calls.
        stdout: Write end of the pipe for the answers. Both are closed here.
    """

    def __init__(self, stdin: int, stdout: int) -> None:
        self.returncode: int | None = None
        self._status, status = os.pipe()
        here = os.open(".", os.O_RDONLY)
        try:
            _send([stdin, stdout, status, 2, here])
        except BaseException:
            os.close(self._status)
            raise
        finally:
            for end in (stdin, stdout, status, here):
                os.close(end)
        self._ended = False
        pid = self._read()
        if pid is None:
            raise OSError("the fork server has not started a process")
        self.pid = pid

    def wait(self, timeout: float | None = None) -> int | None:
        """Return the exit code, as ``subprocess.Popen.wait`` does; ``None`` if the server was lost before."""
        if not self._ended:
            with selectors.DefaultSelector() as selector:
                selector.register(self._status, selectors.EVENT_READ)
                if not selector.select(timeout):
                    raise subprocess.TimeoutExpired("worker", timeout or 0.0)
            self.returncode = self._read()
            self._ended = True
            os.close(self._status)
        return self.returncode

    def _read(self) -> int | None:
        said = os.read(self._status, _NUMBER.size)
        return _NUMBER.unpack(said)[0] if said else None


def surroundings() -> bytes:
    """Return the packed environment variables and ``sys.path`` of this process."""
    return pickle.dumps((dict(os.environ), importable()))


def enter(packed: bytes | memoryview) -> None:
    """Set this process's environment variables and ``sys.path`` to those that ``surroundings`` has packed."""
    variables, paths = pickle.loads(packed)  # noqa: S301 -- the parent's
    os.environ.clear()
    os.environ.update(variables, PYTHONPATH=os.pathsep.join(paths))
    sys.path[:] = ["", *paths]


def importable() -> list[str]:
    """Return the entries of ``sys.path`` that another interpreter can use."""
    return [path for path in sys.path if path and isinstance(path, str)]


class _Server:
    """Program's side of the server."""

    running: "ClassVar[_Server | None]" = None
    lock = Lock()

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-c", _START],
                {**os.environ, "PYTHONPATH": os.pathsep.join(importable())},
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
            )

    def drop(self) -> None:
        """Close a server that has ended, or that is another process's."""
        self.socket.close()
        if self.owner == os.getpid():
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


def _send(pipes: list[int]) -> None:
    """Send the descriptors of a new worker to the server of this process, which is started if there is none."""
    with _Server.lock:
        if (server := _Server.running) is not None:
            if server.owner == os.getpid():
                with suppress(ConnectionError):  # it has ended
                    socket.send_fds(server.socket, [b"."], pipes)
                    return
            server.drop()
        _Server.running = _Server()
        socket.send_fds(_Server.running.socket, [b"."], pipes)


def run(serve: Callable[[int, int, int], None]) -> None:
    """Fork a worker that calls ``serve`` for each request, until the program ends."""
    program = os.getppid()
    os.setsid()
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    ended, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    statuses: dict[int, int] = {}
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, all of this memory
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        selector.register(ended, selectors.EVENT_READ)
        while os.getppid() == program:
            for key, _ in selector.select(_LOOK_S):
                if key.fileobj == ended:
                    os.read(ended, 4096)
                    continue
                _, pipes, *_ = socket.recv_fds(control, 1, _PIPES)
                if not pipes:  # the program has ended
                    return
                stdin, stdout, status, stderr, here = pipes
                if pid := os.fork():
                    statuses[pid] = status
                    os.write(status, _NUMBER.pack(pid))
                    for end in (stdin, stdout, stderr, here):
                        os.close(end)
                    continue
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for end in (ended, woken, status, *statuses.values()):
                    os.close(end)
                control.close()
                selector.close()
                _become_worker(stderr, here)
                serve(stdin, stdout, os.getppid())
                return
            _report(statuses)


def _report(statuses: dict[int, int]) -> None:
    """Write the exit codes of the workers that have ended."""
    with suppress(ChildProcessError):  # there is none
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            pid, code = found
            status = statuses.pop(pid)
            with suppress(BrokenPipeError):
                os.write(status, _NUMBER.pack(os.waitstatus_to_exitcode(code)))
            os.close(status)


def _become_worker(stderr: int, here: int) -> None:
    """Take a session, a working directory and a stderr; draw new global seeds, as a new interpreter has."""
    import numpy as np

    os.setsid()
    os.fchdir(here)
    os.close(here)
    os.dup2(stderr, 2)
    os.close(stderr)
    np.random.seed()  # `random` does the same by itself
