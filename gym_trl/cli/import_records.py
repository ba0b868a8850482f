"""``gym-trl import``."""

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Annotated

from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption, check_empty
from gym_trl.cli.terminal import say
from gym_trl.errors import ConfigError
from gym_trl.text.textify import counted

EXAMPLES = """
gym-trl import logs/gsm8k.eval --out evals/gsm8k
gym-trl import outputs/my-env--my-model--chat--1a2b --out evals/mine
"""


@clear_errors
def import_records(
    file: Annotated[
        Path, Argument(metavar="FILE", help="Log of Inspect, or the folder or results of an evaluation by verifiers.")
    ],
    *,
    out: Annotated[Path, Option(help="New folder for the records.")],
    debug: DebugOption = False,
) -> None:
    """Convert logs of Inspect and of verifiers to records.

    gym-trl view and gym-trl export read these. What a file does not have, such as token ids, stays empty. Files of
    other people are safe to read.
    """
    from gym_trl.records.files import RecordWriter
    from gym_trl.records.foreign import read_foreign

    check_empty(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        count = unscored = 0
        with RecordWriter(beside) as records:
            for record in read_foreign(file):
                records.write(record)
                count += 1
                unscored += record["return"] is None
        if not count:
            raise ConfigError(f"{file} has no episodes")
        beside.chmod(0o755)
        beside.replace(out)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    failed = f", {unscored} of them unscored" if unscored else ""
    say(f"Wrote {counted(count, 'episode')}{failed} to {out}; look at them with: gym-trl view {out}")
