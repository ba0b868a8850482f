"""Sandbox for untrusted programs: bubblewrap, limits and a filter of system calls; refused where they do not work."""

import json
import os
import platform
import secrets
import selectors
import socket
import subprocess
import sys
import sysconfig
import weakref
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import which
from time import monotonic
from typing import Any, Literal, NamedTuple, TypeAlias

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.sandbox.system_calls import seccomp_filter

__all__ = ["Result", "Sandbox", "SandboxLimits", "Status", "bubblewrap_problem"]

Status: TypeAlias = Literal["ok", "error", "timeout", "flood", "died"]
"""Outcome of a program: completed, raised an exception, exceeded its time, wrote too much output, or its process ended.

After ``"timeout"``, ``"flood"`` and ``"died"`` the process is gone.
"""

_START_S = 20.0
_STOP_S = 5.0
_FLOOD = 2**20
"""Bytes of output or of a reply at which a program is ended."""
_ENDED = {
    "timeout": "[It was ended after {seconds:g} seconds. All variables are lost.]\n",
    "flood": "[It was ended because it wrote more than a mebibyte. All variables are lost.]\n",
    "died": "[Its process ended, at a limit or by itself. All variables are lost.]\n",
}
_TMP = "/tmp"  # noqa: S108 -- the sandbox's own
_ENVIRONMENT = {"HOME": _TMP, "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "PYTHONIOENCODING": "utf-8:backslashreplace"}
_DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")
_LIBRARIES = (
    "import bz2, ctypes, decimal, hashlib, lzma, socket, sqlite3, ssl, uuid, zlib\n"
    "print(open('/proc/self/maps').read())"
)
_LIKELIEST_VICTIM = 'echo 1000 > /proc/self/oom_score_adj; exec "$@"'
"""If memory runs out, the kernel should end a sandbox before the training."""


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

    A program has no network, no files except the interpreter with its standard library (read-only) and its own empty
    temporary directory, no environment variables and no other processes. If it exceeds a limit or the deadline, its
    processes are ended, and the next program starts in a new one without variables. Between programs all that is left
    running is stopped. Everything ends with the process that made the sandbox, also if that is killed.

    Results come from an untrusted process: evaluate them in the parent process, never inside the sandbox.

    Args:
        limits: Resource limits of the programs.

    Raises:
        ConfigError: bubblewrap does not work on this machine.
        OSError: The process cannot be started.
    """

    def __init__(self, limits: SandboxLimits | None = None) -> None:
        if (problem := bubblewrap_problem()) is not None:
            raise ConfigError(
                f"programs of a model run in bubblewrap, and {problem}. Install it with 'apt-get install bubblewrap' "
                "(or dnf, apk, pacman), and let a container make user namespaces; elsewhere, E2BExecuter runs programs"
            )
        self.limits = limits or SandboxLimits()
        self._process: _Process | None = None

    @property
    def alive(self) -> bool:
        """True if the process is running, with the variables of the programs so far."""
        return self._process is not None and self._process.owner == os.getpid()

    def run(self, code: str) -> Result:
        """Run a program in the process, which is started if necessary."""
        return self._ask({"code": code})

    def call(self, function: str, *arguments: Any) -> Result:
        """Call a function that an earlier program has defined, with JSON-serializable arguments.

        >>> with Sandbox() as sandbox:
        ...     _ = sandbox.run("def double(n): return 2 * n")
        ...     sandbox.call("double", 21)
        Result(status='ok', output='', value=42)
        """
        return self._ask({"function": function, "arguments": list(arguments)})

    def close(self) -> None:
        """End the process and everything that it started; the next program starts a new one."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _ask(self, request: dict[str, Any]) -> Result:
        if not self.alive:
            self._process = _Process(self.limits)
        assert self._process is not None
        status, answer, output = self._process.ask(request, self.limits.seconds)
        half = self.limits.output_chars // 2
        if len(output) > self.limits.output_chars:
            output = f"{output[:half]}\n[{len(output) - 2 * half} characters are left out]\n{output[-half:]}"
        if status == "ok":
            return Result("ok" if answer.get("status") == "ok" else "error", output, answer.get("value"))
        self.close()
        line_end = "\n" if output and not output.endswith("\n") else ""
        return Result(status, output + line_end + _ENDED[status].format(seconds=self.limits.seconds))


@cache
def bubblewrap_problem() -> str | None:
    """Return the reason that programs cannot run in bubblewrap here, or ``None``."""
    if which("bwrap") is None:
        return "it is not installed"
    try:
        _Process(SandboxLimits()).end()
    except KeyError as error:
        return f"there is no filter of system calls for {error}"
    except OSError as error:
        return f"it does not work here: {error}"
    return None


class _Process:
    """Running driver: two pipes to its first process, and a channel to its interpreter."""

    def __init__(self, limits: SandboxLimits) -> None:
        self.owner = os.getpid()
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(  # noqa: S603 -- our own command
                _command(limits, theirs.fileno()),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        assert self._popen.stdout is not None
        self._output = self._popen.stdout.fileno()
        os.set_blocking(self._output, False)
        self.end = weakref.finalize(self, _end, self._popen, self._channel, self.owner)
        status, _, output = self.ask({}, _START_S)
        if status != "ok":
            self.end()
            raise OSError(f"the sandbox did not start ({status}): {output[-300:].strip()}")

    def ask(self, request: dict[str, Any], seconds: float) -> tuple[Status, dict[str, Any], str]:
        """Return what became of a request, its answer, and the output until then; afterwards all processes stop.

        The answer is a line with the request's token; others, which a program may write, are dropped.
        """
        token, deadline = secrets.token_hex(8), monotonic() + seconds
        status: Status | None = None
        answer: dict[str, Any] = {}
        output, heard = bytearray(), b""
        _say(self._popen, b"g")
        try:
            self._channel.settimeout(seconds)
            self._channel.sendall(json.dumps({**request, "token": token}).encode() + b"\n")
        except OSError as error:
            status = "timeout" if isinstance(error, TimeoutError) else "died"
        with selectors.DefaultSelector() as selector:
            for descriptor in (self._output, self._channel.fileno()):
                selector.register(descriptor, selectors.EVENT_READ)
            while status is None:
                for key, _ in selector.select(max(0.0, deadline - monotonic())):
                    chunk = _read(key.fd)
                    if key.fd == self._output:
                        output += chunk or b""
                        if chunk == b"":  # closed by the program; a reply may still arrive
                            selector.unregister(self._output)
                    elif chunk == b"":
                        status = "died"
                    else:
                        *lines, heard = (heard + (chunk or b"")).split(b"\n")
                        for line in lines:
                            with suppress(ValueError, RecursionError, AttributeError):
                                if (said := json.loads(line)).get("token") == token:
                                    status, answer = "ok", said
                if status is None and max(len(output), len(heard)) > _FLOOD:
                    status = "flood"
                elif status is None and monotonic() >= deadline:
                    status = "timeout"
        while len(output) <= _FLOOD and (chunk := _read(self._output)):  # what was written before the reply
            output += chunk
        _say(self._popen, b"s")
        return ("flood" if len(output) > _FLOOD else status), answer, output.decode("utf-8", "replace")


def _read(descriptor: int) -> bytes | None:
    """Return the available bytes: ``None`` if there are none, empty at the end of the stream."""
    try:
        return os.read(descriptor, 2**16)
    except BlockingIOError:
        return None
    except ConnectionResetError:
        return b""


def _say(popen: "subprocess.Popen[bytes]", word: bytes) -> None:
    """Tell the first process that the others may go or must stop, or that it is over."""
    assert popen.stdin is not None
    with suppress(OSError):
        popen.stdin.write(word)


def _end(popen: "subprocess.Popen[bytes]", channel: socket.socket, owner: int) -> None:
    """End the first process, and so all of them; a fork of the owner has inherited the pipes, not the process."""
    assert popen.stdin is not None
    assert popen.stdout is not None
    if owner == os.getpid():
        _say(popen, b"e")
    else:
        popen.returncode = 0
    for end in (channel, popen.stdin, popen.stdout):
        end.close()
    try:
        popen.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()


def _command(limits: SandboxLimits, channel: int) -> list[str]:
    """Return the command line of a sandbox: all namespaces, an empty root, the interpreter, and a folder."""
    root = os.geteuid() == 0
    file_bytes = limits.file_mb * 2**20
    settings = {
        "channel": channel,
        "file_bytes": file_bytes,
        "filter": seccomp_filter(platform.machine()).hex(),
        # The number of processes is counted for each user, and not for the superuser.
        "uid": 1_000_000_000 + secrets.randbelow(2**29) if root else None,
        "limits": {
            "AS": limits.memory_mb * 2**20,
            "CPU": limits.cpu_seconds,
            "NPROC": limits.processes,
            "FSIZE": file_bytes,
            "NOFILE": 64,
            "CORE": 1,  # with 0, a program that is told of crashes by the kernel still gets what crashed
            "MEMLOCK": 0,
            "MSGQUEUE": 0,
            "SIGPENDING": 256,
        },
    }
    # Rights of the driver's first process, until it has started the interpreter, which has none.
    rights = ["SYS_ADMIN", "KILL", *(["SETUID", "SETGID"] if root else [])]
    source = Path(__file__).with_name("driver.py").read_text(encoding="utf-8")
    return [
        *("/bin/sh", "-c", _LIKELIEST_VICTIM, "sh", which("bwrap") or "bwrap", "--hostname", "sandbox"),
        *("--unshare-ipc", "--unshare-pid", "--as-pid-1", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"),
        *([] if root else ["--unshare-user"]),
        *("--cap-drop", "ALL", *(word for right in rights for word in ("--cap-add", f"CAP_{right}"))),
        *(*_mounts(), "--tmpfs", _TMP, "--remount-ro", "/", "--chdir", _TMP, "--"),
        *(_python(), "-S", "-P", "-B", "-u", "-c", source, json.dumps(settings)),
    ]


@cache
def _mounts() -> tuple[str, ...]:
    """Return bubblewrap's arguments for the interpreter, its standard library, shared libraries and devices."""
    python, stdlib = _python(), Path(sysconfig.get_path("stdlib"))
    ran = subprocess.run(  # noqa: S603 -- our own command
        [python, "-I", "-S", "-c", _LIBRARIES], capture_output=True, text=True, timeout=_START_S, check=False
    )
    mapped = {Path(line.split(maxsplit=5)[-1]) for line in ran.stdout.splitlines() if ".so" in line}
    paths = {Path(python), stdlib}
    for file in (file for file in mapped if not file.is_relative_to(stdlib)):
        if sys.base_prefix in ("/", "/usr") or not file.is_relative_to(sys.base_prefix):
            paths.add(file.parent)
        else:  # this folder contains more than libraries
            paths |= {path for path in file.parent.iterdir() if os.path.realpath(path) == str(file)}
    loaders = {path for path in map(Path, ("/lib", "/lib64", "/usr/lib64")) if path.exists()}
    links = {path for path in loaders if path.is_symlink()}
    # Folders that bubblewrap makes by itself cannot be entered by the interpreter's user.
    folders = {parent for path in (*paths, *loaders, *map(Path, _DEVICES)) for parent in path.parents} - links
    binds = [word for path in sorted(folders) if path != Path("/") for word in ("--dir", str(path))]
    binds += [word for path in sorted(paths | loaders - links) for word in ("--ro-bind", str(path), str(path))]
    binds += [word for path in sorted(links) for word in ("--symlink", str(path.readlink()), str(path))]
    for packages in (stdlib / "site-packages", stdlib / "dist-packages"):
        if packages.is_dir():
            binds += ["--tmpfs", str(packages), "--remount-ro", str(packages)]
    return (*binds, *(word for path in _DEVICES for word in ("--dev-bind", path, path)))


def _python() -> str:
    """Return the path of the real interpreter, behind virtual environments and their copies."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))
