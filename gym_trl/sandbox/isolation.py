"""Isolation of a sandbox's process: with bubblewrap, or on request with limits, a filter and Landlock."""

import json
import os
import secrets
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from shutil import which
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from gym_trl.errors import ConfigError
from gym_trl.sandbox.driver import DEVICES, landlock_abi
from gym_trl.sandbox.system_calls import seccomp_filter

Isolation: TypeAlias = Literal["bubblewrap", "limits"]

# Paths of the dynamic loader, and the folders to which distributions link them.
_LIBRARY_FOLDERS = ("/lib", "/lib64", "/usr/lib64")
_LIBRARIES = (
    "import bz2, ctypes, decimal, hashlib, lzma, socket, sqlite3, ssl, uuid, zlib\n"
    "print(open('/proc/self/maps').read())"
)
_PROBE_S = 20.0
_FIRST_UID = 1_000_000_000
"""First of 2**29 unused user ids; a sandbox started by root gets a random one of them."""
_MOST_FILES = 4096


class Command(NamedTuple):
    """Command line of a sandbox's process."""

    arguments: list[str]
    folder: str | None
    """Temporary folder to remove afterwards."""


def check_isolation(isolation: Isolation) -> None:
    """Check that an isolation works on this machine.

    >>> check_isolation("magic")
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: isolation must be 'bubblewrap' or 'limits', got 'magic'

    Raises:
        ConfigError: The ``isolation`` is unknown or does not work on this machine.

    Warns:
        UserWarning: ``"limits"`` on a kernel without Landlock: files are not protected.
    """
    if isolation not in get_args(Isolation):
        raise ConfigError(f"isolation must be 'bubblewrap' or 'limits', got {isolation!r}")
    if isolation == "limits":
        if not landlock_abi():
            warnings.warn(
                "isolation='limits' does not protect files here, because the kernel has no Landlock (Linux 5.13 or "
                "newer): programs can read, and write, every file that this user can",
                stacklevel=3,
            )
    elif (problem := bubblewrap_problem()) is not None:
        raise ConfigError(
            f"programs of a model run in bubblewrap, and {problem}. Install it with 'apt-get install bubblewrap' (or "
            "dnf, apk, pacman), and let a container make user namespaces. isolation='limits' "
            "(--env-kwargs isolation=limits) runs programs without it: with limits and a filter of system calls, "
            "and without your files where the kernel has Landlock"
        )


@cache
def bubblewrap_problem() -> str | None:
    """Return the reason that bubblewrap cannot be used, or ``None``."""
    if sys.platform != "linux":
        return f"there is none on {sys.platform}"
    if which("bwrap") is None:
        return "it is not installed"
    settings = {"limits": {}, "file_bytes": 2**20}
    reader, writer = os.pipe()
    try:
        tried = subprocess.run(  # noqa: S603 -- our own command
            command("bubblewrap", settings, replies=writer).arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            pass_fds=[writer],
            env=environment(),
            timeout=_PROBE_S,
            check=False,
        )
        os.set_blocking(reader, False)
        message = os.read(reader, 2**16)
    except BlockingIOError:
        message = b""
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start: {error}"
    finally:
        os.close(reader)
        os.close(writer)
    if not message:
        return f"it does not work: {tried.stderr.decode(errors='replace').strip()[-300:]}"
    refused = json.loads(message)["refused"]
    return f"what it leaves open cannot be closed: {refused}" if refused else None


def environment(home: str | None = None) -> dict[str, str]:
    """Return all environment variables of a program."""
    return {
        "HOME": home or "/tmp",  # noqa: S108 -- the sandbox's own
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONIOENCODING": "utf-8:backslashreplace",
    }


def command(isolation: Isolation, settings: dict[str, Any], *, replies: int) -> Command:
    """Return the command line of a sandbox; ``replies`` is the descriptor of its replies."""
    root = os.geteuid() == 0
    isolated = isolation == "bubblewrap"
    options = {
        **settings,
        "isolated": isolated,
        "replies": replies,
        "files": _MOST_FILES,
        "uid": _FIRST_UID + secrets.randbelow(2**29) if root and (isolated or _readable_by_all()) else None,
    }
    if not isolated:
        options["landlock"] = landlock_abi()
        options["readable"], options["listable"] = _readable()
    with suppress(KeyError):  # the driver answers that it has no filter
        made = seccomp_filter(os.uname().machine, alone=not isolated)
        options["filter"], options["own_process"] = made.code.hex(), made.own_process
    python = [_python(), "-s", "-S", "-P", "-B", "-u", "-c", _source(), json.dumps(options)]
    if isolated:
        return Command([*_bubblewrap(root, settings["file_bytes"]), *python], None)
    folder = tempfile.mkdtemp(prefix="gym-trl-sandbox-")
    if options["uid"] is not None:
        os.chown(folder, options["uid"], options["uid"])
    return Command(python, folder)


