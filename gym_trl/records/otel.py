"""Records as traces of OpenTelemetry, with the attributes of its conventions for generative AI."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from gym_trl.records.files import is_failure, read_records
from gym_trl.records.foreign import finite
from gym_trl.records.json_lines import encodable, plain, to_json, write_json_lines
from gym_trl.records.schema import (
    DETAILS,
    FAILURES,
    ROLLOUTS,
    Record,
    SegmentRecord,
    TurnRecord,
    describe_end,
    given_tokens,
    without_tokens,
)
from gym_trl.text.textify import counted
from gym_trl.types import StopReason

LONGEST = 2**19
"""Characters in the spans of a line; further spans of an episode are in further lines."""
_ESTIMATED = ["times of day", "duration of chat", "duration of execute_tool"]
_EPISODE = {*DETAILS, "policy", "success", "num_turns", "model_seconds", "env_seconds"}


def write_otel(source: Path, path: Path) -> int:
    """Write episodes as traces of OpenTelemetry, in OTLP's JSON lines, and return the number of traces.

    >>> from tempfile import TemporaryDirectory
    >>> from gym_trl import evaluate
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "spans.jsonl")
    ...     _ = evaluate("TrlEnv/Echo-v0", "solver", episodes=2, out=Path(folder, "echo"))
    ...     count = write_otel(Path(folder, "echo"), path)
    ...     line = json.loads(path.read_text().splitlines()[0])
    >>> count, [span["name"] for span in line["resourceSpans"][0]["scopeSpans"][0]["spans"]]
    (2, ['invoke_agent TrlEnv/Echo-v0', 'chat solver'])

    An episode is a trace: the span ``invoke_agent``, and in it a span ``chat`` for each response and a span
    ``execute_tool`` for each tool call in a response. Rewards, the return, success and scores are events
    ``gen_ai.evaluation.result``. Episodes and tool calls that failed have the status ERROR and an ``error.type``.
    Attributes that are not of the conventions begin with ``gym_trl.``. Token ids and logprobs are left out.

    Ids of traces and spans follow from the name of ``source`` and the episode. Records have no times of day, which are
    therefore estimated: the episodes of a training step begin together, the next step begins when the longest of them
    has ended, and the last step ends when the records were last written. The seconds of the model are divided equally
    among its responses, those of the environment among the reset and the turns. The resource's attribute
    ``gym_trl.estimated`` says so.

    The records are read twice, with one episode in memory.

    Args:
        source: Records, as for ``read_records``.
        path: File, which is replaced if it exists. It has a line for each episode, several for a long one.
    """
    begins, counts = _begins(source), Counter[bool]()
    last = max(begins.values(), default=0)
    run = source.resolve().name
    resource_attributes = {"service.name": "gym-trl", "gym_trl.run": encodable(run), "gym_trl.estimated": _ESTIMATED}
    resource = {"attributes": _attributes(resource_attributes)}
    scope = {"name": "gym_trl", "version": version("gym-trl")}

    def lines() -> Iterator[dict[str, Any]]:
        for record in read_records(source):
            failed, episode = is_failure(record), encodable(without_tokens(record))
            # Its number in its file, because that stays when the run goes on.
            trace = _Trace(episode, _digest(run, failed, counts[failed], episode))
            counts[failed] += 1
            # Episodes may be written while these are read.
            for spans in _pieces(trace.spans(begins.get(_together(record), last))):
                yield {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": scope, "spans": spans}]}]}

    write_json_lines(lines(), path)
    return counts.total()


def export_otel(source: Path, out: Path) -> str:
    """Write records as ``write_otel`` does, and return the sentence that ``gym-trl export`` prints."""
    return f"Wrote {counted(write_otel(source, out), 'trace')} to {out}."


def _digest(*parts: Any, size: int = 16) -> str:
    return blake2b(to_json(parts).encode(), digest_size=size).hexdigest()


def _pieces(spans: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield the spans of an episode by lines."""
    piece: list[dict[str, Any]] = []
    size = 0
    for span in spans:
        longer = sum(len(attribute["value"].get("stringValue", "")) for attribute in span["attributes"])
        if piece and size + longer > LONGEST:
            yield piece
            piece, size = [], 0
        piece.append(span)
        size += longer
    yield piece


# ---------------------------------------------------------------------------------------------------------------------
# Times, in nanoseconds
# ---------------------------------------------------------------------------------------------------------------------


