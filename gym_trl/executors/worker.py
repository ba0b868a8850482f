"""Separate Python process that holds an object and calls its methods on request, over pipes.

It is started without fork, so it inherits no state, and needs no ``if __name__ == "__main__"``; its prints go to
stderr. It has its own session, and adopts the orphans among the processes that it starts (on Linux), so that all of
them end with it, and it ends when its parent does. An environment that hangs in C code without releasing the
interpreter's lock does not notice the end of its parent.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any
from uuid import uuid4

from gym_trl.errors import described, raise_interrupt
from gym_trl.executors.process_tree import MARK, adopt_orphans, end, end_descendants, marked

_LENGTH = struct.Struct("!Q")
_AT_ONCE = 1 << 16  # capacity of a pipe; a larger buffer would be reallocated at each read
_LOOK_S = 1.0
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def start_python(*arguments: str, variables: Mapping[str, str], **options: Any) -> "subprocess.Popen[bytes]":
    r"""Start Python, which finds the same modules as this process, and so none in the working directory by default.

    >>> command = ["-c", "import sys; print(sys.path[0] == '')"]
    >>> start_python(*command, variables={}, stdout=subprocess.PIPE).communicate()[0]
    b'False\n'

    Args:
        arguments: Options of Python, and what it runs.
        variables: Environment variables in addition to those of this process.
        options: Arguments of ``subprocess.Popen``.
    """
    paths = os.pathsep.join(path or str(Path.cwd()) for path in sys.path if isinstance(path, str))
    # Without -P, Python would look first in the working directory, also for gym_trl itself.
    command = [sys.executable, "-P", *arguments]
    variables = {**os.environ, "PYTHONPATH": paths, **variables}
    return subprocess.Popen(command, env=variables, **options)  # noqa: S603 -- of our own callers


class WorkerError(RuntimeError):
    """Exception of a worker's object, or the end of the worker."""


class WorkerEnded(WorkerError):  # noqa: N818 -- what has happened
    """End of the process, with the object that it held.

    ``by_itself`` is false if a signal from outside ended it.
    """

    def __init__(self, message: str, *, by_itself: bool = False) -> None:
        super().__init__(message)
        self.by_itself = by_itself


