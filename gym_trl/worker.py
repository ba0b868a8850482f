"""A Python process of its own that holds an object and calls its methods when asked, over pipes.

No fork, so nothing is inherited half-way; no ``if __name__ == "__main__"`` for users; what it prints goes to stderr. It
has a session of its own, so that whatever it starts can be killed with it, and ends when its parent does.
"""

import os
import pickle
import signal
import struct
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Thread
from typing import Any, BinaryIO

_LENGTH = struct.Struct("!Q")
_AT_ONCE = 1 << 16  # as much as a pipe holds; more would be allocated and given back at each read
_LOOK_S = 1.0
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


class WorkerError(RuntimeError):
    """What a worker's object raised, or that the worker has ended."""


class WorkerEnded(WorkerError):  # noqa: N818 -- what has happened
    """The process has ended, and whatever it held with it.

    ``by_itself`` is false where a signal ended it that comes from outside.
    """

    def __init__(self, said: str, *, by_itself: bool = False) -> None:
        super().__init__(said)
        self.by_itself = by_itself


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

        paths = os.pathsep.join(path for path in sys.path if path and isinstance(path, str))  # as Python reads it
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from gym_trl.worker import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": paths},
            start_new_session=True,
        )
        self._inbox = _Inbox(self._stdout.fileno())
        self._arrived: deque[memoryview] = deque()
        self._built = False
        self.send(cloudpickle.dumps(build))

    def ask(self, method: str, *arguments: Any) -> None:
        """Have ``method`` called; the answers come in the order of the questions."""
        self.send(question(method, *arguments))

    def send(self, message: bytes) -> None:
        """Ask what ``question`` has packed.

        Raises:
            WorkerError: the process has ended.
        """
        try:
            _write(self._stdin.fileno(), message)
        except (OSError, ValueError) as error:
            raise WorkerEnded(f"the worker process {self.pid} has ended") from error

    def answer(self) -> Any:
        """What the oldest question that is not answered led to.

        Raises:
            WorkerError: it raised.
            WorkerEnded: the process has ended.
        """
        while not self._arrived:
            self._read()
        return _opened(self._arrived.popleft())

    def arrived(self) -> list[Any]:
        """All that has been answered, for somebody who waits until ``fileno`` can be read.

        Raises:
            WorkerError: one of the answers was raised, or the process has ended.
        """
        self._read()
        answers = [_opened(message) for message in self._arrived]
        self._arrived.clear()
        return answers

    @property
    def answering(self) -> bool:
        """Whether a part of an answer has arrived."""
        return self._inbox.begun

    def fileno(self) -> int:
        """What can be read when there is an answer, or the process has ended."""
        return self._stdout.fileno()

    def kill(self) -> None:
        """End the process at once, with all that it has started."""
        if self._stdout.closed:  # its number may be another process's by now
            return
        self._end(_started_by(self.pid))

    def close(self) -> None:
        """Let the process close what it holds and end, and wait until it has; after five seconds it is killed."""
        if self._stdout.closed:
            return
        started = _started_by(self.pid)
        with suppress(OSError):
            self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._end(started)

    def _end(self, started: list[int]) -> None:
        for end, number in ((os.killpg, self.pid), *((os.kill, number) for number in started)):
            with suppress(ProcessLookupError, PermissionError):
                end(number, signal.SIGKILL)
        self._process.wait()
        with suppress(OSError):
            self._stdin.close()
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

    def _read(self) -> None:
        if self._stdout.closed:  # the number of its pipe may be that of anything by now
            raise WorkerEnded(f"the worker process {self.pid} was closed")
        messages = self._inbox.read()
        if messages is None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=5)
            status = self._process.returncode
            by_itself = status is not None and -status not in _FROM_OUTSIDE
            raise WorkerEnded(f"the worker process {self.pid} has ended {_how(status)}", by_itself=by_itself)
        if messages and not self._built:
            self._built = True
            _opened(messages.pop(0))  # that the object was built, or why not
        self._arrived += messages


