"""Episodes on disk: one schema for training and evaluation, appended line by line and readable after a crash."""

from typing import TYPE_CHECKING

from gym_trl._lazy import exports

if TYPE_CHECKING:
    from gym_trl.records.export import preference_rows as preference_rows, sft_rows as sft_rows
    from gym_trl.records.files import RecordWriter as RecordWriter, read_records as read_records
    from gym_trl.records.json_lines import to_json as to_json
    from gym_trl.records.schema import (
        Record as Record,
        as_record as as_record,
        messages_of as messages_of,
        task_id as task_id,
    )

__getattr__, __dir__ = exports(__name__)
