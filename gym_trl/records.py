"""Episodes on disk: one JSON object a line, the same for training, evaluation and the viewer.

A run or an evaluation has the file ``rollouts.jsonl``. Each episode is appended in one write, so that a crash breaks at
most the last line, which readers skip. ``docs/runs.md`` explains the fields.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from gym_trl.episode import Episode, Turn
from gym_trl.errors import ConfigError
from gym_trl.types import LARGEST

ROLLOUTS = "rollouts.jsonl"
"""File of the episodes of a run, also of those that failed."""
VERSION = 1

Record: TypeAlias = dict[str, Any]
"""One episode as plain JSON values; also fields that this release does not know."""


def record_of(
    episode: Episode, *, env_kwargs: Mapping[str, Any] | None = None, tokens: bool = False, **extra: Any
) -> Record:
    """Return the record of an episode.

    >>> from gym_trl.types import StepResult, Task
    >>> episode = Episode(Task("TrlEnv/Echo-v0", 1))
    >>> episode.begin(StepResult("Say ox."))
    >>> episode.answer("ox")
    >>> episode.step(StepResult("Yes.", reward=1.0, terminated=True))
    >>> record = record_of(episode, step=3, policy="tiny")
    >>> record["step"], record["return"], record["turns"][0]["answer"], record["task"]["id"]
    (3, 1.0, 'ox', 'TrlEnv/Echo-v0#1')

    Args:
        episode: Finished episode.
        env_kwargs: Arguments that its environment was made with.
        tokens: Record the token ids, the mask and the logprobs, not only their numbers.
        extra: Further fields, such as ``policy``, ``split``, ``step``, ``group``, ``attempt``, ``spec``, and
            ``advantages``, which has one number per turn.
    """
    task, row, starts = episode.task, episode.row, episode.starts
    last = episode.messages[-1] if episode.turns else None
    record = {
        "version": VERSION,
        "task": {
            "id": task_id(task.env_id, task.seed, env_kwargs=env_kwargs, options=task.options),
            "env_id": task.env_id,
            "env_kwargs": dict(env_kwargs or {}),
            "seed": task.seed,
            "options": dict(task.options),
        },
        **dict.fromkeys(("policy", "split", "step", "group")),
        "attempt": 0,
        "seat": episode.seat,
        "opening": [message.as_dict() for message in episode.messages[: episode.opening or None]],
        "turns": [_turn(turn, starts) for turn in episode.turns],
        "last_observation": last.content if last and last.role == "user" else None,
        "return": episode.episode_return,
        "success": episode.success,
        "terminated": episode.last.terminated,
        "truncated": episode.scored and not episode.last.terminated,
        "stop_reason": str(episode.stop_reason or ""),
        "error": episode.error,
        "num_turns": len(episode.turns),
        "invalid_actions": episode.invalid_actions,
        "prompt_tokens": len(row.prompt_ids) if episode.segments else None,
        "completion_tokens": len(row.mask) if episode.segments else None,
        "sampled_tokens": sum(row.mask) if episode.segments else None,
        "model_seconds": round(episode.model_seconds, 6),
        "env_seconds": round(episode.env_seconds, 6),
        "segments": _further_segments(episode),
        **extra,
    }
    if tokens and episode.segments:
        for name in ("prompt_ids", "completion_ids", "mask", "logprobs"):
            record[name] = list(getattr(row, name))
    return record


def _turn(turn: Turn, starts: Sequence[int]) -> dict[str, Any]:
    span = turn.spans[-1] if turn.spans else None
    return {
        "observation": turn.observation,
        "thinking": turn.answer.thinking,
        "answer": turn.answer.text,
        "action": turn.action,
        "reward": turn.reward,
        "action_valid": turn.action_valid,
        "action_cut": turn.action_cut,
        "start": starts[span.segment] + span.start if span else None,
        "stop": starts[span.segment] + span.stop if span else None,
    }


def _further_segments(episode: Episode) -> list[dict[str, int]]:
    """Return where the prompts of the second and later segments are in the row, and the first turn of each."""
    first: dict[int, int] = {}
    for number, turn in enumerate(episode.turns):
        for span in turn.spans:
            first.setdefault(span.segment, number)
    return [
        {"start": start - len(segment.prompt_ids), "stop": start, "turn": first.get(number, len(episode.turns))}
        for number, (start, segment) in enumerate(zip(episode.starts, episode.segments, strict=True))
        if number
    ]


def task_id(
    env_id: str,
    seed: int | None,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> str:
    """Return a short name of a task, different for different tasks.

    >>> task_id("TrlEnv/Echo-v0", 3), task_id("TrlEnv/GuessNumber-v0", 3, env_kwargs={"high": 8})
    ('TrlEnv/Echo-v0#3', 'TrlEnv/GuessNumber-v0#3#7e71c576')
    """
    if not env_kwargs and not options:
        return f"{env_id}#{seed}"
    arguments = to_json([env_kwargs or {}, options or {}], sort_keys=True)
    return f"{env_id}#{seed}#{blake2b(arguments.encode(), digest_size=4).hexdigest()}"


def env_of(record: Mapping[str, Any]) -> str:
    """Return a name of an episode's environment, with its arguments and the definition of success, as plain JSON."""
    task = record["task"]
    return to_json([task["env_id"], task["env_kwargs"], record["spec"].get("success")], sort_keys=True)


