"""A Python process of its own that holds an object and calls its methods when asked, over pipes.

No fork, so nothing is inherited half-way; no ``if __name__ == "__main__"`` for users; what it prints goes to stderr.
"""

import os
import pickle
import signal
import struct
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

_LENGTH = struct.Struct("!Q")


class WorkerError(RuntimeError):
    """What a worker's object raised, or that the worker has ended."""


class Worker:
    """A process that holds what ``build`` makes there.

    >>> worker = Worker(lambda: [3, 4])
    >>> worker.ask("index", 4)
    >>> worker.answer()
    1
    >>> worker.close()

    ``build`` may be anything, a lambda too: it travels by value (cloudpickle).

    Raises:
        WorkerError: ``build`` raised.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        import cloudpickle

        self._process = subprocess.Popen(
            [sys.executable, "-c", "from gym_trl.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._send(cloudpickle.dumps(build))
        self._built = False

    def ask(self, method: str, *arguments: Any) -> None:
        """Have ``method`` called; the answers come in the order of the questions."""
        self._send(pickle.dumps((method, arguments), protocol=pickle.HIGHEST_PROTOCOL))

    def answer(self) -> Any:
        """What the oldest question that is not answered led to.

        Raises:
            WorkerError: it raised, or the process has ended.
        """
        if not self._built:
            self._built = True
            self._receive()
        return self._receive()

    def close(self) -> None:
        """End the process, and wait until it has."""
        with suppress(OSError):
            self._stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @property
    def _stdin(self) -> BinaryIO:
        assert self._process.stdin is not None
        return self._process.stdin  # type: ignore[return-value]  # bytes, for no encoding was given

    @property
    def _stdout(self) -> BinaryIO:
        assert self._process.stdout is not None
        return self._process.stdout  # type: ignore[return-value]

    def _send(self, message: bytes) -> None:
        try:
            self._stdin.write(_LENGTH.pack(len(message)) + message)
            self._stdin.flush()
        except OSError as error:
            raise WorkerError(f"the worker process {self.pid} has ended") from error

    def _receive(self) -> Any:
        message = _read(self._stdout)
        if message is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            raise WorkerError(f"the worker process {self.pid} has ended with status {self._process.returncode}")
        right, result = pickle.loads(message)  # noqa: S301 -- our own process
        if not right:
            raise WorkerError(result)
        return result


def serve() -> None:
    """What the process does: build the object, then answer one question after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the pipe
    questions = sys.stdin.buffer
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints must not get between the answers
    build = _read(questions)
    if build is None:
        return
    held, going = _tried(_built, build)
    _write(answers, going, None if going else held)
    while going and (question := _read(questions)) is not None:
        result, right = _tried(_called, held, question)
        _write(answers, right, result)


def _built(message: bytes) -> Any:
    return pickle.loads(message)()  # noqa: S301 -- the parent's


def _called(held: Any, message: bytes) -> Any:
    method, arguments = pickle.loads(message)  # noqa: S301 -- the parent's
    return getattr(held, method)(*arguments)


def _tried(act: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    try:
        return act(*arguments), True
    except Exception:
        return traceback.format_exc(limit=-3), False


def _write(stream: BinaryIO, right: bool, result: Any) -> None:
    try:
        message = pickle.dumps((right, result), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        message = pickle.dumps((False, f"the answer cannot be sent: {error}"))
    stream.write(_LENGTH.pack(len(message)) + message)
    stream.flush()


def _read(stream: BinaryIO) -> bytes | None:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    body = stream.read(length)
    return body if len(body) == length else None
