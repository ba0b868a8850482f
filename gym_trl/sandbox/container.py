"""Machines in containers of Docker or Podman, for tasks that need an image of their own."""

import io
import os
import secrets
import subprocess
import tarfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from shutil import which
from time import monotonic

from gym_trl.bases import Closing
from gym_trl.sandbox import SandboxLimits, _shorten
from gym_trl.sandbox.shell import (
    MOST_OF_A_FILE,
    MOST_OF_TESTS,
    Check,
    ContainerImage,
    Containers,
    Ran,
    Verified,
    ended_sentence,
)
from gym_trl.sandbox.shell_driver import follow

_ASK_S = 60.0
_GRACE_S = 10.0
_CLEAN = "rm -rf /tests /solution /logs && mkdir -p /tests /logs/verifier /logs/agent /logs/artifacts"


@cache
def container_problem(program: str) -> str | None:
    """Return the reason that containers cannot be made with a program, or ``None``."""
    if which(program) is None:
        return "it is not installed"
    try:
        ran = _ask([program, "info"])
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if ran.returncode == 0 else ran.stderr.decode(errors="replace").strip()[-200:]


def start_command(
    program: str, image: str, name: str, limits: SandboxLimits, *, settings: ContainerImage, cpus: float | None = None
) -> list[str]:
    """Return the command that starts a container in which nothing runs yet, without network.

    >>> command = start_command("docker", "debian", "box", SandboxLimits(), settings=ContainerImage("debian"))
    >>> command[:7]
    ['docker', 'run', '--detach', '--init', '--name', 'box', '--network']
    """
    return [
        *(program, "run", "--detach", "--init", "--name", name, "--network", "none"),
        *("--security-opt", "no-new-privileges", "--cap-drop", "NET_RAW"),
        *("--pids-limit", str(limits.processes)),
        # Without swap the whole container has this much memory.
        *("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m"),
        *("--ulimit", f"fsize={limits.file_mb * 2**20}", "--ulimit", "core=0"),
        *(("--cpus", f"{cpus:g}") if cpus else ()),
        *(word for pair in settings.variables for word in ("--env", "=".join(pair))),
        *(("--workdir", settings.working_folder) if settings.working_folder else ()),
        *("--entrypoint", "sh", image, "-c", "sleep infinity"),
    ]


def exec_command(
    program: str, name: str, command: str, seconds: float, variables: Mapping[str, str], *, root: bool = False
) -> list[str]:
    """Return the command that runs a shell command in a container, and ends it there after ``seconds``.

    >>> exec_command("podman", "box", "ls | wc", 5, {"A": "1"})
    ['podman', 'exec', '--env', 'A=1', 'box', 'timeout', '-s', 'KILL', '5', 'bash', '-c', 'ls | wc']
    """
    set_ = [word for pair in variables.items() for word in ("--env", "=".join(pair))]
    user = ["--user", "0"] if root else []
    return [program, "exec", *user, *set_, name, "timeout", "-s", "KILL", f"{seconds:g}", "bash", "-c", command]


