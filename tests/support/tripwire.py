"""Commands under an audit hook that sees, and stops, whatever a file may not cause.

``PYTHONPATH=tests python -m support.tripwire COMMAND ARGUMENTS...`` runs a command of gym-trl in
this process, and exits with status 1 if it ran code of the working directory, started a program, contacted a host, or
wrote anywhere. ``Tripwire`` is the hook.
"""

import json
import os
import signal
import sys
import tempfile
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from support.free_port import free_port

CANARY = "SPRUNG_TRIPWIRE"
"""Name in all code and pickles of traps, by which they are recognised in any form."""
MODULES = ("trap_module", "this", "antigravity", "idlelib.idle")
"""Modules that files of traps name: one in the working directory, and installed ones that nothing else imports."""
_LOCAL = ("127.0.0.1", "::1", "localhost", None, "")
_STARTS = {
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn"),
    *("subprocess.Popen", "webbrowser.open", "cpython.run_command", "cpython.run_file"),
}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {  # the number of arguments that are paths, and the place of the first
    **dict.fromkeys(("os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.chmod", "os.chown", "os.utime"), (0, 1)),
    **dict.fromkeys(("shutil.rmtree", "os.setxattr", "os.removexattr", "os.chflags"), (0, 1)),
    **dict.fromkeys(("os.rename", "os.link", "shutil.move"), (0, 2)),
    **dict.fromkeys(("os.symlink", "shutil.copyfile"), (1, 1)),
}


class Sprung(BaseException):
    """Stop of what a file may not cause; no ``except Exception`` continues after it."""


class Tripwire:
    """Audit hook that records and stops what a file may not cause, within ``armed``.

    Python cannot remove a hook, so that one process makes one object.
    """

    def __init__(self) -> None:
        self.seen: list[str] = []
        """Actions that were stopped since the hook was last armed."""
        self._foreign: tuple[str, ...] = ()
        self._writable: tuple[str, ...] = ()
        self._starts: Callable[[str, tuple[Any, ...]], bool] = lambda event, arguments: False
        self._armed = False
        sys.addaudithook(self._watch)

    @contextmanager
    def armed(
        self,
        *,
        foreign: Collection[Path],
        writable: Collection[Path],
        starts: Callable[[str, tuple[Any, ...]], bool] = lambda event, arguments: False,
    ) -> Iterator[list[str]]:
        """Watch until the block ends.

        Args:
            foreign: Folders whose code may not run, and whose libraries may not be loaded.
            writable: Folders that may be changed.
            starts: Function that returns ``True`` for a program that may be started.
        """
        self.seen = []
        self._foreign, self._writable = (
            tuple(os.path.realpath(one) for one in folders) for folders in (foreign, writable)
        )
        self._starts = starts
        self._armed = True
        try:
            yield self.seen
        finally:
            self._armed = False

    def _watch(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self._armed:
            return
        self._armed = False  # what the hook itself does is not watched
        try:
            why = self._forbidden(event, arguments)
            if why is not None:
                self.seen.append(f"{event}: {why}"[:300])
        finally:
            self._armed = True
        if why is not None:
            raise Sprung(event)

    def _forbidden(self, event: str, arguments: tuple[Any, ...]) -> str | None:  # noqa: PLR0911 -- a table of events
        if event == "open":
            return self._opened(*arguments)
        if event in _CHANGES:
            start, count = _CHANGES[event]
            paths, folder = arguments[start : start + count], _folder_of(event, arguments)
            return self._outside(paths, folder, follows=event not in _OF_LINKS)
        if event in _STARTS:
            return None if self._starts(event, arguments) else repr(arguments)
        if event == "exec":
            [code] = arguments
            theirs = not code.co_filename.startswith("<") and self._within(code.co_filename, self._foreign)
            return code.co_filename if theirs or _canary_in(code) else None
        if event == "import":
            named = arguments[0] in MODULES or any(arguments[0].startswith(f"{one}.") for one in MODULES)
            at = arguments[1]
            return arguments[0] if named or (at and self._within(at, self._foreign)) else None
        if event == "pickle.find_class":
            module, name = arguments
            return f"{module}:{name}" if module.partition(".")[0] in (*_DANGEROUS, *MODULES) else None
        if event == "marshal.loads":
            return "code of a trap" if _holds_canary(bytes(arguments[0])) else None
        if event == "ctypes.dlopen":
            name = str(arguments[0] or "")  # without a slash it is looked up in the system's folders
            return name if "/" in name and self._within(name, self._foreign) else None
        if event in ("socket.connect", "socket.sendto"):
            host = arguments[1][0] if isinstance(arguments[1], tuple) else None
            return repr(arguments[1]) if host not in _LOCAL else None
        if event in ("socket.getaddrinfo", "socket.gethostbyname"):
            host = arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0]
            return repr(host) if host not in _LOCAL else None
        return None

    def _opened(self, path: Any, mode: Any, flags: int | None) -> str | None:
        if isinstance(path, int) or path is None:
            return None
        writes = bool((flags or 0) & _WRITES) if flags is not None else any(one in str(mode) for one in "wax+")
        return self._outside([path], None) if writes else None

    def _outside(self, paths: Sequence[Any], folder: str | None, *, follows: bool = True) -> str | None:
        for path in paths:
            if isinstance(path, int):
                continue
            whole = str(Path(folder or "", os.fsdecode(path)))
            if not follows:  # the last part may be a link, which is changed itself
                whole = str(Path(os.path.realpath(Path(whole).parent), Path(whole).name))
            within = self._within(whole, self._writable) if follows else _is_in(whole, self._writable)
            if not within and not os.path.realpath(whole).startswith("/dev/"):
                return repr(whole)
        return None

    @staticmethod
    def _within(path: Any, folders: Sequence[str]) -> bool:
        """Return whether a path leads into a folder, after its links."""
        if not isinstance(path, str | bytes | os.PathLike):
            return False
        return _is_in(os.path.realpath(os.fsdecode(path)), folders)


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(path == one or path.startswith(one + os.sep) for one in folders)


