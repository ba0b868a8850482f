"""Files that are replaced whole, and files that are appended to, neither through a link."""

import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Provide a new file that replaces ``path`` at the end, or is deleted after an error.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "page.html")
    ...     path.symlink_to("/elsewhere")
    ...     with replaced(path) as file:
    ...         _ = file.write(b"a page")
    ...     path.is_symlink(), path.read_bytes()
    (False, b'a page')

    After a crash the file is either the old or the new one. A link is replaced by the file, and what it points to stays
    as it is.

    Raises:
        OSError: it cannot be written; the error names ``path``.
    """
    if path.exists() and not path.is_file():  # /dev/stdout must not become a file
        raise OSError(f"{path} is not a file")
    beside = path.with_name(f".gym-trl-{os.urandom(8).hex()}.new")
    try:
        with naming(path), beside.open("xb") as file:
            yield file
        beside.replace(path)
    except OSError as error:
        if str(error.filename) == str(beside):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        with suppress(OSError):
            beside.unlink()


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file at once; after a crash it is either the old or the new one."""
    with replaced(path) as file:
        file.write(content)


def replace_text(path: Path, text: str) -> None:
    """Write a text file; after a crash it is either the old or the new one."""
    replace_bytes(path, text.encode())


def open_to_append(path: Path) -> io.FileIO:
    """Open a file without a buffer for appending; it is made if it does not exist, and a link is an error."""
    return io.FileIO(path, "ab", opener=_open)


def open_to_change(path: Path) -> io.FileIO:
    """Open an existing file without a buffer for reading and writing; a link is an error."""
    return io.FileIO(path, "r+b", opener=_open)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | _NO_LINK, 0o666)  # minus the umask, as for any other file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path of an open file to the system's errors, which do not have it."""
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # else it has a text of its own
            error.filename = error.filename or str(path)
        raise


def is_unwritable(error: OSError) -> bool:
    """Return whether an error says that this user may not write there, as in a read-only folder.

    >>> is_unwritable(PermissionError(errno.EACCES, "denied")), is_unwritable(OSError(errno.ENOSPC, "full"))
    (True, False)
    """
    return error.errno in (errno.EROFS, errno.EACCES, errno.EPERM)
