"""Shell commands in a sandbox with files of its own, and the machines that tasks run on."""

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, Protocol

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.sandbox import Sandbox, SandboxLimits, _shorten
from gym_trl.sandbox.isolation import PROGRAMS, bubblewrap_problem, with_programs
from gym_trl.sandbox.shell_driver import MOST, PIECE

_HOME = "/home/gym-trl"
_TESTS, _LOGS, _SOLUTION = "/tests", "/logs", "/solution"
_OWN = (_HOME, _TESTS, _LOGS, _SOLUTION)
_GRACE_S = 5.0
_FILES_S = 60.0
_TAKE_S = 300.0
"""Most seconds for all pieces of an archive."""
MOST_OF_TESTS = 2**17
"""Characters that are kept of what tests print."""
MOST_OF_A_FILE = 2**16
"""Bytes that are read of a file with a reward."""
_HEADERS_MB = 16
"""Most MiB of an archive besides the files' contents; files with holes are larger in it than on the disk."""
_VARIABLES = {
    "PATH": f"{PROGRAMS}:/usr/local/bin:/usr/bin:/bin",
    "HOME": _HOME,
    "LANG": "C.UTF-8",
    # The folders belong to another user than the one that commands run as, which git would refuse.
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
}
_RESERVED = ("/dev", "/etc", "/proc", "/sys", "/tmp", *_OWN, PROGRAMS)  # noqa: S108


class Ran(NamedTuple):
    """Result of a command."""

    output: str
    """Standard output and standard error, cut in the middle."""
    code: int | None
    """Exit code; ``None`` if the command was ended at a limit."""
    lost: bool = False
    """True if the machine ended with the command, and all files are lost."""


class Verified(NamedTuple):
    """Result of tests."""

    output: str
    code: int | None
    files: Mapping[str, bytes]
    """Contents of the files that the tests were to write, by path, for those that exist, each cut at 64 KiB."""


@dataclass(frozen=True, slots=True)
class Place:
    """Initial state of a machine."""

    archive: bytes
    """Files, as a tar archive with paths from the root."""
    folders: tuple[str, ...] = ("/app",)
    """Folders that commands may write to, and that tests see."""
    working_folder: str = "/app"
    variables: Mapping[str, str] = field(default_factory=dict)


class Check(NamedTuple):
    """Command that judges the state of a machine."""

    archive: bytes
    """Files of ``/tests``, as a tar archive with paths from the root."""
    command: str
    seconds: float
    variables: Mapping[str, str]
    files: Sequence[str]
    """Paths of the files to return, each cut at 64 KiB."""


class Machine(Protocol):
    """Files and processes that commands work with, and tests judge."""

    def run(self, command: str, seconds: float) -> Ran:
        """Run a command in the working folder."""
        ...

    def verify(self, tests: Check) -> Verified:
        """End all processes, put the tests in place, and run them on the files as they are."""
        ...

    def close(self) -> None:
        """End all processes and remove all files."""
        ...


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """Image that a container starts from."""

    name: str | None = None
    """Name of an image that exists or can be pulled; ``None`` for one that is built."""
    context: Path | None = None
    """Folder of its Dockerfile."""
    working_folder: str | None = None
    """Working folder, if it is not the image's own."""
    variables: tuple[tuple[str, str], ...] = ()
    build_seconds: float = 600.0


class Containers(NamedTuple):
    """Maker of machines that are containers."""

    problem: Callable[[str], str | None]
    """Function that returns the reason that a program cannot make containers here, or ``None``."""
    machine: Callable[..., Machine]
    """Function ``(program, image, limits, cpus=None)`` that starts a container."""


def shell_problem() -> str | None:
    """Return the reason that commands cannot run in the sandbox on this machine, or ``None``."""
    if (problem := bubblewrap_problem()) is not None:
        return f"bubblewrap is needed, and {problem}"
    return None if Path("/bin/bash").exists() else "there is no /bin/bash"


def check_folder(folder: str) -> str | None:
    """Return the reason that a folder cannot be written to in the sandbox, or ``None``.

    >>> check_folder("/app"), check_folder("/usr/lib/x")
    (None, '/usr/lib/x is in /usr/lib, which is part of the system')
    """
    path = Path(folder)
    if not path.is_absolute() or folder == "/" or ".." in path.parts:
        return f"{folder} cannot be a folder of its own"
    for taken in (*_RESERVED, *with_programs()):
        if path == Path(taken) or Path(taken) in path.parents:
            return f"{folder} is in {taken}, which is part of the system"
        if path in Path(taken).parents:
            return f"{folder} contains {taken}, which is part of the system"
    return None