_DANGEROUS = ("os", "posix", "nt", "subprocess", "sys", "runpy", "code", "importlib", "shutil", "socket", "webbrowser")
_DESCRIPTORS = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2, "os.chmod": 2, "os.rename": 2, "os.symlink": 2}


_OF_LINKS = ("os.remove", "os.rename", "os.link", "os.symlink", "os.rmdir", "os.mkdir", "shutil.rmtree")
"""Events that change a link and not what it leads to."""


def _folder_of(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the folder of an event whose paths are relative to an open one."""
    place = _DESCRIPTORS.get(event)
    if place is None or place >= len(arguments) or not isinstance(arguments[place], int) or arguments[place] < 0:
        return None
    return os.path.realpath(f"/proc/self/fd/{arguments[place]}")


def _holds_canary(text: bytes | str) -> bool:
    return (CANARY.encode() if isinstance(text, bytes) else CANARY) in text  # type: ignore[operator]


def _canary_in(code: types.CodeType) -> bool:
    if CANARY in code.co_names or CANARY in code.co_varnames:
        return True
    return any(isinstance(one, types.CodeType) and _canary_in(one) for one in code.co_consts)


def run(command: Sequence[str], wire: Tripwire, **watched: Any) -> dict[str, Any]:
    """Run a command of gym-trl in this process, with an endless "y" as its input, and return what happened."""
    from typer.testing import CliRunner

    from gym_trl.cli.app import app

    modules, search = set(sys.modules), list(sys.path)
    status, crash, output, ended, shown = 0, None, "", Event(), list[bytes]()
    with wire.armed(**watched) as seen:
        try:
            if "--live" in command or command[0] == "serve":
                port = free_port()
                command = [*command, "--port", str(port)]
                Thread(target=_visit, args=(port, ended, shown), daemon=True).start()
            done = CliRunner().invoke(app, list(command), input="y\n" * 50)
            status, output = done.exit_code, done.output
            crash = None if isinstance(done.exception, SystemExit) else done.exception
        except Sprung:
            status = 1
        finally:
            ended.set()
    for name in set(sys.modules) - modules:
        if any(name == one or name.startswith(f"{one}.") for one in MODULES):
            del sys.modules[name]
    sys.path[:] = search
    told = None if crash is None else f"{type(crash).__name__}: {crash}"[:300]
    served = b"".join(shown).decode("utf-8", "replace")
    return {"seen": list(seen), "status": status, "crash": told, "output": output[-2000:], "served": served}


def _visit(port: int, ended: Event, shown: list[bytes]) -> None:
    """Load what a server shows, and interrupt the command that serves it."""
    for place in ("", "updates", "episodes?first=0&count=9", "episodes?first=0&count=9&tokens=1"):
        for _ in range(1_000):
            if ended.wait(0.02):
                return
            try:
                with urlopen(f"http://127.0.0.1:{port}/{place}", timeout=20) as answer:
                    shown.append(answer.read())
            except HTTPError as error:
                shown.append(error.read())
            except URLError:  # it does not listen yet
                continue
            except OSError as error:
                shown.append(repr(error).encode())
            break
    os.kill(os.getpid(), signal.SIGINT)


def run_cases(cases: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run commands one after another, each in its working directory, and return what happened in each.

    A case has ``command``, ``cwd``, and the folders ``foreign`` and ``writable``.
    """
    wire, found = Tripwire(), []
    for case in cases:
        os.chdir(case["cwd"])
        writable = [*map(Path, case["writable"]), Path(tempfile.gettempdir(), "tripwire"), *_own_caches()]
        foreign = [*map(Path, case["foreign"])]
        found.append(run(case["command"], wire, foreign=foreign, writable=writable, starts=_is_ours))
    return found


def _is_ours(event: str, arguments: tuple[Any, ...]) -> bool:
    """Return whether a program is one of those that commands start by themselves, whatever they read."""
    if event != "subprocess.Popen":
        return False
    command = list(arguments[1])
    asking = command[1:] == ["info"] and command[0] in ("docker", "podman")  # for tasks that the user has named
    worker = command[:3] == [sys.executable, "-P", "-c"] and "gym_trl.executors.worker" in command[3]
    # Matplotlib asks for fonts, and packages whose import looks for a compiled library ask where it is.
    return asking or worker or command[0] == "fc-list" or command == ["/sbin/ldconfig", "-p"]


def _own_caches() -> list[Path]:
    """Return the folders in which libraries keep files of their own."""
    names = ("MPLCONFIGDIR", "HF_HOME", "XDG_CACHE_HOME", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR")
    caches = [Path(os.environ[name]) for name in names if name in os.environ]
    return [*caches, *(Path(sys.prefix, "lib"),)]  # __pycache__


def main() -> None:
    """Run the cases that standard input has as JSON, or the command of the arguments."""
    if sys.argv[1:] == ["--cases"]:
        cases = json.loads(sys.stdin.read())
        found = run_cases(cases)
        sys.stdout.write(f"\n{json.dumps(found)}\n")
        sys.stdout.flush()
        os._exit(0)  # without the ends of threads and libraries that were stopped in the middle
    done = run(sys.argv[1:], Tripwire(), foreign=[Path.cwd()], writable=_own_caches())
    sys.stderr.write(done["output"] + "".join(f"tripwire: {one}\n" for one in done["seen"]))
    sys.exit(1 if done["seen"] else done["status"])


if __name__ == "__main__":
    main()
