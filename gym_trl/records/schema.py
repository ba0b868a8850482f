"""Episodes on disk: one schema for training and evaluation, appended line by line and readable after a crash."""

import json
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any, TypedDict, cast

from gym_trl.episode import Episode, Segment, Turn
from gym_trl.errors import ConfigError
from gym_trl.records.fields import Fields
from gym_trl.records.json_lines import plain
from gym_trl.types import Message, TokenIds

VERSION = 1
ROLLOUTS, FAILURES = "rollouts.jsonl", "failures.jsonl"
"""Files of a folder: scored and unscored episodes."""
CREDIT = "credit.jsonl"
"""File of a run with the advantages of recorded episodes' turns, which are known only after they are recorded."""

# ---------------------------------------------------------------------------------------------------------------------
# Schema, explained in docs/records.md
# ---------------------------------------------------------------------------------------------------------------------


class TaskRecord(TypedDict):
    """Task of an episode; ``docs/records.md`` explains its fields, and those of the other types."""

    id: str
    env_id: str | None
    env_kwargs: dict[str, Any]
    seed: int | None
    options: dict[str, Any]


class MessageRecord(TypedDict):
    """Message with the fields that chat templates use."""

    role: str
    content: str


class SegmentRecord(TypedDict):
    """Beginning of a further segment of an episode: where its prompt is among the ids, and its first turn."""

    start: int
    stop: int
    turn: int


class TurnRecord(TypedDict):
    """One response of the model and the step that it caused."""

    observation: str
    thinking: str
    answer: str
    action: str | None
    reward: float
    action_valid: bool
    action_cut: bool
    start: int | None
    stop: int | None


# "return" is a keyword, so it cannot be named in the body of a class.
_Return = TypedDict("_Return", {"return": float | None})


class Record(_Return):
    """One episode as plain JSON values; ``docs/records.md`` explains each field."""

    version: int
    task: TaskRecord
    spec: dict[str, Any]
    policy: str | None
    split: str | None
    step: int | None
    greedy: bool | None
    group: int | None
    attempt: int
    seat: int | None
    opening: list[MessageRecord]
    turns: list[TurnRecord]
    last_observation: str | None
    unanswered: str | None
    success: bool | None
    terminated: bool
    truncated: bool
    stop_reason: str
    error: str | None
    num_turns: int
    invalid_actions: int
    prompt_tokens: int | None
    completion_tokens: int | None
    sampled_tokens: int | None
    model_seconds: float | None
    env_seconds: float | None
    prompt_ids: list[int] | None
    completion_ids: list[int] | None
    mask: list[int] | None
    logprobs: list[float | None] | None
    token_texts: list[str] | None
    segments: list[SegmentRecord] | None


class CreditRecord(TypedDict):
    """Advantages of the turns of one recorded episode: the one with the same step, split, group and attempt."""

    step: int
    split: str
    group: int
    attempt: int
    advantages: list[float]


_RECORD_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(Record.__annotations__.keys() - {"version", "task", "turns"}),
    "spec": {},
    "opening": [],
    "attempt": 0,
    "terminated": False,
    "truncated": False,
}
_TASK_DEFAULTS: dict[str, Any] = {"id": "", "env_id": None, "env_kwargs": {}, "seed": None, "options": {}}
_TURN_DEFAULTS: dict[str, Any] = {"action": None, "action_cut": False, "start": None, "stop": None}
_RECORD = Fields(Record, _RECORD_DEFAULTS, apart="turns")
_TASK = Fields(TaskRecord, _TASK_DEFAULTS)
_TURN = Fields(TurnRecord, _TURN_DEFAULTS)
_COUNTS = ("prompt_tokens", "completion_tokens", "sampled_tokens")
_IDS = ("prompt_ids", "completion_ids", "mask", "logprobs")
_TOKENS = (*_IDS, "token_texts")


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
    arguments = json.dumps([plain(env_kwargs or {}), plain(options or {})], sort_keys=True)
    return f"{name}#{blake2b(arguments.encode(), digest_size=4).hexdigest()}"


def env_of(record: Mapping[str, Any]) -> str:
    """Return a name of an episode's environment, with its arguments and the definition of success, as plain JSON.

    >>> from gym_trl.types import Task
    >>> env_of(as_record(Episode(Task("Echo-v0", 1)), env_kwargs={"turns": 3}))
    '["Echo-v0", {"turns": 3}, null]'
    """
    task = record["task"]
    named = [task["env_id"], task["env_kwargs"], record["spec"].get("success")]
    return json.dumps(plain(named), sort_keys=True)


