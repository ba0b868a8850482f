"""Episodes on disk: one schema for training and evaluation, appended line by line and readable after a crash."""

import errno
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from types import FunctionType, TracebackType
from typing import Any, Self, TypedDict, cast

from gym_trl.errors import ConfigError, MissingDependencyError
from gym_trl.types import Message, TokenIds, Trajectory, Turn

VERSION = 1
ROLLOUTS, FAILURES = "rollouts.jsonl", "failures.jsonl"
"""Files of a folder: scored and unscored episodes."""

# ---------------------------------------------------------------------------------------------------------------------
# Schema, explained in docs/records.md
# ---------------------------------------------------------------------------------------------------------------------


class TaskRecord(TypedDict):
    """Task of an episode."""

    id: str
    """Id of the task, made by ``task_id``; different for different tasks."""
    env_id: str | None
    env_kwargs: dict[str, Any]
    """Arguments for ``gym.make``."""
    seed: int | None
    options: dict[str, Any]
    """Options for ``reset``, used with the seed."""


class MessageRecord(TypedDict):
    """Message with the fields that chat templates use."""

    role: str
    content: str


class TurnRecord(TypedDict):
    """One response of the model and the step that it caused."""

    observation: str
    thinking: str
    answer: str
    """Response without its thinking, as the environment received it."""
    action: str | None
    """Action that a wrapper such as ``ParseAction`` read from the answer, if any."""
    reward: float
    action_valid: bool
    action_cut: bool
    """``max_tokens`` cut the answer off before its action was complete."""
    start: int | None
    """Index of the turn's first sampled id in ``completion_ids``; ``None`` if there are no tokens."""
    stop: int | None
    """Index after the last sampled id of the turn."""


# "return" is a keyword, so it cannot be named in the body of a class.
_Return = TypedDict("_Return", {"return": float | None})


class Record(_Return):
    """One episode as plain JSON values; ``docs/records.md`` explains each field.

    ``return`` is the undiscounted sum of the rewards, ``None`` for an unscored episode.
    """

    version: int
    task: TaskRecord
    spec: dict[str, Any]
    """Wrapping of the environment, by the names of ``GymSpec``'s arguments; empty for a plain ``gym.make``."""
    policy: str | None
    """Name of the policy, or of the model."""
    split: str | None
    """``"train"`` or ``"eval"``."""
    step: int | None
    """Training step that the episode was played for; ``None`` outside training."""
    greedy: bool | None
    """True if the most probable token was selected instead of sampling."""
    group: int | None
    """Index of the task within its step or evaluation; the episodes of a group have the same task."""
    attempt: int
    """Index within the group."""
    opening: list[MessageRecord]
    """Messages before the model's first response: system prompt, instructions and first observation."""
    turns: list[TurnRecord]
    last_observation: str | None
    """Observation after the last action; ``None`` if there was none."""
    unanswered: str | None
    """Response that the environment did not execute because the episode ended; it is in no turn."""
    success: bool | None
    """``None`` if success is not declared, or if the episode is unscored."""
    terminated: bool
    """The environment ended the episode."""
    truncated: bool
    """The episode was cut off by a turn limit, a token limit or the context."""
    stop_reason: str
    """Value of ``StopReason``."""
    error: str | None
    num_turns: int
    invalid_actions: int
    cut_actions: int
    """Number of invalid actions that ``max_tokens`` cut off."""
    prompt_tokens: int | None
    """Number of tokens of the prompt; the three token counts are ``None`` if tokens were not counted."""
    completion_tokens: int | None
    sampled_tokens: int | None
    model_seconds: float | None
    """Seconds between requests and completions, summed over the turns, including the wait for others in a batch."""
    env_seconds: float | None
    """Seconds in the environment, including its reset."""
    prompt_ids: list[int] | None
    """Token ids of the prompt; this and the following fields are ``None`` if tokens were not to be recorded."""
    completion_ids: list[int] | None
    mask: list[int] | None
    logprobs: list[float | None] | None
    token_texts: list[str] | None
    """Text of each id in ``completion_ids``, for display."""


