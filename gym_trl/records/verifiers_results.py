"""Results of verifiers as records: ``traces.jsonl`` of version 0.4, and ``results.jsonl`` of versions before it."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError, TranscriptError
from gym_trl.records.foreign import (
    Importer,
    Outcome,
    Said,
    finite,
    foreign_record,
    foreign_task,
    text_of,
    with_calls,
)
from gym_trl.records.json_lines import as_object, numbered
from gym_trl.records.schema import Record
from gym_trl.types import StopReason, TokenTrace

TRACES, RESULTS = "traces.jsonl", "results.jsonl"
_LIMITS = {
    "max_turns": StopReason.TURN_LIMIT,
    "max_turns_reached": StopReason.TURN_LIMIT,
    "prompt_too_long": StopReason.CONTEXT_OVERFLOW,
    "max_input_tokens": StopReason.CONTEXT_OVERFLOW,
    "max_output_tokens": StopReason.TOKEN_LIMIT,
    "max_total_tokens": StopReason.TOKEN_LIMIT,
    "timeout_reached": StopReason.TIME_LIMIT,
}
"""Stop conditions that are limits; other truncated episodes have ``TOKEN_LIMIT``."""


def read_verifiers(path: Path) -> Iterator[Record]:
    """Yield the episodes of an evaluation by verifiers.

    ::

        for record in read_verifiers(Path("outputs/my-env--my-model--chat--1a2b")):
            print(record["task"]["id"], record["return"])

    Both formats are told apart by their lines. The return is the weighted sum of the rewards, which is the last turn's
    reward, because verifiers has none of single turns; ``scores`` has the single ones, ``metrics`` the metrics, and
    ``stop_condition`` the reason in verifiers' words. Success is not declared there, so it is ``None``. An episode with
    an error is unscored.

    Traces of version 0.4 have token ids, masks and logprobs where the model was asked with a renderer; these are kept.
    All others have none. A trace with several branches is the last of them, as in verifiers, and ``branches`` is their
    number; a trace of each agent is a record of its own, with ``agent``, its name.

    Args:
        path: Folder that ``vf-eval`` has written, or its ``traces.jsonl`` or ``results.jsonl``.

    Raises:
        ConfigError: the file has lines of another kind; the message names the line.
    """
    file = next((path / name for name in (TRACES, RESULTS) if (path / name).is_file()), path)
    groups: dict[str, int] = {}
    attempts: dict[tuple[str, str], int] = {}
    evaluation = _metadata(file)
    for number, line in numbered(file):
        where = f"line {number} of {file}"
        try:
            if isinstance(line.get("traces"), list):
                episodes = [_of_trace(trace, line) for trace in line["traces"]] or [_without_trace(line)]
            elif "completion" in line and "reward" in line:
                episodes = [_of_result(line, evaluation)]
            else:
                raise ConfigError(
                    f"{where} is no result of verifiers, which has traces, or completion and reward; it has "
                    f"{', '.join(sorted(line))[:200]}"
                )
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError, RecursionError) as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(f"{where} is a damaged result of verifiers: {type(error).__name__}: {error}") from error
        for record in episodes:
            name = record["task"]["id"]
            key = (name, str(record.get("agent")))
            record["group"] = groups.setdefault(name, len(groups))
            record["attempt"] = attempts[key] = attempts.get(key, -1) + 1
            yield record


def _metadata(file: Path) -> Mapping[str, Any]:
    """Return ``metadata.json`` beside a file of results, or nothing."""
    try:
        return as_object(file.with_name("metadata.json").read_bytes()) or {}
    except OSError:
        return {}


# ---------------------------------------------------------------------------------------------------------------------
# results.jsonl, before version 0.4
# ---------------------------------------------------------------------------------------------------------------------


def _of_result(line: Mapping[str, Any], evaluation: Mapping[str, Any]) -> Record:
    prompt, completion = _messages(line.get("prompt"), "user"), _messages(line.get("completion"), "assistant")
    error, value = line.get("error"), finite(line.get("reward"))
    if isinstance(error, Mapping):
        error = error.get("error_chain_repr") or error.get("error")
    metrics = line.get("metrics") or {}
    return foreign_record(
        [*prompt, *completion],
        _outcome(value, error, line.get("stop_condition"), truncated=bool(line.get("is_truncated"))),
        source="verifiers",
        task=foreign_task(str(evaluation.get("env_id") or "verifiers"), _name(line.get("example_id"))),
        given=len(prompt),
        policy=evaluation.get("model"),
        split="eval",
        metrics=metrics if isinstance(metrics, Mapping) else {},
        stop_condition=line.get("stop_condition"),
        sampled_tokens=_whole((line.get("token_usage") or {}).get("output_tokens")),
    )


def _messages(messages: Any, role: str) -> list[Said]:
    if isinstance(messages, str):  # of a model that completes texts
        return [Said(role, messages)]
    return [_said(message) for message in messages or []]


def _said(message: Mapping[str, Any]) -> Said:
    content = message.get("content")
    thinking, text = text_of(content)
    calls = [_call(call) for call in message.get("tool_calls") or []]
    text, action = with_calls(text, calls)
    thinking = message.get("reasoning_content") or thinking
    return Said(str(message["role"]), text, thinking=thinking, action=action)


def _call(call: Any) -> tuple[str, Any]:
    parsed = as_object(call.encode()) if isinstance(call, str) else call  # older versions write calls as JSON texts
    function = (parsed or {}).get("function") or parsed or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # a model may write anything
            arguments = json.loads(arguments)
    return str(function.get("name")), arguments


# ---------------------------------------------------------------------------------------------------------------------
# traces.jsonl, version 0.4
# ---------------------------------------------------------------------------------------------------------------------


def _of_trace(trace: Mapping[str, Any], episode: Mapping[str, Any]) -> Record:
    nodes = trace.get("nodes") or []
    path = _last_branch(nodes)
    ids, spans = _tokens(path)
    messages = [_said(node["message"])._replace(sampled=span) for node, span in zip(path, spans, strict=True)]
    paid = {name: reward for name, reward in (trace.get("rewards") or {}).items() if reward}
    error = None if trace.get("ok") else _last_error(trace)
    stop = trace.get("stop_condition")
    calls = [call for call in trace.get("calls") or [] if not call.get("error")]
    last = calls[-1] if calls else {}
    used = [call["usage"]["completion_tokens"] for call in calls if call.get("usage")]
    agent, work = trace.get("agent") or {}, (episode.get("run") or {}).get("work") or {}
    fields: dict[str, Any] = {
        "sampled_tokens": sum(used) if used and len(used) == len(calls) else None,
        "policy": (agent.get("config") or {}).get("model") or last.get("model"),
        "split": work.get("type") or "eval",
        "step": work.get("step"),
        "agent": agent.get("name"),
        "scores": {name: finite(reward["score"]) for name, reward in paid.items()},
        "metrics": trace.get("metrics") or {},
        "stop_condition": stop,
    }
    if (leaves := len(nodes) - len({node["parent"] for node in nodes if node.get("parent") is not None})) > 1:
        fields["branches"] = leaves
    cut = stop in _LIMITS or last.get("finish_reason") == "length"
    return foreign_record(
        messages,
        _outcome(_return(paid.values()), error, stop, truncated=cut, timeout=bool(trace.get("is_timeout"))),
        source="verifiers",
        task=_task(trace.get("task") or episode.get("task") or {}, episode),
        given=next((index for index, node in enumerate(path) if node.get("sampled")), len(path)),
        trace=ids,
        **fields,
    )


def _return(rewards: Iterable[Mapping[str, Any]]) -> float | None:
    values = [finite(reward["score"] * reward.get("weight", 1.0)) for reward in rewards]
    return None if None in values or not values else sum(value for value in values if value is not None)


def _without_trace(episode: Mapping[str, Any]) -> Record:
    error = _last_error(episode) or "the episode has no trace"
    outcome = _outcome(None, error, None, timeout=bool(episode.get("is_timeout")))
    return foreign_record([], outcome, source="verifiers", task=_task(episode.get("task") or {}, episode), split="eval")


def _last_error(failed: Mapping[str, Any]) -> str | None:
    errors = failed.get("errors")
    return f"{errors[-1]['type']}: {errors[-1]['message']}" if errors else None


def _task(task: Mapping[str, Any], episode: Mapping[str, Any]) -> dict[str, Any]:
    data = task.get("data") or {}
    name = data.get("idx", data.get("name"))
    environment = (episode.get("env") or {}).get("id") or task.get("type") or "verifiers"
    return foreign_task(str(environment), _name(task.get("key") or task.get("hash") if name is None else name))


def _last_branch(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages from a root to the last leaf; a parent always stands before its children."""
    path: list[dict[str, Any]] = []
    index = len(nodes) - 1  # the last node has no child
    while index >= 0:
        path.append(nodes[index])
        parent = nodes[index].get("parent")
        if parent is not None and not 0 <= parent < index:
            raise ValueError(f"node {index} has the parent {parent}, which is not before it")
        index = -1 if parent is None else parent
    return path[::-1]


