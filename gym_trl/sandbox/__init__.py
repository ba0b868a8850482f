"""Sandbox for untrusted programs."""

import json
import os
import secrets
import selectors
import shutil
import signal
import subprocess
import warnings
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id
from time import monotonic, sleep
from typing import Any, Literal, NamedTuple, TypeAlias

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.sandbox.isolation import Command, Isolation, check_isolation, command, environment

__all__ = ["Isolation", "Result", "Sandbox", "SandboxLimits", "Status"]

Status: TypeAlias = Literal["ok", "error", "timeout", "flood", "died"]
"""Outcome of a program: completed, raised an exception, exceeded its time, wrote too much output, or its process ended.

After ``"timeout"``, ``"flood"`` and ``"died"`` the process is gone.
"""

_START_S = 20.0
_STOP_S = 5.0
_FLOOD = 2**20
"""Bytes of output or of a reply at which a program is ended."""
_CHUNK = 2**16
_ENDED = {
    "timeout": "[It was ended after {seconds:g} seconds. All variables are lost.]",
    "flood": "[It was ended because it wrote more than a mebibyte. All variables are lost.]",
    "died": "[Its process ended, at a limit or by itself. All variables are lost.]",
}


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Resource limits of the programs of one sandbox.

    >>> SandboxLimits(seconds=0)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: seconds must be positive, got 0
    """

    seconds: float = 5.0
    """Maximum wall-clock seconds of one program."""
    cpu_seconds: int = 30
    """Maximum CPU seconds of each process, over all programs of an episode."""
    memory_mb: int = 256
    """Maximum memory of each process, in MiB."""
    processes: int = 8
    """Maximum number of concurrent processes, including threads."""
    file_mb: int = 16
    """Size of the temporary directory, and so the maximum size of a file, in MiB."""
    output_chars: int = 10_000
    """Characters of a program's output that are kept, half from each end."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, got {getattr(self, name)!r}")

    def _settings(self) -> dict[str, Any]:
        file_bytes = self.file_mb * 2**20
        limits = {
            "AS": self.memory_mb * 2**20,
            "CPU": self.cpu_seconds,
            "NPROC": self.processes,
            "FSIZE": file_bytes,
            "NOFILE": 64,
            "CORE": 0,
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
            "SIGPENDING": 256,
        }
        return {"limits": limits, "file_bytes": file_bytes}


class Result(NamedTuple):
    """Result of a program or a function call."""

    status: Status
    output: str
    """Standard output and standard error, with tracebacks and the value of a last line that is an expression."""
    value: Any = None
    """Return value of a called function, which must be JSON-serializable."""


