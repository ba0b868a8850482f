"""Records as Parquet files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints, is_typeddict

from gym_trl.errors import ConfigError, needs
from gym_trl.files import open_to_read, replaced
from gym_trl.records.json_lines import encodable, to_json
from gym_trl.records.schema import Record, complete

_ROWS_AT_ONCE = 1_000
_AS_JSON = ("env_kwargs", "options", "spec", "scores")  # their keys differ between records, so they cannot be columns


def write_parquet(records: Iterable[Record], path: Path) -> int:
    """Write episodes as a table for ``datasets.load_dataset("parquet", data_files=...)``, and return their number.

    ``env_kwargs``, ``options``, ``spec`` and ``scores`` are JSON strings in it, fields outside the schema are left out,
    and lone surrogates, which Parquet does not support, become U+FFFD. ``read_records`` reads the table back.
    """
    return write_table((as_row(record) for record in records), episode_columns(), path).rows


class TableSize(NamedTuple):
    """Size of a written table."""

    rows: int
    bytes: int
    """Bytes in memory, which ``datasets`` calls ``num_bytes``."""


def episode_columns() -> Any:
    """Return the columns of a table of episodes, as ``datasets.Features``."""
    with needs("train", "Parquet"):
        from datasets import Features

    return Features(_column(Record))


def write_table(rows: Iterable[Mapping[str, Any]], columns: Any, path: Path) -> TableSize:
    """Write rows to a Parquet file, a thousand in memory at a time, and return its size.

    Args:
        rows: Values by column; lone surrogates become U+FFFD.
        columns: ``datasets.Features``.
        path: File, which is replaced if it exists.

    Raises:
        ConfigError: A column cannot hold a value, such as an integer of more than 64 bits.
        OSError: The file cannot be written.
    """
    with needs("train", "Parquet"):
        import pyarrow
        from pyarrow.parquet import ParquetWriter

    schema = columns.arrow_schema
    encoded, written, size = (encodable(row) for row in rows), 0, 0
    with replaced(path) as file, ParquetWriter(file, schema) as writer:
        for batch in _batches(encoded):
            try:
                table = pyarrow.Table.from_pylist(batch, schema=schema)
            except (OverflowError, pyarrow.ArrowException) as error:
                raise ConfigError(f"{path.name} cannot have {_unwritable(batch, schema, written)}") from error
            writer.write_table(table)
            written, size = written + len(batch), size + table.nbytes
    return TableSize(written, size)


def _unwritable(rows: Iterable[Mapping[str, Any]], schema: Any, before: int) -> str:
    """Return the first value that its column cannot hold, as a part of a sentence; ``before``: rows before these."""
    import pyarrow

    for number, row in enumerate(rows, start=before + 1):
        for column in schema:
            try:
                pyarrow.array([row.get(column.name)], column.type)
            except (OverflowError, pyarrow.ArrowException) as error:
                return f"{column.name!r} of row {number}: {error}"
    raise AssertionError("each value alone can be written")


def _batches(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def read_parquet(path: Path) -> Iterator[Record]:
    """Yield the records in a Parquet file.

    Raises:
        ConfigError: the file is damaged or no Parquet file, or a row is not a record; the message names the row.
    """
    with needs("train", "Parquet"):
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile

    try:
        with open_to_read(path) as opened, ParquetFile(opened) as file:
            rows = (row for batch in file.iter_batches(_ROWS_AT_ONCE) for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                where = f"row {number} of {path}"
                for held in (row, row.get("task")):
                    if isinstance(held, dict):
                        texts = {name: held[name] for name in _AS_JSON if name in held}
                        held |= {name: _from_json(text, f"{name} in {where}") for name, text in texts.items()}
                yield complete(row, where)
    except ArrowException as error:
        raise ConfigError(f"{path} is not a Parquet file, or is damaged: {str(error)[:200]}") from error


def _from_json(text: Any, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise ConfigError(f"{where} is not JSON: {text!s:.80}") from error


def as_row(record: Record) -> dict[str, Any]:
    """Return the columns of an episode."""
    row: dict[str, Any] = {name: record.get(name) for name in Record.__annotations__}
    row["task"] = dict(row["task"])
    for held in (row, row["task"]):
        held |= {name: to_json(held[name]) for name in _AS_JSON if name in held}
    return row


_TYPES = {int: "int64", float: "float64", bool: "bool"}


def _column(kind: Any) -> Any:
    """Return the column of a table for a type of the schema: texts for mappings, whose keys differ."""
    from datasets import List, Value

    if isinstance(kind, UnionType):  # with None, which every column can hold
        return _column(get_args(kind)[0])
    if is_typeddict(kind):
        return {name: _column(held) for name, held in get_type_hints(kind).items()}
    return List(_column(*get_args(kind))) if get_origin(kind) is list else Value(_TYPES.get(kind, "string"))