def _tokens(path: list[dict[str, Any]]) -> tuple[TokenTrace | None, Sequence[tuple[int, int] | None]]:
    """Return the ids of a branch, if all of its sampled messages have theirs, and where those were sampled."""
    unknown = None, [None] * len(path)
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float | None] = []
    spans: list[tuple[int, int] | None] = []
    for node in path:
        node_ids, sampled = node.get("token_ids") or [], [int(one) for one in node.get("mask") or []]
        node_logprobs = node.get("logprobs") or []
        if len(sampled) != len(node_ids) or (
            node.get("sampled") and not (node_logprobs and sum(sampled) == len(node_logprobs))
        ):
            return unknown
        start = len(ids) + (sampled.index(1) if 1 in sampled else 0)
        ids += node_ids
        rest = iter(node_logprobs)
        logprobs += [float(next(rest)) if one else 0.0 for one in sampled]
        mask += sampled
        spans.append((start, start + len(node_logprobs)) if node.get("sampled") else None)
    if 1 not in mask:
        return unknown
    first, last = mask.index(1), len(mask) - mask[::-1].index(1)
    try:
        trace = TokenTrace(ids[:first], ids[first:last], mask[first:last], logprobs[first:last])
    except TranscriptError:
        return unknown
    return trace, [span and (span[0] - first, span[1] - first) for span in spans]


def _outcome(value: float | None, error: Any, stop: Any, *, truncated: bool = False, timeout: bool = False) -> Outcome:
    if error is not None or timeout or value is None:
        reason = StopReason.TIMEOUT if timeout else StopReason.ENV_ERROR
        return Outcome(reason, None, error=str(error or stop or "the episode has no reward"))
    if truncated or stop in _LIMITS:
        return Outcome(_LIMITS.get(str(stop), StopReason.TOKEN_LIMIT), value)
    return Outcome(StopReason.TERMINATED, value)


def _name(value: Any) -> str | int:
    return value if isinstance(value, str | int) else "unknown"


def _whole(value: Any) -> int | None:
    return int(number) if (number := finite(value)) is not None else None


def _fits(path: Path) -> bool:
    return any((path / name).is_file() for name in (TRACES, RESULTS)) if path.is_dir() else path.suffix == ".jsonl"


IMPORTER = Importer(f"an evaluation by verifiers ({TRACES}, {RESULTS} or their folder)", _fits, read_verifiers)