def append(path: Path, values: Iterable[Mapping[str, Any]]) -> None:
    """Append objects to a file of JSON lines in one write, after ending a line that a crash has cut off."""
    text = "".join(f"{to_json(value)}\n" for value in values)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            text = text if file.read(1) == b"\n" else "\n" + text
        file.write(text.encode("ascii"))


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Provide a file that replaces ``path`` at the end; after a crash that is either the old or the new one."""
    beside = path.with_name(f".{path.name}.new")
    try:
        with beside.open("wb") as file:
            yield file
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as a file of JSON, which is replaced as a whole."""
    with replaced(path) as file:
        file.write(to_json(value, indent=2).encode("ascii"))


def to_json(value: Any, *, indent: int | None = None, sort_keys: bool = False) -> str:
    r"""Return JSON in ASCII, which preserves lone surrogates; infinity and NaN become ``null``.

    >>> to_json({"text": "\ud800", "loss": float("nan"), "at": Path("runs")})
    '{"text": "\\ud800", "loss": null, "at": "runs"}'
    """
    try:
        return json.dumps(value, allow_nan=False, indent=indent, sort_keys=sort_keys)
    except (TypeError, ValueError):  # it has values that JSON does not have
        return json.dumps(_plain(value), allow_nan=False, indent=indent, sort_keys=sort_keys)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(held) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(held) for held in value]
    if hasattr(value, "tolist"):  # NumPy's and torch's
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if callable(value) and hasattr(value, "__qualname__"):  # a name that is the same in each process
        return f"{value.__module__}:{value.__qualname__}"
    return value if value is None or isinstance(value, str | int) else str(value)


_TASK: dict[str, Any] = {"id": None, "env_id": "", "env_kwargs": {}, "seed": None, "options": {}}
_MESSAGE = {"role": "", "content": ""}
_TURN = {
    "observation": "",
    "thinking": "",
    "answer": "",
    "action": None,
    "reward": 0.0,
    "action_valid": True,
    "action_cut": False,
    "start": None,
    "stop": None,
}
_NUMBERS = ("step", "group", "seat", "return", "start", "stop")
_LISTS = ("prompt_ids", "completion_ids", "mask", "logprobs", "advantages")
_ANYTHING = ("policy", "split", "last_observation", "error", "prompt_text", "token_texts")
_RECORD: dict[str, Any] = {
    "task": {},
    "spec": {},
    "opening": [],
    "turns": [],
    "segments": [],
    **dict.fromkeys(("attempt", "num_turns", "invalid_actions"), 0),
    **dict.fromkeys(("terminated", "truncated"), False),
    "stop_reason": "",
    **dict.fromkeys(("success", *_NUMBERS[:4], *_LISTS, *_ANYTHING)),
    **dict.fromkeys(("prompt_tokens", "completion_tokens", "sampled_tokens")),
}
"""Defaults of the fields, which have the type of their default."""
_KINDS: dict[str, type] = {**dict.fromkeys(_NUMBERS, float), **dict.fromkeys(_LISTS, list), "success": bool}
"""Types of fields whose default is ``None``; others can be anything."""


def read_records(source: str | PathLike[str], *, broken: list[int] | None = None) -> Iterator[Record]:
    """Yield the episodes of a folder, or of a file of JSON lines.

    Missing fields get their defaults, and unknown fields are kept. Lines that are no record, such as one that a crash
    has cut off, are skipped; their numbers are added to ``broken``. Only one episode is held in memory.

    Raises:
        ConfigError: There is no such file, or a record has another version.
    """
    path = Path(source)
    path = path / ROLLOUTS if path.is_dir() else path
    if not path.is_file():
        raise ConfigError(f"{source} has no records: there is no file {path}")
    for number, value in read_lines(path, broken=broken):
        if (record := _completed(value)) is not None:
            yield record
        elif broken is not None:
            broken.append(number)