class _Inbox:
    """Cuts what comes through a pipe into messages."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._partial = bytearray()

    @property
    def begun(self) -> bool:
        """Whether a part of a message is here."""
        return bool(self._partial)

    def read(self) -> list[memoryview] | None:
        """The messages that are complete after one more read, which waits for something; ``None`` at the end."""
        chunk: bytes | bytearray = os.read(self._pipe, _AT_ONCE)
        if not chunk:
            return None
        if self._partial:
            self._partial += chunk
            chunk = self._partial
        messages, start, size = [], 0, len(chunk)
        while size - start >= _LENGTH.size:
            stop = start + _LENGTH.size + _LENGTH.unpack_from(chunk, start)[0]
            if stop > size:
                break
            messages.append(memoryview(chunk)[start + _LENGTH.size : stop])
            start = stop
        if start or chunk is not self._partial:
            self._partial = bytearray(memoryview(chunk)[start:])
        return messages


def question(method: str, *arguments: Any) -> bytes:
    """Pack a question, for somebody who wants to know its size or sends it later."""
    return pickle.dumps((method, arguments), protocol=pickle.HIGHEST_PROTOCOL)


def _opened(message: memoryview) -> Any:
    right, result = pickle.loads(message)  # noqa: S301 -- our own process
    if not right:
        raise WorkerError(result)
    return result


def _how(status: int | None) -> str:
    if status is not None and status < 0:
        return f"by signal {signal.Signals(-status).name}"
    return f"with status {status}"


def _started_by(pid: int) -> list[int]:
    """What a process has started, and what that has started, also in sessions of their own, as browsers do."""
    try:
        import psutil
    except ImportError:  # then its session is all that is known
        return []
    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def serve() -> None:
    """What the process does: build the object, then answer one question after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the pipe
    Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    asked, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # prints must not get between the answers
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # nor may whoever reads its input take the questions
    os.close(nothing)
    _forks_leave([asked, answers])
    questions = _questions(_Inbox(asked))
    build = next(questions, None)
    if build is None:
        return
    held, going = _tried(_built, build)
    _answer(answers, going, None if going else held)
    if not going:
        return
    for message in questions:
        result, right = _tried(_called, held, message)
        _answer(answers, right, result)
    if hasattr(held, "close"):
        held.close()


def _forks_leave(pipes: list[int]) -> None:
    """Close pipes in whatever this process forks off: as long as one has them open, nobody sees that this one ended."""

    def leave() -> None:
        while pipes:  # once: a fork's forks may use the numbers again
            os.close(pipes.pop())

    os.register_at_fork(after_in_child=leave)


def _questions(inbox: _Inbox) -> Iterator[memoryview]:
    while (messages := inbox.read()) is not None:
        yield from messages


def _die_with(parent: int) -> None:
    """End this session when the parent has ended, also where what is held hangs and never looks at its pipe again."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    time.sleep(_LOOK_S)  # for what closes by itself
    os.killpg(0, signal.SIGKILL)


def _built(message: memoryview) -> Any:
    return pickle.loads(message)()  # noqa: S301 -- the parent's


def _called(held: Any, message: memoryview) -> Any:
    method, arguments = pickle.loads(message)  # noqa: S301 -- the parent's
    return getattr(held, method)(*arguments)


def _tried(act: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    try:
        return act(*arguments), True
    except Exception:
        return traceback.format_exc(limit=-3), False


def _answer(pipe: int, right: bool, result: Any) -> None:
    try:
        message = pickle.dumps((right, result), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        message = pickle.dumps((False, f"the answer cannot be sent: {error}"))
    _write(pipe, message)


def _write(pipe: int, message: bytes) -> None:
    framed = _LENGTH.pack(len(message)) + message
    if (written := os.write(pipe, framed)) < len(framed):
        rest = memoryview(framed)[written:]
        while rest:
            rest = rest[os.write(pipe, rest) :]