def _together(record: Record) -> tuple[int, bool]:
    """Return a key of the episodes that were played at the same time; keys are ordered by time."""
    return -1 if record["step"] is None else record["step"], record["split"] == "eval"


def _begins(source: Path) -> dict[tuple[int, bool], int]:
    """Return when the episodes of each key began, as an estimate."""
    longest = Counter[tuple[int, bool]]()
    for record in read_records(source):
        key = _together(record)
        longest[key] = max(longest[key], sum(_durations(record)))
    files = [source / name for name in (ROLLOUTS, FAILURES)] if source.is_dir() else [source]
    now = max(file.stat().st_mtime_ns for file in files if file.exists())
    begins = {}
    for key in sorted(longest, reverse=True):
        now -= longest[key]
        begins[key] = now
    return begins


def _durations(record: Record) -> tuple[int, int]:
    """Return the time of the model and of the environment; 0 where it is not known."""
    model, env = record["model_seconds"], record["env_seconds"]
    if model is None and env is None:
        model = finite(record.get("total_time"))  # of an episode from Inspect
    return round((model or 0.0) * 1e9), round((env or 0.0) * 1e9)


# ---------------------------------------------------------------------------------------------------------------------
# Spans
# ---------------------------------------------------------------------------------------------------------------------

_INTERNAL, _CLIENT = 1, 3
_STATUS_ERROR = 2


class _Period(NamedTuple):
    """Period of a span."""

    start: int
    end: int


class _Call(NamedTuple):
    """Tool call in a response."""

    id: str
    name: str
    arguments: Any


class _Response(NamedTuple):
    """Response without its tool calls, and these."""

    text: str
    calls: list[_Call]


class _Result(NamedTuple):
    """Result of an evaluation."""

    name: str
    value: float | None
    label: str | None = None
    explanation: str | None = None


class _Problem(NamedTuple):
    """Failure of an operation."""

    type: str
    message: str