def read_lines(path: Path, *, broken: list[int] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a file of JSON lines with the numbers of their lines, from 1; other lines are skipped."""
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if isinstance(value, dict):
                yield number, value
            elif broken is not None and line.strip():
                broken.append(number)


def _completed(value: Mapping[str, Any]) -> Record | None:
    """Return a record with all fields; ``None`` for an object that is none.

    Raises:
        ConfigError: It has another version.
    """
    task, turns, opening = _filled(value.get("task"), _TASK), value.get("turns"), value.get("opening", [])
    if task is None or not isinstance(turns, list) or not isinstance(opening, list):
        return None
    if value.get("version") != VERSION:
        raise ConfigError(
            f"a record has version {value.get('version')!r:.20}, but this release reads version {VERSION}"
        )
    turns, opening = [_filled(one, _TURN) for one in turns], [_filled(one, _MESSAGE) for one in opening]
    if None in turns or None in opening:
        return None
    if task["id"] is None:
        task["id"] = task_id(task["env_id"], task["seed"], env_kwargs=task["env_kwargs"], options=task["options"])
    counts = {"num_turns": len(turns), "invalid_actions": sum(not turn["action_valid"] for turn in turns if turn)}
    return _filled({**counts, **value, "task": task, "opening": opening, "turns": turns}, _RECORD)


def _filled(value: Any, usual: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an object with all fields that are usual; ``None`` if it is none, or if one has another type."""
    if not isinstance(value, dict):
        return None
    filled = {**usual, **value}
    for name, default in usual.items():
        kind = _KINDS.get(name, object) if default is None else type(default)
        field = filled[name]
        has_kind = is_number(field) if kind in (int, float) else isinstance(field, kind)
        if not has_kind and (field is not None or default is not None):
            return None
    return filled


def is_number(value: Any) -> bool:
    """Return whether a value is a number that counts as a reward, and not too large a one; truth values are none.

    >>> is_number(2), is_number(True), is_number(1e308), is_number(float("nan")), is_number(10**400)
    (True, False, False, False, False)
    """
    return type(value) in (int, float) and abs(value) <= LARGEST


def messages_of(record: Mapping[str, Any], *, thinking: bool = False) -> list[dict[str, str]]:
    """Return the conversation of an episode, up to its last response.

    Args:
        record: The episode.
        thinking: Put the thinking before the answer, between ``<think>`` and ``</think>``.
    """
    messages = list(record["opening"])
    for number, turn in enumerate(record["turns"]):
        if number:
            messages.append({"role": "user", "content": turn["observation"]})
        thought = f"<think>\n{turn['thinking']}\n</think>\n\n" if thinking and turn["thinking"] else ""
        messages.append({"role": "assistant", "content": thought + turn["answer"]})
    return messages


def sft_rows(
    records: Iterable[Record], *, min_return: float | None = None, thinking: bool = False
) -> list[dict[str, Any]]:
    """Return conversations for TRL's ``SFTTrainer``, each ending with the model's last response.

    Args:
        records: Episodes; a training's evaluation episodes are left out.
        min_return: Least return. Default: the episodes that were solved.
        thinking: As in ``messages_of``.

    Returns:
        Rows ``{"messages": [{"role", "content"}, ...]}``, for ``datasets.Dataset.from_list``.
    """
    return [
        {"messages": messages_of(record, thinking=thinking)}
        for record in filter(_is_trainable, records)
        if (record["success"] if min_return is None else record["return"] >= min_return)
    ]


def preference_rows(records: Iterable[Record], *, thinking: bool = False) -> list[dict[str, Any]]:
    """Return pairs for TRL's ``DPOTrainer``: the best and the worst episode of each task, if their returns differ.

    In games of several seats these are the best and the worst episode of a seat.

    Args:
        records: Episodes; a training's evaluation episodes are left out.
        thinking: As in ``messages_of``.

    Returns:
        Rows ``{"prompt", "chosen", "rejected"}``, each a list of ``{"role", "content"}``, for
        ``datasets.Dataset.from_list``.
    """
    sides: dict[str, tuple[Record, Record]] = {}
    for record in filter(_is_trainable, records):
        # Only conversations with the same opening can be compared.
        key = to_json([record["task"]["id"], record["seat"], record["opening"]])
        best, worst = sides.get(key, (record, record))
        best = record if record["return"] > best["return"] else best
        sides[key] = best, record if record["return"] < worst["return"] else worst
    rows = []
    for best, worst in sides.values():
        if best["return"] > worst["return"]:
            prompt = best["opening"]
            chosen, rejected = (messages_of(one, thinking=thinking)[len(prompt) :] for one in (best, worst))
            rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected})
    return rows


def _is_trainable(record: Record) -> bool:
    """Return whether an episode is scored and has not evaluated a training."""
    held_out = record["split"] == "eval" and record["step"] is not None
    return record["return"] is not None and bool(record["turns"]) and not held_out