class ContainerMachine(Closing):
    """Machine that is a container: commands run in it, and tests in the same one after a restart.

    The image needs ``bash`` and ``timeout``. A command has the rights of the image's user, but no network, no further
    privileges, and limits on memory, processes and the size of a file; the size of the whole disk is not limited.
    Background processes stay until the tests, before which the container restarts, so that only files are left.
    Unlike in the sandbox, a command may also change the programs that the tests call.

    Args:
        program: ``"docker"`` or ``"podman"``.
        image: Image to start from; it is built at the first use.
        limits: ``memory_mb``, ``processes``, ``file_mb`` and ``output_chars`` apply.
        cpus: Number of processors; default: all.

    Raises:
        OSError: The image cannot be built, or the container not started.
    """

    def __init__(
        self, program: str, image: ContainerImage, limits: SandboxLimits, *, cpus: float | None = None
    ) -> None:
        self._program, self._most = program, limits.output_chars
        self._name = f"gym-trl-{secrets.token_hex(8)}"
        made = image.name or _built(program, image)
        self._finalizer = weakref.finalize(self, _remove, program, self._name, os.getpid())
        try:
            self._do(start_command(program, made, self._name, limits, settings=image, cpus=cpus), image.build_seconds)
        except BaseException:
            self.close()
            raise

    def run(self, command: str, seconds: float) -> Ran:
        """Run a command in the working folder."""
        return self._run(command, seconds, {}, self._most)

    def verify(self, tests: Check) -> Verified:
        """Restart the container, so that no process is left, put the tests in place, and run them."""
        self._restart()
        cleaned = self._run(_CLEAN, _ASK_S, {}, self._most, root=True)
        if cleaned.code != 0:
            raise OSError(f"the folders of tests and logs cannot be made: {cleaned.output:.300}")
        self._do([self._program, "cp", "-", f"{self._name}:/"], _ASK_S, sent=tests.archive)
        ran = self._run(tests.command, tests.seconds, tests.variables, MOST_OF_TESTS)
        contents = {path: self._read(path) for path in tests.files}
        return Verified(ran.output, ran.code, {path: it for path, it in contents.items() if it is not None})

    def close(self) -> None:
        """Remove the container."""
        self._finalizer()

    def _restart(self) -> None:
        self._do([self._program, "restart", "-t", "0", self._name], _ASK_S)

    def _run(self, command: str, seconds: float, variables: Mapping[str, str], most: int, *, root: bool = False) -> Ran:
        arguments = exec_command(self._program, self._name, command, seconds, variables, root=root)
        start = monotonic()
        try:
            process = _piped(arguments)
        except (OSError, ValueError) as error:  # too long, or with NUL
            return Ran(f"bash: {error}\n", 126)
        output, code, ended = follow(process, seconds + _GRACE_S)
        if ended:  # only the client has ended
            self._restart()
        elif code == 137 and monotonic() - start >= seconds:  # by timeout -s KILL
            ended = "time"
        text = _shorten(output.decode("utf-8", "replace"), most)
        return Ran(ended_sentence(text, ended, seconds), None) if ended else Ran(text, code)

    def _read(self, path: str) -> bytes | None:
        """Return the beginning of a regular file, or ``None`` if there is none."""
        process = _piped([self._program, "cp", f"{self._name}:{path}", "-"], errors=subprocess.DEVNULL)
        assert process.stdout is not None
        # A header or two, the content and the end; what is longer is not read.
        with process, process.stdout as stream:
            content = stream.read(MOST_OF_A_FILE + 2**14)
            process.kill()
        with suppress(tarfile.TarError, EOFError), tarfile.open(fileobj=io.BytesIO(content)) as archive:
            member = archive.next()
            if member is not None and member.isreg() and (file := archive.extractfile(member)) is not None:
                return file.read(MOST_OF_A_FILE)
        return None

    def _do(self, arguments: Sequence[str], seconds: float, *, sent: bytes = b"") -> None:
        try:
            ran = _ask(arguments, seconds, sent)
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{' '.join(arguments[:2])} took more than {seconds:g} seconds") from error
        if ran.returncode:
            message = ran.stderr.decode(errors="replace").strip()[-300:]
            raise OSError(f"{' '.join(arguments[:2])} failed: {message}")


def _piped(arguments: Sequence[str], errors: int = subprocess.STDOUT) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(  # noqa: S603 -- our own command
        arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
    )


def _ask(arguments: Sequence[str], seconds: float = _ASK_S, sent: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(arguments, input=sent, capture_output=True, timeout=seconds, check=False)  # noqa: S603


@cache
def _built(program: str, image: ContainerImage) -> str:
    """Build an image, once per process, and return its id."""
    try:
        ran = _ask([program, "build", "--quiet", str(image.context)], image.build_seconds)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"building {image.context} took more than {image.build_seconds:g} seconds") from error
    if ran.returncode:
        message = ran.stderr.decode(errors="replace").strip()[-300:]
        raise OSError(f"{program} cannot build {image.context}: {message}")
    return ran.stdout.decode().strip().splitlines()[-1]


def _remove(program: str, name: str, owner: int) -> None:
    if owner == os.getpid():  # a fork of the owner has no part in it
        with suppress(OSError, subprocess.TimeoutExpired):
            _ask([program, "rm", "--force", "--volumes", name])


CONTAINERS = Containers(container_problem, ContainerMachine)
"""Containers of Docker or Podman, for the table of leaves."""
