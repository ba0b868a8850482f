"""Episodes on disk: one schema for training and evaluation, appended line by line and readable after a crash."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.records.export import preference_rows as preference_rows, sft_rows as sft_rows
    from gym_trl.records.files import RecordWriter as RecordWriter, read_records as read_records
    from gym_trl.records.json_lines import to_json as to_json
    from gym_trl.records.parquet import write_parquet as write_parquet
    from gym_trl.records.schema import (
        Record as Record,
        as_record as as_record,
        messages_of as messages_of,
        task_id as task_id,
    )

_MODULES = {
    "Record": "gym_trl.records.schema",
    "as_record": "gym_trl.records.schema",
    "task_id": "gym_trl.records.schema",
    "to_json": "gym_trl.records.json_lines",
    "messages_of": "gym_trl.records.schema",
    "RecordWriter": "gym_trl.records.files",
    "read_records": "gym_trl.records.files",
    "write_parquet": "gym_trl.records.parquet",
    "preference_rows": "gym_trl.records.export",
    "sft_rows": "gym_trl.records.export",
}

__all__ = list(_MODULES)
__getattr__, __dir__ = exports(__name__, _MODULES)
