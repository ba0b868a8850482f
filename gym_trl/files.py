"""Files and folders that are written without following links, whoever has prepared the folder that they are in.

A folder may come from somebody else: downloaded, unpacked, or on a shared disk. A name in it may be a link to a file of
the user, a hard link, a pipe or a device, so that writing by name alone would change, create or wait for something
elsewhere. Here, files are either replaced as names (``replaced``) or opened only if they are regular files with one
name (``open_to_append``). The folder itself, which the user has named, may be a link.
"""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a link",
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_ADVICE = "remove it, or choose another folder (a copy by cp -rL has no links)"
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
MOST_BYTES = 2**28
"""Most bytes that are read at once: a whole file, or a line of one. A file of holes has any size and takes no space."""
# Windows has neither.
_NO_LINK, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)


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
    as it is. The new file is made in the same folder, with a name that nobody can prepare.

    Raises:
        OSError: it cannot be written; the error names ``path``.
    """
    _check_replaceable(path)
    beside = path.with_name(f".gym-trl-{os.urandom(8).hex()}.new")
    try:
        with io.BufferedWriter(_NewFile(beside, path)) as file:
            yield file
        beside.replace(path)
    except OSError as error:
        if str(error.filename) == str(beside):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def replace_bytes(path: Path, content: bytes | memoryview) -> None:
    """Write a file at once; after a crash it is either the old or the new one."""
    with replaced(path) as file:
        file.write(content)


def replace_text(path: Path, text: str) -> None:
    """Write a text file; after a crash it is either the old or the new one."""
    replace_bytes(path, text.encode())


def open_to_append(path: Path) -> io.FileIO:
    """Open a file without a buffer for appending; it is made if it does not exist.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     Path(folder, "log").symlink_to("/elsewhere")
    ...     open_to_append(Path(folder, "log"))
    Traceback (most recent call last):
        ...
    OSError: ...log is a link, not a file: remove it, or choose another folder (a copy by cp -rL has no links)

    Raises:
        OSError: it cannot be written, or ``check_file`` refuses it.
    """
    check_file(path)
    return io.FileIO(path, "ab", opener=_open_regular)


def open_to_change(path: Path) -> io.FileIO:
    """Open an existing file without a buffer for reading and writing; otherwise as ``open_to_append``."""
    check_file(path)
    return io.FileIO(path, "r+b", opener=_open_regular)


def open_to_read(path: Path) -> BinaryIO:
    """Open a file for reading, also through a link; a pipe or a device is an error, and nothing is waited for.

    Raises:
        OSError: it cannot be read, or is no regular file.
    """

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | _NO_WAIT)
        kind = stat.S_IFMT(os.fstat(descriptor).st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):  # open() refuses a folder
            os.close(descriptor)
            raise OSError(f"{path} is {_KINDS[kind]}, not a file")
        return descriptor

    return open(path, "rb", opener=opener)


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, opened by ``open_to_read``.

    Raises:
        OSError: it cannot be read, or has more than ``MOST_BYTES``.
    """
    with open_to_read(path) as file:
        return _bounded(file.read(MOST_BYTES + 1), path)


def read_lines(path: Path, file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file that ``open_to_read`` has opened.

    Raises:
        OSError: a line has more than ``MOST_BYTES``.
    """
    while line := file.readline(MOST_BYTES + 1):
        yield _bounded(line, path) if len(line) > MOST_BYTES else line


def _bounded(content: bytes, path: Path) -> bytes:
    if len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return content


def read_text(path: Path) -> str:
    """Return the content of a text file, as ``read_bytes``."""
    return read_bytes(path).decode()


def make_folder(path: Path) -> None:
    """Make a folder in a folder that may come from somebody else; an existing one is kept.

    Raises:
        OSError: it cannot be made, or is a link or a file.
    """
    try:
        path.mkdir()
    except FileExistsError:
        _check_folder(path, path.lstat())


def check_file(path: Path) -> None:
    """Check that a file can be appended to: it does not exist, or is a regular file without another name.

    Raises:
        OSError: it is a link, a folder, a pipe or a device, or a hard link to a file that has another name.
    """
    with suppress(FileNotFoundError):
        _check_regular(path, path.lstat())


def check_tree(folder: Path) -> None:
    """Check that another library can write into a folder: it does not exist, or has only folders and regular files.

    It opens files by their names, so that it would write through links. Somebody who can plant one after this check,
    while the folder is written, is not stopped.

    Raises:
        OSError: something in it, or the folder itself, is what ``check_file`` refuses.
    """
    if not os.path.lexists(folder):
        return
    _check_folder(folder, folder.lstat())
    left = [folder]
    while left:
        with os.scandir(left.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    left.append(Path(entry.path))
                else:
                    _check_regular(Path(entry.path), entry.stat(follow_symlinks=False))


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
    return error.errno in _UNWRITABLE


class _NewFile(io.FileIO):
    """File that is made now; its errors name the path that it will have."""

    def __init__(self, path: Path, shown: Path) -> None:
        self._shown = str(shown)
        super().__init__(path, "xb", opener=_open_regular)

    def write(self, content: Any) -> int:
        """Write bytes, and return the number of those that were written."""
        try:
            return super().write(content)
        except OSError as error:
            error.filename = self._shown
            raise


def _open_regular(path: str, flags: int) -> int:
    descriptor = os.open(path, flags | _NO_LINK | _NO_WAIT, 0o666)  # minus the umask, as for any other file
    try:
        _check_regular(Path(path), os.fstat(descriptor))  # which may be another one than a moment ago
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _check_replaceable(path: Path) -> None:
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except OSError:  # there is nothing, or a link that leads nowhere
        return
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:  # /dev/stdout must not become a file
        raise OSError(f"{path} is {_KINDS[kind]}, not a file: {_ADVICE}")


def _check_regular(path: Path, status: os.stat_result) -> None:
    if (kind := stat.S_IFMT(status.st_mode)) != stat.S_IFREG:
        raise OSError(f"{path} is {_KINDS[kind]}, not a file: {_ADVICE}")
    if status.st_nlink > 1:
        raise OSError(f"{path} is a hard link to a file that has another name, too: {_ADVICE}")


def _check_folder(path: Path, status: os.stat_result) -> None:
    if (kind := stat.S_IFMT(status.st_mode)) != stat.S_IFDIR:
        raise OSError(f"{path} is {_KINDS[kind]}, not a folder: {_ADVICE}")
