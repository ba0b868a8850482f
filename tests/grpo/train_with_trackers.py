"""Train three steps, report to W&B and Trackio without a network, and read back their files.

Runs in a process that finds the two, with the folder as its argument; ``read.json`` there has what each was told,
in the order in which it was.
"""

import json
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import tiny_trainer

from gym_trl.grpo.transcripts import LogTranscripts

folder = Path(sys.argv[1])
transcripts = LogTranscripts(every=2, count=2)
spec = tiny_trainer.plain_spec(
    "TrlEnv/Echo-v0",
    num_tasks=8,
    env_kwargs={"reward": "length", "max_length": 4},  # so that returns differ from step to step
    on_rollout=transcripts.on_rollout,
    max_tokens_per_turn=3,
)
grpo = {"run_name": "tracked", "project": "gym-trl", "report_to": ["wandb", "trackio"]}
trainer = tiny_trainer.make(folder, spec, grpo={**grpo, "max_steps": 3, "per_device_train_batch_size": 8})
transcripts.attach(trainer)
trainer.train()
sys.modules["wandb"].finish()
sys.modules["wandb"].teardown()  # ``finish`` returns before W&B's process has written the file's last block


def of_wandb() -> Iterator[dict[str, Any]]:
    """Yield the contents of the run's file: LevelDB's log format, with protocol buffers in it."""
    from wandb.proto.wandb_internal_pb2 import Record

    [path] = folder.rglob("*.wandb")
    written, record = path.read_bytes(), b""
    place = 7  # the file's own header
    while place + 7 < len(written):
        if 32768 - place % 32768 < 7:  # the end of a block has no room for a header
            place += 32768 - place % 32768
        _, length, kind = struct.unpack_from("<IHB", written, place)
        record += written[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # all of it, or its last part
            message, record = Record.FromString(record), b""
            if message.history.item:
                yield {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in message.history.item}


def of_trackio() -> Iterator[dict[str, Any]]:
    """Yield the contents of the project's database."""
    with sqlite3.connect(folder / "trackio" / "gym-trl.db") as database:
        for (metrics,) in database.execute("select metrics from metrics order by id"):
            yield json.loads(metrics)


read = {"wandb": list(of_wandb()), "trackio": list(of_trackio()), "trainer": trainer.state.log_history}
for logged in read["wandb"]:
    if "transcripts/path" in logged:  # the table is in a file of its own
        [table] = folder.rglob(Path(logged["transcripts/path"]).name)
        logged["transcripts"] = json.loads(table.read_text())
(folder / "read.json").write_text(json.dumps(read))
