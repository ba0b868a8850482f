"""Writing and reading of records."""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, cast

from gym_trl.bases import Closing
from gym_trl.errors import ConfigError
from gym_trl.records.json_lines import JsonLinesWriter, mend, numbered
from gym_trl.records.schema import FAILURES, ROLLOUTS, Record, complete, env_of
from gym_trl.success import counted_successes, declaring_envs
from gym_trl.text import counted
from gym_trl.types import StopReason


def read_records(path: Path) -> Iterator[Record]:
    """Yield the episodes of a JSON Lines file, or of a run's folder.

    In a folder, the episodes of ``rollouts.jsonl`` come first, then those of ``failures.jsonl``. Missing fields
    get their defaults; unknown fields are kept. Only one episode is held in memory.

    ``success`` is what statistics count (``gym_trl.success.counted_successes``): where any of these episodes declares
    success, scored ones of the same environment without a declaration have failed, also those that were written before.

    Raises:
        ConfigError: there are no records, a line is not a record, or its version is not supported; the message names
            the line.
    """
    declaring: set[Hashable] | None = None
    for record in _written_records(path):
        if record["success"] is None and record["return"] is not None:
            if declaring is None:  # read once more, only where an episode declares nothing
                declaring = declaring_envs(_declared(path))
            [record["success"]] = counted_successes([(env_of(record), None)], declaring)
        yield cast(Record, ReadRecord(record))


class ReadRecord(dict[str, Any]):
    """Record that ``read_records`` has read: a ``dict`` that is written in one line."""

    def __repr__(self) -> str:
        paid = "unscored" if self["return"] is None else f"return {self['return']:g}"
        return f"<Record of {self['task']['id']}: {paid}, {counted(self['num_turns'], 'turn')}, {self['stop_reason']}>"


def _declared(path: Path) -> Iterator[tuple[str, bool | None]]:
    return ((env_of(record), record["success"]) for record in _written_records(path) if record["return"] is not None)


def _written_records(path: Path) -> Iterator[Record]:
    if path.is_dir():
        files = [path / name for name in (ROLLOUTS, FAILURES) if (path / name).exists()]
        if not files:
            raise ConfigError(f"{path} has no records: no file {ROLLOUTS}")
        for file in files:
            yield from _written_records(file)
    else:
        for number, value in numbered(path):
            yield complete(value, f"line {number} of {path}")


def is_failure(record: Record) -> bool:
    """Return whether an episode failed, and said nothing about the model; a seat that was never to move did not."""
    return record["return"] is None and record["stop_reason"] != StopReason.UNPLAYED


class RecordWriter(Closing):
    """Writer that appends episodes to a folder, unscored ones to a separate file.

    >>> from tempfile import TemporaryDirectory
    >>> from gym_trl.episode import Episode
    >>> from gym_trl.records import as_record, read_records
    >>> from gym_trl.types import StopReason, Task
    >>> failed = Episode(Task("TrlEnv/Echo-v0", 1))
    >>> failed.stop(StopReason.ENV_ERROR, "it broke")
    >>> with TemporaryDirectory() as folder:
    ...     with RecordWriter(Path(folder)) as records:
    ...         records.write(as_record(failed))
    ...     [file.name for file in Path(folder).iterdir()], [record["error"] for record in read_records(Path(folder))]
    (['failures.jsonl'], ['it broke'])

    Every episode is one write, which the operating system has received when ``write`` returns: killing the process
    loses no written episode. Creating a writer removes an incomplete last line that a crash has left.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, JsonLinesWriter] = {}
        for name in (ROLLOUTS, FAILURES):
            mend(folder / name)

    def write(self, record: Record) -> None:
        """Append an episode.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        name = FAILURES if is_failure(record) else ROLLOUTS
        if name not in self._writers:
            self._writers[name] = JsonLinesWriter(self._folder / name)
        self._writers[name].write(record)

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()