def _bubblewrap(root: bool, file_bytes: int) -> list[str]:
    """Return bubblewrap's arguments: all namespaces, an empty root, the interpreter, and a temporary folder."""
    # The driver needs these capabilities until it drops them, which it does before it reads the first program.
    rights = ["--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"]
    if root:  # the limit on processes counts per user, so the driver changes to its own
        rights += ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    else:
        rights += ["--unshare-user"]
    apart = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    return [
        *(which("bwrap") or "bwrap", *apart, *rights, "--hostname", "sandbox", "--new-session", "--die-with-parent"),
        *chain.from_iterable(_mounts(_interpreter(), str(file_bytes))),
        *("--remount-ro", "/", "--chdir", "/tmp", "--"),  # noqa: S108
    ]


def _mounts(read: Sequence[str], file_bytes: str) -> Iterator[Sequence[str]]:
    """Yield bubblewrap's arguments for each path."""
    links = {path: str(Path(path).readlink()) for path in read if Path(path).is_symlink()}
    # Folders that bubblewrap creates implicitly would not be accessible to the driver's user.
    parents = {str(parent) for path in (*read, *DEVICES) for parent in Path(path).parents}
    for path in sorted(parents - {"/"} - links.keys()):
        yield "--perms", "0755", "--dir", path
    for path in read:
        yield ("--symlink", links[path], path) if path in links else ("--ro-bind", path, path)
    for path in _hidden():
        yield "--size", "4096", "--tmpfs", path, "--remount-ro", path
    for path in DEVICES:
        yield "--dev-bind", path, path
    yield "--perms", "1777", "--size", file_bytes, "--tmpfs", "/tmp"  # noqa: S108 -- the sandbox's own


def _python() -> str:
    """Return the path of the real interpreter, behind virtual environments and their copies."""
    return os.path.realpath(getattr(sys, "_base_executable", sys.executable))


@cache
def _source() -> str:
    return Path(__file__).with_name("driver.py").read_text(encoding="utf-8")


@cache
def _interpreter() -> tuple[str, ...]:
    """Return the paths of the interpreter, its standard library and the folders of their shared libraries."""
    python = _python()
    own = [python, sysconfig.get_path("stdlib")]
    ran = subprocess.run(  # noqa: S603 -- our own command
        [python, "-I", "-S", "-c", _LIBRARIES], capture_output=True, text=True, timeout=_PROBE_S, check=False
    )
    mapped = {line.split(maxsplit=5)[-1] for line in ran.stdout.splitlines() if line.endswith(".so") or ".so." in line}
    private = sys.base_prefix if sys.base_prefix not in ("/", "/usr") else None
    folders = {path for path in _LIBRARY_FOLDERS if Path(path).exists()}
    for file in sorted(mapped):
        if private is None or not file.startswith(f"{private}/"):
            folders.add(str(Path(file).parent))
        elif not file.startswith(own[1]):  # this folder contains more than libraries
            own += [str(path) for path in Path(file).parent.iterdir() if os.path.realpath(path) == file]
    folders = {path for path in folders if not path.startswith(own[1])}
    # Leave out folders inside other ones.
    whole = [path for path in folders if not any(path != other and path.startswith(f"{other}/") for other in folders)]
    return (*own, *sorted(whole))


@cache
def _readable() -> tuple[list[str], list[str]]:
    """Return the paths that Landlock lets a program read, and the folders of which it may only list the names."""
    folder = sysconfig.get_path("stdlib")
    # A rule covers everything below its folder, and installed packages are in the standard library's folder.
    own = [str(path) for path in Path(folder).iterdir() if str(path) not in _hidden()]
    others = [path for path in _interpreter() if path != folder and not Path(path).is_symlink()]
    return [*own, *others], [folder]


@cache
def _hidden() -> tuple[str, ...]:
    """Return the folders of installed packages inside the standard library's folder."""
    folder = Path(sysconfig.get_path("stdlib"))
    return tuple(str(folder / name) for name in ("site-packages", "dist-packages") if (folder / name).is_dir())


@cache
def _readable_by_all() -> bool:
    """Return True if an unrelated user can import the standard library."""
    folder = Path(sysconfig.get_path("stdlib"))
    return all(path.stat().st_mode & 0o005 == 0o005 for path in (folder, *folder.parents))
