"""Trajectories on disk: one JSON object a line, appended to, and readable after a crash."""

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from gym_trl.errors import ConfigError
from gym_trl.types import Trajectory, Turn

VERSION = 1


def as_record(trajectory: Trajectory, *, tokens: bool = False, **extra: Any) -> dict[str, Any]:
    """A trajectory as plain JSON values, with ``extra`` beside it.

    >>> from gym_trl.types import Answer, StopReason, Task
    >>> turn = Turn("Say ox.", Answer("", "ox"), 1.0, True, 0, 2)
    >>> task = Task("TrlEnv/Echo-v0", 1)
    >>> played = Trajectory(task, StopReason.SUCCESS, [5], [6, 7], [1, 1], [-0.1, -0.2], (turn,), ())
    >>> record = as_record(played, step=3)
    >>> record["version"], record["step"], record["return"], record["turns"][0]["answer"]
    (1, 3, 1.0, 'ox')

    Args:
        trajectory: What was played.
        tokens: Keep the token ids, the mask and the logprobs as well, not only their numbers.
        extra: Under names of their own, such as ``step=3``; a name of the record's own wins.
    """
    task, messages = trajectory.task, trajectory.messages
    record = {
        **extra,
        "version": VERSION,
        "task": {"env_id": task.env_id, "seed": task.seed, "options": dict(task.options)},
        "stop_reason": trajectory.stop_reason.value,
        "return": trajectory.episode_return,
        "success": trajectory.success,
        "turns": [_turn(turn) for turn in trajectory.turns],
        # What the environment said to the last action; the observations before it are in the turns.
        "last_observation": messages[-1].content if messages and messages[-1].role == "user" else None,
        "error": trajectory.error,
        "prompt_tokens": len(trajectory.prompt_ids),
        "completion_tokens": len(trajectory.completion_ids),
        "sampled_tokens": sum(trajectory.mask),
    }
    if tokens:
        record |= {name: getattr(trajectory, name) for name in ("prompt_ids", "completion_ids", "mask", "logprobs")}
    return record


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "observation": turn.observation,
        "thinking": turn.answer.thinking,
        "answer": turn.answer.text,
        "reward": turn.reward,
        "action_valid": turn.action_valid,
    }


def to_json(value: Any, *, indent: int | None = None) -> str:
    r"""JSON in ASCII, so that lone surrogates survive; numbers that JSON does not have become ``null``.

    >>> to_json({"text": "\ud800", "loss": float("nan")})
    '{"text": "\\ud800", "loss": null}'
    """
    return json.dumps(_plain(value), allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if hasattr(value, "item") and not getattr(value, "shape", None):  # the numbers of NumPy and torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


class JsonLinesWriter:
    """Appends objects to a file, each in one write, so that a crash tears at most the last line.

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
        _mend(path)
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        """Use the writer in a ``with`` block that closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the file."""
        self.close()

    def write(self, record: Mapping[str, Any]) -> None:
        """Append ``record``.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        line = f"{to_json(record)}\n".encode("ascii")
        if (written := self._file.write(line)) != len(line):
            raise OSError(
                f"only {written} of {len(line)} bytes could be written to {self._file.name}; is the disk full?"
            )

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file of JSON Lines, without a last line that a crash has torn.

    Raises:
        ConfigError: any other line is not a JSON object.
    """
    lines = path.read_bytes().split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if (record := _object(line)) is not None:
            yield record
        elif number < len(lines):
            raise ConfigError(f"line {number} of {path} is not a JSON object: {line[:80]!r}")


def keep_json_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop the objects that are not wanted; a crash leaves the old file or the new one."""
    kept = [record for record in read_json_lines(path) if wanted(record)]
    replace_text(path, "".join(f"{to_json(record)}\n" for record in kept))


def replace_text(path: Path, text: str) -> None:
    """Write a whole file; a crash leaves the old file or the new one."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _mend(path: Path) -> None:
    """Drop a torn last line, or end a whole one that lacks its line break."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if content[whole:].strip() and _object(content[whole:]) is not None:
        with path.open("ab") as file:
            file.write(b"\n")
    else:
        os.truncate(path, whole)