class SandboxMachine(Closing):
    r"""Machine whose commands run in a sandbox, and its tests in another one, with the same files.

    >>> import io, tarfile
    >>> nothing = io.BytesIO()
    >>> tarfile.open(fileobj=nothing, mode="w").close()
    >>> reward = "/logs/verifier/reward.txt"
    >>> tests = Check(nothing.getvalue(), f"cp number {reward}", 5, {}, [reward])
    >>> with SandboxMachine(Place(nothing.getvalue()), SandboxLimits(processes=64)) as machine:
    ...     machine.run("echo 6 > number; ls", seconds=5)
    ...     machine.verify(tests).files
    Ran(output='number\n', code=0, lost=False)
    {'/logs/verifier/reward.txt': b'6\n'}

    Tests see the folders of the ``Place`` as the commands left them. Everything else is new: home, ``/tmp``, and all
    processes. A command that ends the machine itself loses all changes.

    Args:
        place: Initial state.
        limits: Resource limits; ``seconds`` and ``cpu_seconds`` do not apply to single commands.

    Raises:
        ConfigError: Commands cannot run in a sandbox here.
        OSError: At a command or the tests: the sandbox cannot be started, or the files do not fit.
    """

    def __init__(self, place: Place, limits: SandboxLimits) -> None:
        if (problem := shell_problem()) is not None:
            raise ConfigError(f"commands of a model run in the sandbox, and that does not work here: {problem}")
        self._place, self._limits = place, limits
        self._shell: _Shell | None = None  # starts with the first command

    def run(self, command: str, seconds: float) -> Ran:
        """Run a command in the working folder; if it ends the machine, the next one has the initial files."""
        if self._shell is None:
            shell = _Shell(self._limits, self._place.folders)
            try:
                shell.put(self._place.archive)
            except BaseException:
                shell.close()
                raise
            self._shell = shell
        ran = self._shell.run(command, self._place.working_folder, self._place.variables, seconds)
        if ran.lost:
            self.close()
        return ran

    def verify(self, tests: Check) -> Verified:
        """Copy the folders into a new sandbox, add the tests, run them, and close both."""
        archive = self._place.archive if self._shell is None else self._shell.take(self._place.folders)
        self.close()
        shell = _Shell(self._limits, self._place.folders)
        try:
            shell.put(self._place.archive if archive is None else archive)
            shell.empty([*_OWN, "/tmp"])  # noqa: S108 -- links in the archive may have led there
            shell.put(tests.archive)
            made = shell.run("mkdir -p /logs/verifier /logs/agent /logs/artifacts", "/", {}, _FILES_S)
            if made.code != 0:
                raise OSError(f"the folders of the logs cannot be made: {made.output}")
            variables = {**self._place.variables, **tests.variables}
            ran = shell.run(tests.command, self._place.working_folder, variables, tests.seconds, most=MOST_OF_TESTS)
            contents = {} if ran.lost else {path: shell.read(path) for path in tests.files}
            return Verified(ran.output, ran.code, {path: it for path, it in contents.items() if it is not None})
        finally:
            shell.close()

    def close(self) -> None:
        """End the sandbox."""
        if self._shell is not None:
            self._shell.close()
        self._shell = None


class _Shell:
    """Sandbox that runs commands; its replies are data of the model after the first one."""

    def __init__(self, limits: SandboxLimits, folders: Sequence[str]) -> None:
        self._most = limits.output_chars
        self._sandbox = Sandbox(limits, folders=[*_OWN, *folders])
        self._most_bytes = (len(folders) * limits.file_mb + _HEADERS_MB) * 2**20
        loaded = self._sandbox.run(_source(), seconds=_FILES_S)
        if loaded.status != "ok":
            self.close()
            raise OSError(f"the sandbox did not take its functions: {loaded.output:.300}")

    def close(self) -> None:
        self._sandbox.close()

    def put(self, archive: bytes) -> None:
        """Extract an archive.

        Raises:
            OSError: It does not fit.
        """
        for start in range(0, len(archive), PIECE):
            self._call("receive", base64.b64encode(archive[start : start + PIECE]).decode())
        self._call("unpack")

    def empty(self, folders: list[str]) -> None:
        self._call("empty", folders)

    def run(
        self, command: str, folder: str, variables: Mapping[str, str], seconds: float, *, most: int | None = None
    ) -> Ran:
        environment = _VARIABLES | dict(variables)
        result = self._sandbox.call("shell", command, folder, environment, seconds, seconds=seconds + _GRACE_S)
        fields: Any = result.value if isinstance(result.value, dict) else {}
        output, code, ended = fields.get("output"), fields.get("code"), fields.get("ended")
        if result.status != "ok" or not isinstance(output, str) or not isinstance(code, int | None):
            self.close()
            return Ran("[It ended the machine. All files are as they were at the start.]\n", None, lost=True)
        output = _shorten(output, most or self._most)
        if ended:
            return Ran(ended_sentence(output, str(ended), seconds), None)
        return Ran(output, code)

    def take(self, folders: Sequence[str]) -> bytes | None:
        """Return an archive of folders, or ``None`` if what runs there does not give one."""
        archive, deadline = bytearray(), monotonic() + _TAKE_S
        try:
            self._call("pack", list(folders))
            while piece := base64.b64decode(str(self._call("give")), validate=True):
                archive += piece
                if len(archive) > self._most_bytes or monotonic() > deadline:
                    return None
        except (OSError, ValueError):  # not base64
            return None
        return bytes(archive)

    def read(self, path: str) -> bytes | None:
        """Return the beginning of a regular file, or ``None`` if there is none."""
        try:
            content = self._call("read", path, MOST_OF_A_FILE)
            return base64.b64decode(content, validate=True) if isinstance(content, str) else None
        except (OSError, ValueError):  # not base64
            return None

    def _call(self, function: str, *arguments: Any) -> Any:
        if not self._sandbox.alive:
            raise OSError("the sandbox has ended")
        result = self._sandbox.call(function, *arguments, seconds=_FILES_S)
        if result.status != "ok":
            self.close()
            raise OSError(f"the sandbox cannot {function} files: {result.output[-300:]}")
        return result.value


def ended_sentence(output: str, ended: str, seconds: float) -> str:
    """Return the output of a command that was ended, with a sentence that says at which limit."""
    why = f"after {seconds:.3g} seconds" if ended == "time" else f"because it wrote more than {MOST // 2**20} MiB"
    line_end = "\n" if output and not output.endswith("\n") else ""
    return f"{output}{line_end}[It was ended {why}.]\n"


@cache
def _source() -> str:
    return Path(__file__).with_name("shell_driver.py").read_text(encoding="utf-8")