class _Trace:
    """Spans of an episode.

    Args:
        record: The episode.
        id_: Id of the trace, in hexadecimal digits.
    """

    def __init__(self, record: Record, id_: str) -> None:
        self._record = record
        self._id = id_
        self._root = _digest(id_, size=8)
        self._history = _History(record)
        agent, model = record["task"]["env_id"], record["policy"]
        self._names = {"invoke_agent": agent, "chat": model}
        self._who = {
            "gen_ai.provider.name": str(record.get("source") or "gym-trl").lower(),
            "gen_ai.agent.name": agent,
            "gen_ai.request.model": model,
        }

    def spans(self, start: int) -> Iterator[dict[str, Any]]:
        """Yield the spans of an episode that began at ``start``: the whole, then its parts in their order."""
        record, turns = self._record, self._record["turns"]
        model_time, env_time = _durations(record)
        yield self._whole(_Period(start, start + model_time + env_time))
        unanswered = record["unanswered"]
        thought = model_time // max(len(turns) + (unanswered is not None), 1)
        stepped = env_time // (len(turns) + 1)
        now = start + stepped  # after the reset
        for index, turn in enumerate(turns):
            response = _read(turn["answer"], index, every=bool(record.get("source")))
            yield self._chat(index, turn, response, _Period(now, now + thought))
            now += thought
            observed = turns[index + 1]["observation"] if index + 1 < len(turns) else record["last_observation"]
            for call in response.calls:
                result = observed if call is response.calls[-1] else None
                yield self._tool(call, turn, result, _Period(now, now + stepped))
            self._history.add(response, observed)
            now += stepped
        if unanswered is not None:
            yield self._unanswered(unanswered, _Period(now, now + thought))

    def _whole(self, period: _Period) -> dict[str, Any]:
        record, task = self._record, self._record["task"]
        responses = [turn["answer"] for turn in record["turns"]]
        if record["unanswered"] is not None:
            responses.append(record["unanswered"])
        attributes = {
            **self._who,
            **_usage(record),
            "gen_ai.input.messages": self._history.before(0),
            "gen_ai.output.messages": _json([_message("assistant", responses[-1])]) if responses else None,
            "gym_trl.task": task["id"],
            "gym_trl.task.seed": task["seed"],
            "gym_trl.task.env_kwargs": task["env_kwargs"] or None,
            "gym_trl.task.options": task["options"] or None,
            **{f"gym_trl.{name}": value for name, value in record.items() if name in _EPISODE},
            "gym_trl.spec": record["spec"] or None,
            "gym_trl.return": finite(record["return"]),
        }
        return self._span(
            "invoke_agent", self._root, period, attributes, results=_results(record), problem=_problem(record)
        )

    def _chat(self, index: int, turn: TurnRecord, response: _Response, period: _Period) -> dict[str, Any]:
        finish = "length" if turn["action_cut"] else "tool_call" if response.calls else "stop"
        attributes = {
            **self._asked(index, finish, _parts(response, turn["thinking"])),
            **self._turn_usage(index),
            "gym_trl.action": turn["action"],
            "gym_trl.action_valid": turn["action_valid"],
            "gym_trl.action_cut": turn["action_cut"],
        }
        reward = _Result("reward", finite(turn["reward"]))
        return self._span("chat", _digest(self._id, index, size=8), period, attributes, results=[reward])

    def _unanswered(self, text: str, period: _Period) -> dict[str, Any]:
        index, out = len(self._record["turns"]), (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_OVERFLOW)
        finish = "length" if self._record["stop_reason"] in out else "stop"
        attributes = self._asked(index, finish, _parts(_Response(text, []))) | {"gym_trl.executed": False}
        return self._span("chat", _digest(self._id, index, size=8), period, attributes)

    def _tool(self, call: _Call, turn: TurnRecord, result: str | None, period: _Period) -> dict[str, Any]:
        problem = _tool_problem(turn, result or "")
        attributes = {
            "gen_ai.tool.name": call.name,
            "gen_ai.tool.type": "function",
            "gen_ai.tool.call.id": call.id,
            "gen_ai.tool.call.arguments": _json(call.arguments),
            "gen_ai.tool.call.result": None if problem else result,
        }
        id_ = _digest(self._id, call.id, size=8)
        return self._span("execute_tool", id_, period, attributes, problem=problem, name=call.name)

    def _span(
        self,
        operation: str,
        id_: str,
        period: _Period,
        attributes: Mapping[str, Any],
        *,
        results: Sequence[_Result] = (),
        problem: _Problem | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        failed = {"error.type": problem.type} if problem else {}
        name = name or self._names.get(operation)
        return {
            "traceId": self._id,
            "spanId": id_,
            **({} if id_ == self._root else {"parentSpanId": self._root}),
            "name": f"{operation} {name}" if name else operation,
            "kind": _CLIENT if operation == "chat" else _INTERNAL,
            "startTimeUnixNano": str(period.start),
            "endTimeUnixNano": str(period.end),
            "attributes": _attributes({"gen_ai.operation.name": operation, **attributes, **failed}),
            "events": [_event(result, period.end) for result in results if result.value is not None],
            **({"status": {"code": _STATUS_ERROR, "message": problem.message}} if problem else {}),
        }

    def _asked(self, index: int, finish: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the attributes of a request and its response."""
        response = {"role": "assistant", "parts": parts, "finish_reason": finish}
        return {
            **self._who,
            "gen_ai.response.finish_reasons": [finish],
            "gen_ai.input.messages": self._history.before(index),
            "gen_ai.output.messages": _json([response]),
            "gym_trl.turn": index,
            "gym_trl.left_out": self._history.left_out(index) or None,
        }

    def _turn_usage(self, index: int) -> dict[str, int]:
        """Return the numbers of tokens that the engine was given and returned in a turn, if they were counted."""
        turn, prompt = self._record["turns"][index], self._record["prompt_tokens"]
        start, stop, segment = turn["start"], turn["stop"], self._history.segment(index)
        if start is None or stop is None or prompt is None:
            return {}
        input_tokens = start - segment["start"] if segment else prompt + start
        return {"gen_ai.usage.input_tokens": input_tokens, "gen_ai.usage.output_tokens": stop - start}


class _History:
    """Messages that the model was given in each turn."""

    def __init__(self, record: Record) -> None:
        self._segments = record["segments"] or []
        self._opening = [_json(_message(message["role"], message["content"])) for message in record["opening"]]
        self._turns: list[list[str]] = []

    def add(self, response: _Response, observed: str | None) -> None:
        """Add a turn: a response, and the observation after it."""
        messages = [{"role": "assistant", "parts": _parts(response)}]
        if observed is not None and response.calls:
            part = {"type": "tool_call_response", "id": response.calls[-1].id, "response": observed}
            messages.append({"role": "tool", "parts": [part]})
        elif observed is not None:
            messages.append(_message("user", observed))
        self._turns.append([_json(message) for message in messages])

    def segment(self, index: int) -> SegmentRecord | None:
        """Return the segment of a turn, unless it is the first one."""
        return next((segment for segment in reversed(self._segments) if segment["turn"] <= index), None)

    def left_out(self, index: int) -> int:
        """Return the number of turns that the model did not see in a turn."""
        segment = self.segment(index)
        return segment["left_out"] if segment else 0

    def before(self, index: int) -> str:
        """Return the messages before a turn, as JSON."""
        messages, gone, segment = list(self._opening), self.left_out(index), self.segment(index)
        if gone:
            if segment and segment["summary"]:
                messages.append(_json(_message("user", segment["summary"])))
            messages += self._turns[gone - 1][1:]
        messages += (message for turn in self._turns[gone:index] for message in turn)
        return f"[{', '.join(messages)}]"


def _message(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "parts": [{"type": "text", "content": text}]}


def _parts(response: _Response, thinking: str = "") -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [{"type": "reasoning", "content": thinking}] if thinking else []
    if response.text or not response.calls:
        parts.append({"type": "text", "content": response.text})
    return [*parts, *({"type": "tool_call", **call._asdict()} for call in response.calls)]


_CALL = re.compile(r"<(tool|tool_call)>\s*")
_JSON = json.JSONDecoder()


def _read(answer: str, index: int, *, every: bool) -> _Response:
    """Return a response with its tool calls: the last one, which ``Tools`` executes, or every one."""
    openings = list(_CALL.finditer(answer))
    calls: list[_Call] = []
    text, after = "", 0
    for number, opening in enumerate(openings if every else openings[-1:]):
        try:
            decoded, end = _JSON.raw_decode(answer, opening.end())
            decoded = encodable(plain(decoded))
            name, arguments = decoded["name"], decoded.get("arguments", {})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue  # no call
        if not isinstance(name, str):
            continue
        calls.append(_Call(f"call_{index}_{number}", name, arguments))
        text += answer[after : opening.start()]
        rest = answer[end:].lstrip()
        after = len(answer) - len(rest.removeprefix(f"</{opening[1]}>"))
    return _Response((text + answer[after:]).strip() if calls else answer, calls)


_RAISED = re.compile(r"Error: (?:(\w+): )?")


def _tool_problem(turn: TurnRecord, result: str) -> _Problem | None:
    """Return why a tool call failed, as ``Tools`` tells it."""
    if not turn["action_valid"]:
        return _Problem(StopReason.INVALID_ACTION.value, result)
    raised = _RAISED.match(result)
    return _Problem(raised[1] or "_OTHER", result) if raised else None


def _problem(record: Record) -> _Problem | None:
    """Return why an episode failed."""
    if record["error"] is None and not is_failure(record):
        return None
    return _Problem(record["stop_reason"], record["error"] or describe_end(record))


def _results(record: Record) -> list[_Result]:
    """Return how an episode was evaluated."""
    success = record["success"]
    results = [_Result("return", finite(record["return"]), explanation=describe_end(record))]
    if success is not None:
        results.append(_Result("success", float(success), "pass" if success else "fail", describe_end(record)))
    return results + [_Result(name, finite(score)) for name, score in record["scores"].items()]


def _usage(record: Record) -> dict[str, int | None]:
    """Return the numbers of tokens of an episode, if those of its turns are not known."""
    sampled = record["sampled_tokens"]
    if sampled is None or any(turn["start"] is not None for turn in record["turns"]):
        return {}
    return {"gen_ai.usage.input_tokens": given_tokens(record), "gen_ai.usage.output_tokens": sampled}


# ---------------------------------------------------------------------------------------------------------------------
# OTLP as JSON: https://opentelemetry.io/docs/specs/otlp/#json-protobuf-encoding
# ---------------------------------------------------------------------------------------------------------------------


def _event(result: _Result, time: int) -> dict[str, Any]:
    attributes = {
        "gen_ai.evaluation.name": result.name,
        "gen_ai.evaluation.score.value": result.value,
        "gen_ai.evaluation.score.label": result.label,
        "gen_ai.evaluation.explanation": result.explanation,
    }
    return {"timeUnixNano": str(time), "name": "gen_ai.evaluation.result", "attributes": _attributes(attributes)}


def _attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return attributes, without those that are ``None``."""
    return [{"key": name, "value": _value(value)} for name, value in values.items() if value is not None]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": _json(value) if isinstance(value, dict) else str(value)}


def _json(value: Any) -> str:
    """Return a value as text: tools read messages in JSON, and few of them structured attributes."""
    return json.dumps(value, ensure_ascii=False)
