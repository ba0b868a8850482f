"""Readers of files of records, of which the last line may be incomplete."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

from gym_trl.errors import ConfigError
from gym_trl.records.json_lines import as_object
from gym_trl.records.schema import VERSION, complete


class Place(NamedTuple):
    """Position of a record."""

    file: int
    offset: int
    length: int


class Tail:
    """Reader of the complete lines of a file."""

    def __init__(self, path: Path, *, records: bool = True) -> None:
        self.path = path
        self.broken = 0
        self._are_records = records

    def read(self) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
        """Generate the objects of the lines, each with its offset and length in bytes."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            return
        end = 0
        with file:
            for line in file:
                if not line.endswith(b"\n"):
                    break
                offset, end = end, end + len(line)
                if (value := self._value(line)) is not None:
                    yield (offset, len(line)), value
                elif line.strip():
                    self.broken += 1

    def at(self, place: Place) -> dict[str, Any]:
        """Return the object at this position."""
        with self.path.open("rb") as file:
            file.seek(place.offset)
            return self._value(file.read(place.length)) or {}

    def _value(self, line: bytes) -> dict[str, Any] | None:
        """Return the object in a line, completed if it is to be a record; ``None`` for anything else."""
        value = as_object(line)
        if value is None or not self._are_records:
            return value
        if value.get("version", VERSION) != VERSION:
            raise ConfigError(f"{self.path} has a record of version {value['version']!r:.20}, not {VERSION}")
        try:
            return cast(dict[str, Any], complete(value, "the line"))
        except ConfigError:
            return None