def as_record(
    episode: Episode,
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
    """Return the record of an episode as plain JSON values, with ``extra`` added.

    >>> from gym_trl.types import StepResult, Task
    >>> episode = Episode(Task("TrlEnv/Echo-v0", 1))
    >>> episode.begin(StepResult("Say ox."))
    >>> episode.answer("ox")
    >>> episode.step(StepResult("Yes.", reward=1.0, terminated=True))
    >>> record = as_record(episode, step=3, policy="tiny")
    >>> record["version"], record["step"], record["return"], record["turns"][0]["answer"], record["task"]["id"]
    (1, 3, 1.0, 'ox', 'TrlEnv/Echo-v0#1')

    Args:
        episode: Finished episode.
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
    task = episode.task
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
        **_episode_fields(episode),
    }
    if episode.segments:
        row = episode.row
        record |= _token_fields(row, ids=tokens)
        if tokens and decode:
            record["token_texts"] = [decode([id_]) for id_ in row.completion_ids]
    return cast(Record, record)


def _episode_fields(episode: Episode) -> dict[str, Any]:
    messages, turns, starts = episode.messages, episode.turns, episode.starts
    responses = [index for index, message in enumerate(messages) if message.role == "assistant"]
    opening = messages[: responses[0]] if responses else messages
    unanswered = messages[-1].content if len(responses) > len(turns) else None
    last = messages[-1 if unanswered is None else -2] if turns and messages else Message("", "")
    return {
        "seat": episode.seat,
        "opening": [message.as_dict() for message in opening],
        "turns": [_turn(turn, starts) for turn in turns],
        # The observations before the last one are in the turns.
        "last_observation": last.content if last.role == "user" else None,
        "unanswered": unanswered,
        "return": episode.episode_return,
        "success": episode.success,
        "terminated": episode.terminated,
        "truncated": episode.scored and not episode.terminated,
        "stop_reason": str(episode.stop_reason or ""),
        "error": episode.error,
        "num_turns": len(turns),
        "invalid_actions": episode.invalid_actions,
        **dict.fromkeys(_COUNTS),
        "model_seconds": round(episode.model_seconds, 6),
        "env_seconds": round(episode.env_seconds, 6),
        **dict.fromkeys(_TOKENS),
        "segments": _segments(episode) or None,
    }


def _segments(episode: Episode) -> list[SegmentRecord]:
    """Return where the prompts of further segments are in the completion of the row."""
    first: dict[int, int] = {}  # turn that begins in a segment
    for number, turn in enumerate(episode.turns):
        for span in turn.spans:
            first.setdefault(span.segment, number)
    places = zip(episode.starts, episode.segments, strict=True)
    return [
        {"start": start - len(segment.prompt_ids), "stop": start, "turn": first.get(number, len(episode.turns))}
        for number, (start, segment) in enumerate(places)
        if number
    ]


def _token_fields(row: Segment, *, ids: bool) -> dict[str, Any]:
    """Return the fields of a record with the numbers of tokens and, if ``ids``, the tokens themselves."""
    counts = len(row.prompt_ids), len(row.completion_ids), sum(row.mask)
    rows = (row.prompt_ids, row.completion_ids, row.mask, row.logprobs) if ids else ()
    return dict(zip(_COUNTS, counts, strict=True)) | dict(zip(_IDS, rows, strict=False))


def _turn(turn: Turn, starts: list[int]) -> TurnRecord:
    places = [(starts[span.segment] + span.start, starts[span.segment] + span.stop) for span in turn.spans[-1:]]
    start, stop = places[0] if places else (None, None)
    return {
        "observation": turn.observation,
        "thinking": turn.answer.thinking,
        "answer": turn.answer.text,
        "action": turn.action,
        "reward": turn.reward,
        "action_valid": turn.action_valid,
        "action_cut": turn.action_cut,
        "start": start,
        "stop": stop,
    }


def messages_of(record: Record) -> list[MessageRecord]:
    r"""Return the whole conversation of an episode, without the model's thinking.

    >>> from gym_trl.types import Answer, StepResult, Task
    >>> episode = Episode(Task("TrlEnv/Echo-v0", 1))
    >>> episode.begin(StepResult("Say ox.", instructions="Repeat words."))
    >>> episode.answer(Answer("Hm.", "ox"))
    >>> episode.step(StepResult("Right.", terminated=True))
    >>> [message["content"] for message in messages_of(as_record(episode))]
    ['Repeat words.\n\nSay ox.', 'ox', 'Right.']
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


def complete(value: Mapping[str, Any], where: str) -> Record:
    """Return a record with all of its fields, each with a value of its type; other fields are kept as they are.

    Raises:
        ConfigError: it is no record, or one of another version; the message begins with ``where`` and names the field.
    """
    if not isinstance(value.get("task"), dict) or not isinstance(value.get("turns"), list):
        raise ConfigError(f"{where} is not a record of an episode: it needs task and turns, got {sorted(value)!r:.300}")
    if value.get("version") != VERSION:
        raise ConfigError(
            f"{where} is a record of version {value.get('version')!r:.40}, but this release reads version {VERSION}"
        )
    record = _RECORD.completed(value)
    task, turns = _TASK.completed(value["task"]), value["turns"]
    if {*map(type, turns)} <= {dict}:
        turns = [*map(_TURN.completed, turns)]
    record["task"], record["turns"] = task, turns
    if problem := _problem(task, turns, record):
        raise ConfigError(f"{where} is not a record of an episode: {problem}")
    if "id" not in value["task"]:
        task["id"] = task_id(task["env_id"], task["seed"], env_kwargs=task["env_kwargs"], options=task["options"])
    if record["num_turns"] is None:
        record["num_turns"] = len(turns)
    if record["invalid_actions"] is None:
        record["invalid_actions"] = sum(not turn["action_valid"] for turn in turns)
    return cast(Record, record)


def _problem(task: dict[str, Any], turns: list[Any], record: dict[str, Any]) -> str | None:
    """Return what is wrong with a completed record, and with its task and turns."""
    if problem := _TASK.problem(task):
        return f"task.{problem[1]}"
    if not {*map(type, turns)} <= {dict}:
        return "turns must be a list of objects"
    if problem := _TURN.problem(*turns):
        return f"turns[{problem[0]}].{problem[1]}"
    problem = _RECORD.problem(record)
    return problem and problem[1]