class Sandbox(Closing):
    r"""Isolated process for the programs of one episode, which share their variables.

    >>> with Sandbox() as sandbox:
    ...     sandbox.run("numbers = [3, 1, 2]")
    ...     sandbox.run("print(max(numbers))\nsorted(numbers)").output
    ...     sandbox.run("open('/etc/passwd')").output.splitlines()[-1]
    Result(status='ok', output='', value=None)
    '3\n[1, 2, 3]\n'
    "FileNotFoundError: [Errno 2] No such file or directory: '/etc/passwd'"

    With bubblewrap a program has no network, no files except the interpreter with its standard library (read-only) and
    its own empty temporary directory, no environment variables and no other processes; system calls work only if a
    list has them. If a program exceeds a limit or the deadline, its whole process group is ended, and the next program
    starts in a new process without variables. Between programs the process is stopped, and processes that a program
    left running are ended. All of them end with the process that made the sandbox, also if that is killed.

    If bubblewrap does not work, creating a sandbox raises an error. ``isolation="limits"`` is weaker and needs no other
    program: it applies the limits, a shorter list (no network, no further processes, no signals), and, if the kernel
    has Landlock (Linux 5.13), access to the same files as above and a folder of its own. Names and sizes of other files
    can then be read, and the total size of the folder is not limited. Without Landlock files are not protected, with a
    warning.

    Results come from an untrusted process: evaluate them in the parent process, never inside the sandbox.

    Args:
        limits: Resource limits of the programs.
        isolation: ``"bubblewrap"`` or ``"limits"``.

    Raises:
        ConfigError: The ``isolation`` is unknown or does not work on this machine.
        OSError: The process cannot be started.
    """

    def __init__(self, limits: SandboxLimits | None = None, *, isolation: Isolation = "bubblewrap") -> None:
        check_isolation(isolation)
        self.limits = limits or SandboxLimits()
        self.isolation: Isolation = isolation
        self._settings = self.limits._settings()
        self._process: _Process | None = None

    @property
    def alive(self) -> bool:
        """True if the process is running, with the variables of the programs so far."""
        return self._process is not None and self._process.owner == os.getpid()

    def run(self, code: str, *, seconds: float | None = None) -> Result:
        """Run a program in the process, which is started if necessary."""
        return self._ask({"code": code}, seconds)

    def call(self, function: str, *arguments: Any, seconds: float | None = None) -> Result:
        """Call a function that an earlier program has defined, with JSON-serializable arguments.

        >>> with Sandbox() as sandbox:
        ...     _ = sandbox.run("def double(n): return 2 * n")
        ...     sandbox.call("double", 21)
        Result(status='ok', output='', value=42)
        """
        return self._ask({"function": function, "arguments": list(arguments)}, seconds)

    def close(self) -> None:
        """End the process and everything that it started; the next program starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _ask(self, request: dict[str, Any], seconds: float | None) -> Result:
        if not self.alive:
            self._process = _Process(self.isolation, self._settings)
        assert self._process is not None
        seconds = self.limits.seconds if seconds is None else seconds
        result = self._process.ask(request, seconds, self.limits.output_chars)
        if result.status in _ENDED:
            self.close()
        return result


class _Process:
    """Handle of a running driver: its three pipes and its process tree."""

    def __init__(self, isolation: Isolation, settings: dict[str, Any]) -> None:
        self.owner = os.getpid()
        self._isolated = isolation == "bubblewrap"
        replies, to_us = os.pipe()
        try:
            made = command(isolation, settings, replies=to_us)
            self._popen = _spawn(made, to_us)
        except BaseException:
            os.close(replies)
            raise
        finally:
            os.close(to_us)
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._requests, self._output, self._replies = self._popen.stdin.fileno(), self._popen.stdout.fileno(), replies
        for descriptor in (self._requests, self._output, self._replies):
            os.set_blocking(descriptor, False)
        self._heard = b""
        self._driver = 0
        self._finalizer = weakref.finalize(self, _end, self._popen, replies, made.folder, self.owner)
        output = bytearray()
        status, hello = self._exchange(b"", "hello", monotonic() + _START_S, output)
        if status != "ok" or (self._isolated and hello["refused"]):
            self.end()
            message = hello.get("refused") or output.decode("utf-8", "replace")
            raise OSError(f"the sandbox's process did not start ({status}): {message:.300}")
        if hello["refused"]:
            warnings.warn(f"programs run here without some of the limits: {hello['refused']}", stacklevel=4)
        self._driver = self._find_driver()
        with suppress(OSError):  # if memory runs out, the kernel should end this process first
            Path(f"/proc/{self._driver}/oom_score_adj").write_text("1000", encoding="ascii")
        self._pause()

    def ask(self, request: dict[str, Any], seconds: float, most_characters: int) -> Result:
        token = secrets.token_hex(8)
        output = bytearray()
        if self._popen.poll() is None:  # otherwise its process id may have been reused
            self._signal(self._driver, signal.SIGCONT)
        line = json.dumps({**request, "token": token}).encode() + b"\n"
        status, answer = self._exchange(line, token, monotonic() + seconds, output)
        if status == "ok":
            if not self._pause():
                status = "died"
            elif answer.get("status") != "ok":
                status = "error"
        text = _shorten(output.decode("utf-8", "replace"), most_characters)
        if status in _ENDED:
            line_end = "\n" if text and not text.endswith("\n") else ""
            return Result(status, f"{text}{line_end}{_ENDED[status].format(seconds=seconds)}\n")
        return Result(status, text, answer.get("value"))

    def end(self) -> None:
        self._finalizer()

    def _exchange(self, send: bytes, token: str, deadline: float, output: bytearray) -> tuple[Status, dict[str, Any]]:
        """Send a request and collect output until the reply arrives, without blocking."""
        unsent = memoryview(send)
        with selectors.DefaultSelector() as selector:
            selector.register(self._output, selectors.EVENT_READ)
            selector.register(self._replies, selectors.EVENT_READ)
            if unsent:
                selector.register(self._requests, selectors.EVENT_WRITE)
            while (left := deadline - monotonic()) > 0:
                for key, _ in selector.select(left):
                    if key.fd == self._requests:
                        try:
                            unsent = unsent[os.write(self._requests, unsent[:_CHUNK]) :]
                        except BrokenPipeError:
                            return "died", {}
                        if not unsent:
                            selector.unregister(self._requests)
                        continue
                    chunk = _read(key.fd)
                    if key.fd == self._output:
                        output += chunk or b""
                        if chunk == b"":  # closed by the program; a reply may still arrive
                            selector.unregister(self._output)
                    elif not chunk:
                        return "died", {}
                    else:
                        self._heard += chunk
                        if (answer := self._find_answer(token)) is not None:
                            self._drain(output)
                            return ("flood" if len(output) > _FLOOD else "ok"), answer
                    if len(output) > _FLOOD or len(self._heard) > _FLOOD:
                        return "flood", {}
        return "timeout", {}

    def _find_answer(self, token: str) -> dict[str, Any] | None:
        """Return the reply to this request; other lines, which a program may write, are dropped."""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            with suppress(ValueError, RecursionError):
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("token") == token:
                    return answer
        return None

    def _drain(self, output: bytearray) -> None:
        """Read the output that was written before the reply, all of which is in the pipe now."""
        while len(output) <= _FLOOD and (chunk := _read(self._output)):
            output += chunk

    def _find_driver(self) -> int:
        """Return the driver's process id in this namespace: below bubblewrap and its namespace's first process."""
        pid = self._popen.pid
        for _ in range(2 if self._isolated else 0):
            pid = next(_children(pid), 0)
        return pid

    def _pause(self) -> bool:
        """Stop the driver and end all processes that a program left; return True on success."""
        if self._popen.poll() is not None or not self._driver:
            return False
        if not self._signal(self._driver, signal.SIGSTOP):
            return False
        top = next(_children(self._popen.pid), 0) if self._isolated else self._popen.pid
        deadline = monotonic() + _STOP_S
        while monotonic() < deadline:
            stopped = _state(self._driver) in "TtXZ"  # until it is stopped, it may start another process
            left = [pid for pid in _descendants(top) if pid != self._driver and _state(pid) not in "XZ"]
            if stopped and not left:
                return True
            for pid in left:
                self._signal(pid, signal.SIGKILL)
            sleep(0.0002)
        return False

    def _signal(self, pid: int, number: signal.Signals) -> bool:
        try:
            os.kill(pid, number)
        except OSError:
            return False
        return True


def _end(popen: "subprocess.Popen[bytes]", replies: int, folder: str | None, owner: int) -> None:
    """End the whole process tree and the session, and remove the folder."""
    assert popen.stdin is not None
    assert popen.stdout is not None
    os.close(replies)
    with suppress(OSError):
        popen.stdin.close()
    popen.stdout.close()
    if owner != os.getpid():  # a fork of the owner has inherited the pipes, not the process
        popen.returncode = 0
        return
    below = list(_descendants(popen.pid))
    for pid in [*below, popen.pid]:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    with suppress(OSError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
    for pid in below:
        _forget(pid)
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _forget(pid: int) -> None:
    """Wait for a process that was killed, if it is now a child of this one (``adopt_orphans``): no zombie is left."""
    deadline = monotonic() + _STOP_S
    with suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and monotonic() < deadline:
            sleep(0.0002)


def _spawn(made: Command, replies: int) -> "subprocess.Popen[bytes]":
    """Start the process from a permanent thread, because Linux sends the parent-death signal when the thread ends."""
    return (
        _spawner()
        .submit(
            subprocess.Popen,
            made.arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[replies],
            env=environment(made.folder),
            cwd=made.folder or "/",
            start_new_session=True,
        )
        .result()
    )


_SPAWNERS: dict[int, ThreadPoolExecutor] = {}


def _spawner() -> ThreadPoolExecutor:
    """Return this process's only spawning thread; a fork does not inherit it and gets a new one."""
    return _SPAWNERS.setdefault(os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="gym-trl sandbox"))


def _read(descriptor: int) -> bytes | None:
    """Return the available bytes: ``None`` if there are none, empty at the end of the stream."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None


def _children(pid: int) -> Iterator[int]:
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (task / "children").read_text(encoding="ascii").split())
    except OSError:  # the process is gone, or the kernel has no such lists (CONFIG_PROC_CHILDREN)
        if not Path("/proc/self/task", str(get_native_id()), "children").exists():
            yield from (int(path.name) for path in Path("/proc").glob("[0-9]*") if _parent(path) == pid)


def _parent(process: Path) -> int | None:
    with suppress(OSError):
        return int(_stat(process)[1])
    return None


def _stat(process: Path) -> list[str]:
    """Return the fields after the process name: the state, the parent's id and more; the name can contain anything."""
    return (process / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _descendants(pid: int) -> Iterator[int]:
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _state(pid: int) -> str:
    """Return the kernel's state letter: T is stopped, Z is a zombie, X is gone."""
    try:
        return _stat(Path(f"/proc/{pid}"))[0]
    except OSError:
        return "X"


def _shorten(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters are left out]\n{text[-half:]}"
