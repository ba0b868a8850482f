"""Files of JSON lines that a crash leaves readable."""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.files import naming, open_to_append, open_to_change, replaced

DEEPEST = 100
"""Most levels of lists and objects in what is read: of many more, nothing in Python can write or copy them again."""

# ---------------------------------------------------------------------------------------------------------------------
# JSON Lines
# ---------------------------------------------------------------------------------------------------------------------


def to_json(value: Any, *, indent: int | None = None) -> str:
    r"""Return JSON in ASCII, which preserves lone surrogates; infinity and NaN become ``null``.

    >>> to_json({"text": "\ud800", "loss": float("nan")})
    '{"text": "\\ud800", "loss": null}'
    """
    if indent is None:
        try:
            return _ENCODER.encode(value)
        except (ValueError, TypeError):  # it contains values that JSON does not support
            pass
    return json.dumps(plain(value), allow_nan=False, indent=indent)


def plain(value: Any) -> Any:
    """Return a value in types that JSON has."""
    if isinstance(value, Mapping):
        return {str(name): plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [plain(held) for held in value]
    if isinstance(value, partial):
        return [plain(value.func), plain(value.args), plain(value.keywords)]
    if isinstance(value, FunctionType | type):
        return _name_of(value)
    if hasattr(value, "item") and not getattr(value, "shape", None):  # the numbers of NumPy and torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def encodable(value: Any) -> Any:
    r"""Return a value of JSON with U+FFFD in place of lone surrogates, which UTF-8 does not have.

    >>> encodable({"text": "A\ud800", "pair": ["\ud83d\ude00"]}) == {"text": "A\ufffd", "pair": ["\U0001f600"]}
    True
    """
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {encodable(name): encodable(held) for name, held in value.items()}
    if isinstance(value, Sequence):
        return value if all(isinstance(held, int) for held in value) else [encodable(held) for held in value]
    return value


def _name_of(code: FunctionType | type) -> str:
    """Return a name that is the same in every process, unlike ``repr`` with its addresses, to recognize a run."""
    line = f":{code.__code__.co_firstlineno}" if isinstance(code, FunctionType) else ""
    return f"{code.__module__}.{code.__qualname__}{line}"


_DECODER = json.JSONDecoder()
_ENCODER = json.JSONEncoder(allow_nan=False, default=plain)  # many times faster for plain values


class JsonLinesWriter(Closing):
    """Writer that appends objects to a file, each in one write, so that a crash damages at most the last line.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "log.jsonl")
    ...     with JsonLinesWriter(path) as log:
    ...         log.write({"step": 1})
    ...     _ = path.write_bytes(path.read_bytes() + b'{"step": 2, "lo')
    ...     torn = list(read_json_lines(path))
    ...     with JsonLinesWriter(path) as log:
    ...         log.write({"step": 2})
    ...     torn, list(read_json_lines(path))
    ([{'step': 1}], [{'step': 1}, {'step': 2}])
    """

    def __init__(self, path: Path) -> None:
        mend(path)
        self._path = path
        self._file = open_to_append(path)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record``.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        line = f"{to_json(record)}\n".encode("ascii")
        try:
            written = self._file.write(line)
        except OSError as error:
            error.filename = str(self._path)
            raise
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes could be written to {self._path}; is the disk full?")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Return an iterator over the objects in a JSON Lines file, without an incomplete last line.

    Raises:
        ConfigError: any other line is not a JSON object.
    """
    return (value for _, value in numbered(path))


def numbered(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines with their line numbers."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if (value := as_object(line)) is not None:
                yield number, value
            elif line.strip() and line.endswith(b"\n"):
                raise ConfigError(f"line {number} of {path} is not a JSON object")


def keep_json_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop unwanted objects from a file; after a crash the file is either the old or the new one."""
    write_json_lines((value for value in read_json_lines(path) if wanted(value)), path)


def write_json_lines(values: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write a file of objects and return their number; after a crash the file is either the old or the new one."""
    count = 0
    with replaced(path) as file:
        for value in values:
            file.write(f"{to_json(value)}\n".encode("ascii"))
            count += 1
    return count


def as_object(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line of JSON; ``None`` for anything else, and for what is nested too deeply to be written.

    >>> as_object(b'{"step": 1}'), as_object(b'{"ste'), as_object(b'{"a": ' + b"[" * 200 + b"]" * 200 + b"}")
    ({'step': 1}, None, None)
    """
    try:
        text = line.decode()
        value, end = _DECODER.raw_decode(text)  # faster than loads for what nearly all lines are
        if text[end:].strip():
            return None
    except (ValueError, RecursionError):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return None
    if not isinstance(value, dict) or (line.count(b"[") + line.count(b"{") > DEEPEST and is_deep(value)):
        return None
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON.

    Raises:
        ConfigError: it is something else.
        OSError: the file cannot be read.
    """
    if (value := as_object(path.read_bytes())) is None:
        raise ConfigError(f"{path} is not a JSON object")
    return value


def is_deep(value: Any, most: int = DEEPEST) -> bool:
    """Return whether lists and objects are nested in more than ``most`` levels.

    >>> is_deep({"a": [[]]}, 3), is_deep({"a": [[]]}, 2)
    (False, True)
    """
    level = [value]
    for _ in range(most):
        level = [one for held in level for one in _nested(held)]
        if not level:
            return False
    return True


def _nested(held: Any) -> list[Any]:
    inside = held.values() if isinstance(held, dict) else held
    # Most lists have many numbers and nothing else, which this finds faster than a look at each.
    return [one for one in inside if isinstance(one, dict | list)] if {dict, list} & {*map(type, inside)} else []


def mend(path: Path) -> None:
    """Drop an incomplete last line, or add a missing line break to a complete one.

    Raises:
        OSError: The file must be changed and cannot be, or is a link.
    """
    if not path.exists():
        return
    with open_to_change(path) as file, naming(path):
        start = _start_of_last_line(file)
        last = file.read()
        if last.strip() and as_object(last) is not None:
            file.write(b"\n")
        else:
            file.truncate(start)


def _start_of_last_line(file: Any, block: int = 2**16) -> int:
    """Seek to the start of the last line without a line break, and return the position."""
    start = file.seek(0, os.SEEK_END)
    found = -1
    while start and found < 0:
        start = max(0, start - block)
        file.seek(start)
        found = file.read(block).rfind(b"\n")
    return int(file.seek(start + found + 1))