_RECORD_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(Record.__annotations__),
    "attempt": 0,
    "terminated": False,
    "truncated": False,
}
_TASK_DEFAULTS: dict[str, Any] = {"env_id": None, "seed": None}


def task_id(
    env_id: str | None,
    seed: int | None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return a short name of a task, different for different tasks.

    >>> task_id("TrlEnv/Echo-v0", 3)
    'TrlEnv/Echo-v0#3'
    >>> task_id("TrlEnv/GuessNumber-v0", 3, env_kwargs={"high": 8}, options={"instance": 5})
    'TrlEnv/GuessNumber-v0#3#d19f6752'
    """
    name = f"{env_id}#{seed}"
    if not env_kwargs and not options:
        return name
    held = json.dumps([_plain(env_kwargs or {}), _plain(options or {})], sort_keys=True)
    return f"{name}#{blake2b(held.encode(), digest_size=4).hexdigest()}"


def as_record(
    trajectory: Trajectory,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
    policy: str | None = None,
    split: str | None = None,
    step: int | None = None,
    greedy: bool | None = None,
    group: int | None = None,
    attempt: int = 0,
    tokens: bool = False,
    decode: Callable[[TokenIds], str] | None = None,
    **extra: Any,
) -> Record:
    """Return the record of a trajectory as plain JSON values, with ``extra`` added.

    >>> from gym_trl.types import Answer, StopReason, Task
    >>> turn = Turn("Say ox.", Answer("", "ox"), 1.0, True, 0, 2)
    >>> task = Task("TrlEnv/Echo-v0", 1)
    >>> played = Trajectory(task, StopReason.SUCCESS, [5], [6, 7], [1, 1], [-0.1, -0.2], (turn,), ())
    >>> record = as_record(played, step=3, policy="tiny")
    >>> record["version"], record["step"], record["return"], record["turns"][0]["answer"], record["task"]["id"]
    (1, 3, 1.0, 'ox', 'TrlEnv/Echo-v0#1')

    Args:
        trajectory: Finished episode.
        env_kwargs: Arguments that its environment was made with.
        spec: Wrapping of the environment, by the names of ``GymSpec``'s arguments.
        policy: Name of the policy.
        split: ``"train"`` or ``"eval"``.
        step: Training step that it was played for.
        greedy: The most probable token was selected instead of sampling.
        group: Index of the task within its step or evaluation.
        attempt: Index within the group.
        tokens: Record the token ids, the mask and the logprobs, not only their numbers.
        decode: Function from ids to text; with ``tokens``, each token's text is recorded, too.
        extra: Further fields; they do not replace the record's own.
    """
    task, messages, turns = trajectory.task, trajectory.messages, trajectory.turns
    tokenised = bool(trajectory.prompt_ids)
    spoken = [index for index, message in enumerate(messages) if message.role == "assistant"]
    opening = messages[: spoken[0]] if spoken else messages
    ended = messages[-1] if messages else Message("", "")
    record: dict[str, Any] = {
        **extra,
        "version": VERSION,
        "task": {
            "id": task_id(task.env_id, task.seed, env_kwargs=env_kwargs, options=task.options),
            "env_id": task.env_id,
            "env_kwargs": dict(env_kwargs or {}),
            "seed": task.seed,
            "options": dict(task.options),
        },
        "spec": dict(spec or {}),
        "policy": policy,
        "split": split,
        "step": step,
        "greedy": greedy,
        "group": group,
        "attempt": attempt,
        "opening": [message.as_dict() for message in opening],
        "turns": [_turn(turn, tokenised=tokenised) for turn in turns],
        # The observations before the last one are in the turns.
        "last_observation": ended.content if turns and ended.role == "user" else None,
        "unanswered": ended.content if len(spoken) > len(turns) else None,
        "return": trajectory.episode_return,
        "success": trajectory.success,
        "terminated": trajectory.terminated,
        "truncated": trajectory.scored and not trajectory.terminated,
        "stop_reason": trajectory.stop_reason.value,
        "error": trajectory.error,
        "num_turns": len(turns),
        "invalid_actions": trajectory.invalid_actions,
        "cut_actions": trajectory.cut_actions,
        "prompt_tokens": len(trajectory.prompt_ids) if tokenised else None,
        "completion_tokens": len(trajectory.completion_ids) if tokenised else None,
        "sampled_tokens": sum(trajectory.mask) if tokenised else None,
        "model_seconds": round(trajectory.model_seconds, 6),
        "env_seconds": round(trajectory.env_seconds, 6),
        **dict.fromkeys(_TOKENS),
    }
    if tokens and tokenised:
        record |= {name: getattr(trajectory, name) for name in ("prompt_ids", "completion_ids", "mask", "logprobs")}
        record["token_texts"] = [decode([id_]) for id_ in trajectory.completion_ids] if decode else None
    return cast(Record, record)


_TOKENS = ("prompt_ids", "completion_ids", "mask", "logprobs", "token_texts")


def _turn(turn: Turn, *, tokenised: bool) -> TurnRecord:
    return {
        "observation": turn.observation,
        "thinking": turn.answer.thinking,
        "answer": turn.answer.text,
        "action": turn.action,
        "reward": turn.reward,
        "action_valid": turn.action_valid,
        "action_cut": turn.action_cut,
        "start": turn.start if tokenised else None,
        "stop": turn.stop if tokenised else None,
    }


def messages_of(record: Record) -> list[MessageRecord]:
    """Return the whole conversation of an episode, without the model's thinking.

    >>> from gym_trl.types import Answer, Message, StopReason, Task
    >>> turn, said = Turn("Say ox.", Answer("Hm.", "ox"), 1.0, True, 0, 2), Message("user", "Repeat words. Say ox.")
    >>> messages = (said, Message("assistant", "ox"), Message("user", "Right."))
    >>> won = Trajectory(Task("TrlEnv/Echo-v0", 1), StopReason.SUCCESS, [5], [6], [1], [-0.1], (turn,), messages)
    >>> [message["content"] for message in messages_of(as_record(won))]
    ['Repeat words. Say ox.', 'ox', 'Right.']
    """
    messages = list(record["opening"])
    for index, turn in enumerate(record["turns"]):
        if index:
            messages.append({"role": "user", "content": turn["observation"]})
        messages.append({"role": "assistant", "content": turn["answer"]})
    if record["turns"] and record["last_observation"] is not None:
        messages.append({"role": "user", "content": record["last_observation"]})
    if record["unanswered"] is not None:
        messages.append({"role": "assistant", "content": record["unanswered"]})
    return messages


def read_records(path: Path) -> Iterator[Record]:
    """Yield the episodes of a JSON Lines or Parquet file, or of a run's folder.

    In a folder, the episodes of ``rollouts.jsonl`` come first, then those of ``failures.jsonl``. Missing fields, such
    as tokens in files of ``RecordTranscript``, get their defaults; unknown fields are kept. Only one episode is held in
    memory.

    Raises:
        ConfigError: there are no records, a line is not a record, or its version is not supported; the message names
            the line.
    """
    if path.is_dir():
        files = [path / name for name in (ROLLOUTS, FAILURES) if (path / name).exists()]
        if not files:
            raise ConfigError(f"{path} holds no records: there is no {ROLLOUTS} in it")
        for file in files:
            yield from read_records(file)
    elif path.suffix == ".parquet":
        yield from _read_parquet(path)
    else:
        for number, value in _numbered(path):
            yield _complete(value, f"line {number} of {path}")


def _complete(value: Mapping[str, Any], where: str) -> Record:
    """Return a record with all of its fields."""
    if not isinstance(value.get("task"), Mapping) or not isinstance(value.get("turns"), list):
        raise ConfigError(f"{where} is not the record of an episode: it needs task and turns, and has {sorted(value)}")
    if value.get("version") != VERSION:
        raise ConfigError(f"{where} is a record of version {value.get('version')!r}, and this release reads {VERSION}")
    record: dict[str, Any] = _RECORD_DEFAULTS | {"spec": {}, "opening": []} | dict(value)
    task: dict[str, Any] = _TASK_DEFAULTS | {"env_kwargs": {}, "options": {}} | dict(value["task"])
    task.setdefault("id", task_id(task["env_id"], task["seed"], env_kwargs=task["env_kwargs"], options=task["options"]))
    turns = [{"action": None, "action_cut": False, "start": None, "stop": None, **turn} for turn in value["turns"]]
    record |= {"task": task, "turns": turns}
    if record["num_turns"] is None:
        record["num_turns"] = len(turns)
    if record["invalid_actions"] is None:
        record["invalid_actions"] = sum(not turn["action_valid"] for turn in turns)
    if record["cut_actions"] is None:
        record["cut_actions"] = sum(turn["action_cut"] for turn in turns)
    return cast(Record, record)


class RecordWriter:
    """Writer that appends episodes to a folder, unscored ones to a separate file.

    >>> from tempfile import TemporaryDirectory
    >>> from gym_trl.types import StopReason, Task
    >>> failed = Trajectory(Task("TrlEnv/Echo-v0", 1), StopReason.ENV_ERROR, [], [], [], [], (), (), "it broke")
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
            _mend(folder / name)

    def __enter__(self) -> Self:
        """Return the writer, which the ``with`` block closes."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the files."""
        self.close()

    def write(self, record: Record) -> None:
        """Append an episode.

        Raises:
            OSError: the disk is full, or the file cannot be written.
        """
        name = FAILURES if record["return"] is None else ROLLOUTS
        if name not in self._writers:
            self._writers[name] = JsonLinesWriter(self._folder / name)
        self._writers[name].write(record)

    def close(self) -> None:
        """Close the files."""
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()


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
    return json.dumps(_plain(value), allow_nan=False, indent=indent)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if isinstance(value, partial):
        return [_plain(value.func), _plain(value.args), _plain(value.keywords)]
    if isinstance(value, FunctionType | type):
        return _name_of(value)
    if hasattr(value, "item") and not getattr(value, "shape", None):  # the numbers of NumPy and torch
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _name_of(code: FunctionType | type) -> str:
    """Return a name that is the same in every process, unlike ``repr`` with its addresses, to recognize a run."""
    line = f":{code.__code__.co_firstlineno}" if isinstance(code, FunctionType) else ""
    return f"{code.__module__}.{code.__qualname__}{line}"


_ENCODER = json.JSONEncoder(allow_nan=False, default=_plain)  # many times faster for plain values


class JsonLinesWriter:
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
        _mend(path)
        self._file = path.open("ab", buffering=0)

    def __enter__(self) -> Self:
        """Return the writer, which the ``with`` block closes."""
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
    """Return an iterator over the objects in a JSON Lines file, without an incomplete last line.

    Raises:
        ConfigError: any other line is not a JSON object.
    """
    return (value for _, value in _numbered(path))


def _numbered(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if (value := as_object(line)) is not None:
                yield number, value
            elif line.strip() and line.endswith(b"\n"):
                raise ConfigError(f"line {number} of {path} is not a JSON object: {line[:80]!r}")


def keep_json_lines(path: Path, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Drop unwanted objects from a file; after a crash the file is either the old or the new one."""
    write_json_lines((value for value in read_json_lines(path) if wanted(value)), path)


def write_json_lines(values: Iterable[Mapping[str, Any]], path: Path) -> int:
    """Write a file of objects and return their number; after a crash the file is either the old or the new one."""
    count = 0
    with replaced(path) as beside, beside.open("w", encoding="ascii") as file:
        for value in values:
            file.write(f"{to_json(value)}\n")
            count += 1
    return count


def replace_text(path: Path, text: str) -> None:
    """Write a text file; after a crash the file is either the old or the new one."""
    with replaced(path) as beside:
        beside.write_text(text, encoding="utf-8")


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a path to write to; the file there replaces ``path`` at the end, or is deleted after an error.

    Raises:
        OSError: it cannot be written; the error names ``path``.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    beside = path.with_name(f".{path.name}.new")
    try:
        yield beside
        beside.replace(path)
    except OSError as error:
        if str(error.filename) == str(beside):
            error.filename = str(path)
        raise
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def as_object(line: bytes) -> dict[str, Any] | None:
    """Return the object in a line of JSON; ``None`` for anything else, at any depth of nesting.

    >>> as_object(b'{"step": 1}'), as_object(b'{"ste'), as_object(b"[" * 1_000_000)
    ({'step': 1}, None, None)
    """
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _mend(path: Path) -> None:
    """Drop an incomplete last line, or add a missing line break to a complete one."""
    if not path.exists():
        return
    with path.open("r+b") as file:
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


# ---------------------------------------------------------------------------------------------------------------------
# Parquet
# ---------------------------------------------------------------------------------------------------------------------

_ROWS_AT_ONCE = 1_000
_AS_JSON = ("env_kwargs", "options", "spec")  # their keys differ between records, so they cannot be columns


def write_parquet(records: Iterable[Record], path: Path) -> int:
    """Write episodes as a table for ``datasets.load_dataset("parquet", data_files=...)``, and return their number.

    ``env_kwargs``, ``options`` and ``spec`` are JSON strings in it, fields outside the schema are left out, and lone
    surrogates, which Parquet does not support, become U+FFFD. ``read_records`` reads the table back.
    """
    try:
        import pyarrow
        from datasets import Features
        from pyarrow.parquet import ParquetWriter
    except ImportError as error:
        raise MissingDependencyError("Parquet", extra="train") from error

    schema = Features(_features()).arrow_schema
    rows, written = (_as_row(record) for record in records), 0
    with replaced(path) as beside, ParquetWriter(beside, schema) as writer:
        while batch := list(islice(rows, _ROWS_AT_ONCE)):
            writer.write_table(pyarrow.Table.from_pylist(batch, schema=schema))
            written += len(batch)
    return written


def _read_parquet(path: Path) -> Iterator[Record]:
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingDependencyError("Parquet", extra="train") from error

    with ParquetFile(path) as file:
        rows = (row for batch in file.iter_batches(_ROWS_AT_ONCE) for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            for held in (row, row.get("task") or {}):
                held |= {name: json.loads(held[name]) for name in _AS_JSON if name in held}
            yield _complete(row, f"row {number} of {path}")


def _as_row(record: Record) -> dict[str, Any]:
    row: dict[str, Any] = {name: _encodable(record.get(name)) for name in Record.__annotations__}
    for held in (row, row["task"]):
        held |= {name: to_json(held[name]) for name in _AS_JSON if name in held}
    return row


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, Mapping):
        return {name: _encodable(held) for name, held in value.items()}
    if isinstance(value, Sequence):
        return value if value and isinstance(value[0], int) else [_encodable(held) for held in value]
    return value


def _features() -> dict[str, Any]:
    """Return the columns of a table of records, from the types of the schema's fields."""
    from datasets import List, Value

    text, whole, real, truth = Value("string"), Value("int64"), Value("float64"), Value("bool")
    return {
        **dict.fromkeys(("version", "step", "group", "attempt", "num_turns", "invalid_actions", "cut_actions"), whole),
        **dict.fromkeys(("prompt_tokens", "completion_tokens", "sampled_tokens"), whole),
        **dict.fromkeys(("spec", "policy", "split", "last_observation", "unanswered", "stop_reason", "error"), text),
        **dict.fromkeys(("greedy", "success", "terminated", "truncated"), truth),
        **dict.fromkeys(("return", "model_seconds", "env_seconds"), real),
        "task": {**dict.fromkeys(("id", "env_id", "env_kwargs", "options"), text), "seed": whole},
        "opening": List({"role": text, "content": text}),
        "turns": List(
            {
                **dict.fromkeys(("observation", "thinking", "answer", "action"), text),
                "reward": real,
                **dict.fromkeys(("action_valid", "action_cut"), truth),
                "start": whole,
                "stop": whole,
            }
        ),
        **{name: List(whole) for name in ("prompt_ids", "completion_ids", "mask")},
        "logprobs": List(real),
        "token_texts": List(text),
    }
