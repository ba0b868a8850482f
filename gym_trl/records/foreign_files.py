"""Files of other tools, told apart by their names and contents."""

from collections.abc import Iterator
from pathlib import Path

from gym_trl.errors import ConfigError
from gym_trl.records.inspect_logs import read_inspect_log
from gym_trl.records.schema import Record
from gym_trl.records.verifiers_results import RESULTS, TRACES, read_verifiers


def read_foreign(path: Path) -> Iterator[Record]:
    """Return an iterator over the episodes in a log of Inspect or a result of verifiers.

    Args:
        path: ``.eval`` or ``.json`` of Inspect; ``traces.jsonl``, ``results.jsonl`` or their folder of verifiers.

    Raises:
        ConfigError: there is no such file, or it is of another kind.
    """
    if not path.exists():
        raise ConfigError(f"there is no {path}; give a log of Inspect or an evaluation by verifiers")
    if path.is_dir():
        if not any((path / name).is_file() for name in (TRACES, RESULTS)):
            raise ConfigError(
                f"{path} is no evaluation by verifiers: it has neither {TRACES} nor {RESULTS}; "
                "name the files of logs of Inspect"
            )
        return read_verifiers(path)
    if path.suffix in (".eval", ".json"):
        return read_inspect_log(path)
    if path.suffix == ".jsonl":
        return read_verifiers(path)
    raise ConfigError(
        f"{path} is neither a log of Inspect (.eval, .json) nor a result of verifiers ({TRACES}, {RESULTS})"
    )
