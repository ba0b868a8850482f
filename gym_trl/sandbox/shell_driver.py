"""Functions that a sandbox's interpreter runs for ``Shell``: commands with a limit, and files in and out.

Their source is the first program of the sandbox, so they import only the standard library. Commands run as the same
user, so after the first command nothing here is trusted: its replies are data of the model.
"""

# ruff: noqa: S202, S603, PLW0603, PTH101, PTH108, PTH118, PTH123 -- it runs commands, and pathlib would cost time

import base64
import io
import os
import re
import selectors
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

KEPT = 2**15
"""Bytes of a command's output that are kept from each end."""
MOST = 2**24
"""Bytes of output at which a command is ended."""
PIECE = 3 * 2**17
ROUND_S = 0.02
BLOCK = 512

received = bytearray()
pieces: Iterator[bytes] = iter(())


def shell(command: str, folder: str, variables: dict[str, str], seconds: float) -> dict[str, object]:
    """Run a command with bash; return its output, its exit code, and the limit at which it was ended, if any."""
    try:
        process = subprocess.Popen(
            ["/bin/bash", "-c", command],
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:  # too long, with NUL, a folder that is gone, no more processes
        return {"output": f"bash: {error}\n", "code": 126, "ended": ""}
    output, code, ended = follow(process, seconds)
    return {"output": anonymous(output).decode("utf-8", "replace"), "code": code, "ended": ended}


def follow(process: "subprocess.Popen[bytes]", seconds: float) -> tuple[bytes, int | None, str]:
    """Read what a process prints until it ends; return both ends of it, the exit code, and the limit it met, if any.

    At a limit (``"time"`` or ``"output"``) its whole process group is ended. What it left running is not waited for.
    """
    assert process.stdout is not None
    pipe, deadline = process.stdout.fileno(), time.monotonic() + seconds
    os.set_blocking(pipe, False)
    head, tail, length, ended, finished = bytearray(), bytearray(), 0, "", False
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not ended and not finished:
            finished = process.poll() is not None  # what it left running may keep the pipe open
            if selector.get_map():
                selector.select(0 if finished else ROUND_S)
            elif not finished:
                time.sleep(ROUND_S)
            while not ended and selector.get_map():
                try:
                    chunk = os.read(pipe, 2**16)
                except BlockingIOError:
                    break
                if not chunk:  # closed; it may still run
                    selector.unregister(pipe)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(ROUND_S)
                    break
                length += len(chunk)
                kept = max(0, KEPT - len(head))
                head += chunk[:kept]
                tail = (tail + chunk[kept:])[-KEPT:]
                ended = "output" if length > MOST else "time" if time.monotonic() > deadline else ""
            if time.monotonic() > deadline and process.poll() is None:
                ended = ended or "time"
    if ended:
        with suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    missing = length - len(head) - len(tail)
    between = f"\n[{missing} bytes are left out]\n".encode() if missing else b""
    return bytes(head) + between + bytes(tail), process.poll(), ended


def anonymous(output: bytes) -> bytes:
    """Return output with 1000 in place of this sandbox's user id, which is a random number."""
    return re.sub(rb"\b%d\b" % os.getuid(), b"1000", output)


def receive(piece: str) -> None:
    """Add a piece to an archive."""
    received.extend(base64.b64decode(piece))


def unpack() -> None:
    """Extract the received archive."""
    content = bytes(received)
    received.clear()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        # Nothing runs here, and what must be clean is emptied afterwards.
        if hasattr(tarfile, "fully_trusted_filter"):
            archive.extractall("/", filter="fully_trusted")
        else:
            archive.extractall("/")


def empty(folders: list[str]) -> None:
    """Remove everything in folders."""
    for folder in folders:
        for entry in os.scandir(folder):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)


def read(path: str, most: int) -> str | None:
    """Return the beginning of a regular file, or ``None`` if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            return base64.b64encode(file.read(most)).decode()
    except OSError:
        return None


def pack(folders: list[str]) -> None:
    """Start an archive of folders, whose pieces ``give`` returns."""
    global pieces
    pieces = in_pieces(members(folders))


def give() -> str:
    """Return the next piece of the archive, or nothing at its end."""
    return base64.b64encode(next(pieces, b"")).decode()


def in_pieces(parts: Iterator[bytes]) -> Iterator[bytes]:
    """Join small parts."""
    waiting = bytearray()
    for part in parts:
        waiting += part
        if len(waiting) >= PIECE:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)


def members(folders: list[str]) -> Iterator[bytes]:
    """Return the blocks of an archive of folders, file by file."""
    archive = tarfile.TarFile(fileobj=io.BytesIO(), mode="w", format=tarfile.PAX_FORMAT)
    for folder in folders:
        for root, below, files in os.walk(folder):
            below.sort()
            for name in sorted(below) + sorted(files):
                yield from member(archive, os.path.join(root, name))
    yield bytes(2 * BLOCK)


def member(archive: tarfile.TarFile, path: str) -> Iterator[bytes]:
    """Return the blocks of one file or folder; of a socket there are none."""
    info = archive.gettarinfo(path)
    if info is None:
        return
    info.uid = info.gid = 0
    if info.islnk():  # a further name of a file becomes a file
        info.type, info.linkname, info.size = tarfile.REGTYPE, "", os.lstat(path).st_size
    if info.isdir() or info.isreg():
        os.chmod(path, info.mode | 0o700)  # its own user can read it then; the archive has the mode it had
    yield info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    if info.isreg():
        with open(path, "rb") as file:
            yield from blocks(file, info.size)


def blocks(file: IO[bytes], size: int) -> Iterator[bytes]:
    """Return a file's content and zeros up to a whole block."""
    left = size
    while left and (chunk := file.read(min(left, PIECE))):
        left -= len(chunk)
        yield chunk
    yield bytes(left + -size % BLOCK)