class Worker:
    """Process that holds the object that ``build`` makes there.

    >>> worker = Worker(lambda: [3, 4])
    >>> worker.ask("index", 4)
    >>> worker.answer()
    1
    >>> worker.close()

    ``build`` is transferred by value (cloudpickle), so it may be a lambda.

    Raises:
        WorkerError: ``build`` raised.
    """

    def __init__(self, build: Callable[[], Any]) -> None:
        import cloudpickle

        self._mark = uuid4().hex
        self._process = start_python(
            *("-c", "from gym_trl.executors.worker import serve; serve()"),
            variables={MARK: self._mark},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        self._inbox = _Inbox(self._stdout.fileno())
        self._arrived: deque[memoryview] = deque()
        self._built = False
        self.send(cloudpickle.dumps(build))

    def ask(self, method: str, *arguments: Any) -> None:
        """Call ``method`` in the process; the answers come in the order of the calls."""
        self.send(question(method, *arguments))

    def send(self, message: bytes) -> None:
        """Send a call that ``question`` has packed.

        Raises:
            WorkerError: the process has ended.
        """
        try:
            _write(self._stdin.fileno(), message)
        except (OSError, ValueError) as error:
            raise WorkerEnded(f"the worker process {self.pid} has ended") from error

    def answer(self) -> Any:
        """Return the result of the oldest call without an answer.

        Raises:
            WorkerError: the call raised.
            WorkerEnded: the process has ended.
        """
        while not self._arrived:
            self._read()
        return _opened(self._arrived.popleft())

    def arrived(self) -> list[Any]:
        """Return all results that have arrived; call it when ``fileno`` is readable.

        Raises:
            WorkerError: one of the calls raised, or the process has ended.
        """
        self._read()
        answers = [_opened(message) for message in self._arrived]
        self._arrived.clear()
        return answers

    @property
    def answering(self) -> bool:
        """True if a part of a result has arrived."""
        return self._inbox.begun

    def fileno(self) -> int:
        """Return the file descriptor that is readable when there is a result, or the process has ended."""
        return self._stdout.fileno()

    def kill(self) -> None:
        """Kill the process with all its child processes."""
        if self._stdout.closed:  # the pid may have been reused
            return
        if self._process.poll() is None:
            os.kill(self.pid, signal.SIGSTOP)  # it starts no others meanwhile
            end_descendants(self.pid)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.wait() != 0:  # it could not end its own children
            end(marked(self._mark))
        with suppress(OSError):
            self._stdin.close()
        self._stdout.close()

    def close(self) -> None:
        """Let the process close its object and end, and wait for it; after five seconds it is killed."""
        if self._stdout.closed:
            return
        with suppress(OSError):
            self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self.kill()

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def _read(self) -> None:
        if self._stdout.closed:  # the file descriptor may have been reused
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
            _opened(messages.pop(0))  # raises if the object could not be built
        self._arrived += messages


class _Inbox:
    """Reader that splits the bytes from a pipe into messages."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._partial = bytearray()

    @property
    def begun(self) -> bool:
        """True if a part of a message has arrived."""
        return bool(self._partial)

    def read(self) -> list[memoryview] | None:
        """Wait for one read, and return the messages that are complete; ``None`` at the end."""
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
    """Return a packed call, for its size or for sending it later."""
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


def serve() -> None:
    """Run the process: build the object, then execute one call after the other."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C and closes the pipe
    adopt_orphans()
    Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()
    asked, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)  # prints must not mix with the answers
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)  # code that reads stdin must not consume the calls
    os.close(nothing)
    _forks_leave([asked, answers])
    questions = _questions(_Inbox(asked))
    build = next(questions, None)
    if build is None:
        return
    target, going = _tried(_built, build)
    _answer(answers, going, None if going else target)
    if not going:
        return
    for message in questions:
        result, right = _tried(_called, target, message)
        _answer(answers, right, result)
    if hasattr(target, "close"):
        target.close()
    end_descendants(os.getpid())


def _forks_leave(pipes: list[int]) -> None:
    """Close the pipes in forks of this process: an open copy would hide the end of this process."""

    def leave() -> None:
        while pipes:  # once: a fork's forks may have reused the descriptors
            os.close(pipes.pop())

    os.register_at_fork(after_in_child=leave)


def _questions(inbox: _Inbox) -> Iterator[memoryview]:
    while (messages := inbox.read()) is not None:
        yield from messages


def _die_with(parent: int) -> None:
    """End this process and all below it when the parent has ended, even if the object never reads its pipe."""
    while os.getppid() == parent:
        time.sleep(_LOOK_S)
    time.sleep(_LOOK_S)  # time to close normally
    end_descendants(os.getpid())
    os.killpg(0, signal.SIGKILL)


def _built(message: memoryview) -> Any:
    return pickle.loads(message)()  # noqa: S301 -- the parent's


def _called(target: Any, message: memoryview) -> Any:
    method, arguments = pickle.loads(message)  # noqa: S301 -- the parent's
    return getattr(target, method)(*arguments)


def _tried(act: Callable[..., Any], *arguments: Any) -> tuple[Any, bool]:
    try:
        return act(*arguments), True
    except BaseException as error:
        raise_interrupt(error)
        return traceback.format_exc(limit=-3), False


def _answer(pipe: int, right: bool, result: Any) -> None:
    try:
        message = pickle.dumps((right, result), protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        raise_interrupt(error)
        message = pickle.dumps((False, f"the answer cannot be sent: {described(error)}"))
    _write(pipe, message)


def _write(pipe: int, message: bytes) -> None:
    framed = _LENGTH.pack(len(message)) + message
    if (written := os.write(pipe, framed)) < len(framed):
        rest = memoryview(framed)[written:]
        while rest:
            rest = rest[os.write(pipe, rest) :]
