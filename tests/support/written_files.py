"""Names that a program writes in a folder, and what a stranger may have put there."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_watched: dict[Path, set[str]] = {}


class Hung(BaseException):
    """It did not end: no error of the program itself."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupt what takes longer; the timer of pytest-timeout goes on afterwards."""

    def interrupt(*_: Any) -> None:
        raise Hung

    handler, began = signal.signal(signal.SIGALRM, interrupt), time.monotonic()
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(0.1, left - time.monotonic() + began) if left else 0)
        signal.signal(signal.SIGALRM, handler)


def _note(event: str, args: tuple[Any, ...]) -> None:
    if not _watched or event not in ("open", "os.mkdir", "os.rename"):
        return
    if event == "open" and not (isinstance(args[2], int) and args[2] & _CHANGES):
        return
    for path in args[:2] if event == "os.rename" else args[:1]:
        if isinstance(path, str | os.PathLike):
            for folder, names in _watched.items():
                given = Path.cwd() / path
                if folder in given.parents:
                    names.add(str(given.relative_to(folder)))


_hooked = False


def written_names(run: Callable[[Path], object], prepare: Callable[[Path], None], scratch: Path) -> list[str]:
    """Return the names in a folder that a run writes, also for a moment only, if they are the same in each run."""
    global _hooked  # noqa: PLW0603 -- a hook cannot be removed
    if not _hooked:
        sys.addaudithook(_note)
        _hooked = True
    found = []
    for number in range(2):
        folder = scratch / f"observed-{number}"
        folder.mkdir(parents=True)
        prepare(folder)
        names: set[str] = set()
        _watched[folder] = names
        try:
            run(folder)
        finally:
            del _watched[folder]
        # Extensions in other languages open files unheard.
        found.append(names | {str(path.relative_to(folder)) for path in folder.rglob("*")})
    return sorted(found[0] & found[1])


def _file(path: Path, before: Path | None) -> None:
    """Make a file with the content that the name had."""
    if before is not None and before.is_file():
        shutil.copyfile(before, path)
    else:
        path.write_text("{}\n")


def _folder(path: Path, before: Path | None) -> None:
    if before is not None and before.is_dir():
        shutil.copytree(before, path)
    else:
        path.mkdir()
        (path / "kept").write_text("precious\n")


def _link_to_file(name: Path, outside: Path, before: Path | None) -> None:
    _file(outside / "victim", before)
    name.symlink_to(outside / "victim")


def _hard_link(name: Path, outside: Path, before: Path | None) -> None:
    _file(outside / "victim", before)
    name.hardlink_to(outside / "victim")


def _link_to_folder(name: Path, outside: Path, before: Path | None) -> None:
    _folder(outside / "victims", before)
    name.symlink_to(outside / "victims")


def _link_to_nothing(name: Path, outside: Path, before: Path | None) -> None:
    name.symlink_to(outside / "nothing")


def _link_to_itself(name: Path, outside: Path, before: Path | None) -> None:
    name.symlink_to(name.name)


def _link_to_device(name: Path, outside: Path, before: Path | None) -> None:
    name.symlink_to("/dev/null")


def _pipe(name: Path, outside: Path, before: Path | None) -> None:
    os.mkfifo(name)


def _other_kind(name: Path, outside: Path, before: Path | None) -> None:
    """Make a folder in place of a file, and a file in place of a folder."""
    if before is not None and before.is_dir():
        name.write_text("in the way\n")
    else:
        name.mkdir()
        (name / "kept").write_text("in the way\n")


PLANTED: dict[str, Callable[[Path, Path, Path | None], None]] = {
    "link to a file": _link_to_file,
    "hard link": _hard_link,
    "link to a folder": _link_to_folder,
    "link to nothing": _link_to_nothing,
    "link to itself": _link_to_itself,
    "link to a device": _link_to_device,
    "pipe": _pipe,
    "another kind": _other_kind,
}


class Harm(NamedTuple):
    """Harm that a planted name has done."""

    name: str
    planted: str
    what: str


def content(folder: Path) -> dict[str, Any]:
    """Return everything in a folder, with the content of files."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else path.is_symlink()
        for path in sorted(folder.rglob("*"))
    }


def harm_of(
    run: Callable[[Path], str | None],
    prepare: Callable[[Path], None],
    scratch: Path,
    name: str,
    planted: str,
    *,
    seconds: float = 10.0,
) -> Harm | None:
    """Run with a planted name, and return the harm; ``run`` returns the error that it ended with."""
    place = scratch / f"{name.replace('/', '-')}-{planted.replace(' ', '-')}"
    folder, outside = place / "folder", place / "outside"
    for one in (folder, outside, place / "before"):
        one.mkdir(parents=True)
    prepare(folder)
    before: Path | None = place / "before" / "it"
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.exists():
        target.rename(place / "before" / "it")
    else:
        before = None
    PLANTED[planted](target, outside, before)
    then = content(outside)
    try:
        with within(seconds):
            error = run(folder)
    except Hung:
        return Harm(name, planted, "did not end")
    except Exception as raised:  # any is a fault
        return Harm(name, planted, f"raised {raised!r:.200}")
    if content(outside) != then:
        return Harm(name, planted, "changed what is outside")
    if error is not None and name.partition("/")[0] not in error:
        return Harm(name, planted, f"an error that does not name it: {error:.200}")
    shutil.rmtree(place)
    return None
