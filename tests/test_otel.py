"""Records as traces of OpenTelemetry, checked with its own package where that is installed."""

import json
import os
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.records import RecordWriter, as_record, otel
from gym_trl.records.otel import write_otel
from gym_trl.records.schema import Record
from gym_trl.types import Answer, Border, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn

WRITTEN = 1_700_000_000 * 10**9
"""Time at which the records of these tests were written."""


def folder_of(records: list[Record], folder: Path) -> Path:
    with RecordWriter(folder) as writer:
        for record in records:
            writer.write(record)
    for file in folder.glob("*.jsonl"):
        os.utime(file, ns=(WRITTEN, WRITTEN))
    return folder


def lines_of(records: list[Record], folder: Path) -> list[dict[str, Any]]:
    folder.mkdir(exist_ok=True)
    out = folder / "spans.out"
    assert write_otel(folder_of(records, folder), out) == len(records)
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def spans_in(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for line in lines:
        yield from line["resourceSpans"][0]["scopeSpans"][0]["spans"]


def value_of(held: dict[str, Any]) -> Any:
    [(kind, value)] = held.items()
    if kind == "arrayValue":
        return [value_of(one) for one in value["values"]]
    return int(value) if kind == "intValue" else value


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {held["key"]: value_of(held["value"]) for held in span["attributes"]}


def events(span: dict[str, Any]) -> list[tuple[str, float]]:
    found = [attributes(event) for event in span["events"] if event["name"] == "gen_ai.evaluation.result"]
    return [(one["gen_ai.evaluation.name"], one["gen_ai.evaluation.score.value"]) for one in found]


def called(**extra: Any) -> Record:
    """Return an episode with thinking, a tool call, a call that failed, counted tokens and an unanswered response."""
    call = 'I add.\n<tool>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool>'
    turns = (
        Turn("2 + 2?", Answer("Hm.", call), 0.0, True, 0, 2, call),
        Turn("4", Answer("", '<tool_call>{"name": "add"}'), 0.0, True, 3, 4, None),
        Turn("Error: TypeError: no a", Answer("", "4"), 1.0, True, 5, 6, None, True),
    )
    said = [Message("system", "Play."), Message("user", "2 + 2?"), Message("assistant", call), Message("user", "4")]
    said += [Message("assistant", turns[1].answer.text), Message("user", "Error: TypeError: no a")]
    said += [Message("assistant", "4"), Message("user", "Right."), Message("assistant", "And")]
    trace = TokenTrace([1, 2, 3], [4, 5, 6, 7, 8, 9], [1, 1, 0, 1, 0, 1], [-0.1] * 6)
    task = Task("TrlEnv/Echo-v0", 7, {"instance": 3})
    ended = StopReason.TOKEN_LIMIT
    episode = EpisodeResult(task, ended, turns, tuple(said), trace, model_seconds=2.0, env_seconds=1.0)
    return as_record(episode, **{"policy": "tiny", "split": "train", "step": 4, **extra})


def failed() -> Record:
    return as_record(EpisodeResult(Task("TrlEnv/Echo-v0", 8), StopReason.ENV_ERROR, (), (), error="it broke"))


def test_an_episode_is_a_tree_of_an_agent_its_responses_and_its_tool_calls(tmp_path: Path) -> None:
    [line] = lines_of([called()], tmp_path)
    root, *parts = spans_in([line])
    assert (root["name"], root["kind"], "parentSpanId" in root) == ("invoke_agent TrlEnv/Echo-v0", 1, False)
    assert [(span["name"], span["kind"]) for span in parts] == [
        ("chat tiny", 3),
        ("execute_tool add", 1),
        ("chat tiny", 3),
        ("execute_tool add", 1),
        ("chat tiny", 3),
        ("chat tiny", 3),
    ]
    assert {span["parentSpanId"] for span in parts} == {root["spanId"]}
    assert {span["traceId"] for span in parts} == {root["traceId"]}
    ids = [span["spanId"] for span in [root, *parts]]
    assert len(set(ids)) == len(ids)
    assert {len(id_) for id_ in ids} == {16}
    assert len(root["traceId"]) == 32


def test_spans_have_the_attributes_of_the_conventions(tmp_path: Path) -> None:
    root, chat, tool, again, broken, cut, last = map(attributes, spans_in(lines_of([called()], tmp_path)))
    assert {span["gen_ai.operation.name"] for span in (chat, again, cut, last)} == {"chat"}
    assert (root["gen_ai.agent.name"], root["gen_ai.request.model"]) == ("TrlEnv/Echo-v0", "tiny")
    assert root["gen_ai.provider.name"] == chat["gen_ai.provider.name"] == "gym-trl"
    assert [span["gen_ai.response.finish_reasons"] for span in (chat, again, cut, last)] == [
        ["tool_call"],
        ["tool_call"],
        ["length"],
        ["length"],
    ]
    usage = [(span["gen_ai.usage.input_tokens"], span["gen_ai.usage.output_tokens"]) for span in (chat, again, cut)]
    assert usage == [(3, 2), (6, 1), (8, 1)]
    assert "gen_ai.usage.input_tokens" not in root  # tools that add up the spans would count it twice
    assert json.loads(chat["gen_ai.output.messages"]) == [
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "Hm."},
                {"type": "text", "content": "I add."},
                {"type": "tool_call", "id": "call_0_0", "name": "add", "arguments": {"a": 2, "b": 2}},
            ],
            "finish_reason": "tool_call",
        }
    ]
    assert [said["role"] for said in json.loads(again["gen_ai.input.messages"])] == [
        "system",
        "user",
        "assistant",
        "tool",
    ]
    assert json.loads(again["gen_ai.input.messages"])[-1]["parts"] == [
        {"type": "tool_call_response", "id": "call_0_0", "response": "4"}
    ]
    assert (tool["gen_ai.tool.name"], tool["gen_ai.tool.call.id"], tool["gen_ai.tool.call.result"]) == (
        "add",
        "call_0_0",
        "4",
    )
    assert json.loads(tool["gen_ai.tool.call.arguments"]) == {"a": 2, "b": 2}
    assert broken["error.type"] == "TypeError"
    assert "gen_ai.tool.call.result" not in broken
    assert (last["gym_trl.executed"], root["gym_trl.step"], root["gym_trl.task.seed"]) == (False, 4, 7)


def test_rewards_return_success_and_scores_are_results_of_evaluations(tmp_path: Path) -> None:
    spans = list(spans_in(lines_of([{**called(), "success": True, "scores": {"style": 0.5}}], tmp_path)))
    assert events(spans[0]) == [("return", 1.0), ("success", 1.0), ("style", 0.5)]
    assert attributes(spans[0]["events"][1])["gen_ai.evaluation.score.label"] == "pass"
    assert [events(span) for span in spans if span["name"].startswith("chat")] == [
        [("reward", 0.0)],
        [("reward", 0.0)],
        [("reward", 1.0)],
        [],
    ]


def test_a_failed_episode_and_a_failed_call_have_the_status_error(tmp_path: Path) -> None:
    spans = list(spans_in(lines_of([called(), failed()], tmp_path)))
    assert [index for index, span in enumerate(spans) if "status" in span] == [4, 7]
    assert spans[4]["status"] == {"code": 2, "message": "Error: TypeError: no a"}
    assert spans[7]["status"] == {"code": 2, "message": "it broke"}
    assert attributes(spans[7])["error.type"] == "env_error"
    assert spans[7]["events"] == []


def test_a_seat_that_was_never_to_move_is_no_error(tmp_path: Path) -> None:
    [span] = spans_in(lines_of([{**failed(), "stop_reason": "unplayed", "error": None}], tmp_path))
    assert "status" not in span


def test_an_export_is_repeatable_and_ids_stay_when_the_run_goes_on(tmp_path: Path) -> None:
    records = [called(), called(), failed()]
    first = lines_of(records, tmp_path / "run")
    written = (tmp_path / "run" / "spans.out").read_bytes()
    write_otel(tmp_path / "run", tmp_path / "again.jsonl")
    assert (tmp_path / "again.jsonl").read_bytes() == written
    before = [next(spans_in([line]))["traceId"] for line in first]
    assert len(set(before)) == 3  # equal episodes are different traces
    folder_of([called(step=5)], tmp_path / "run")
    write_otel(tmp_path / "run", tmp_path / "more.jsonl")
    after = [json.loads(line) for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    ids = [next(spans_in([line]))["traceId"] for line in after]
    assert [ids[0], ids[1], ids[3]] == before
    lines_of(records, tmp_path / "other")
    other = (tmp_path / "other" / "spans.out").read_text()
    assert not any(id_ in other for id_ in before)


def test_steps_are_in_order_and_the_last_ends_at_the_files_time(tmp_path: Path) -> None:
    slow: Any = {**called(step=2), "model_seconds": 9.0}
    lines = lines_of([called(step=1), called(step=2), slow], tmp_path)
    first, second, longest = (next(spans_in([line])) for line in lines)
    assert int(longest["endTimeUnixNano"]) == WRITTEN
    assert int(second["startTimeUnixNano"]) == int(longest["startTimeUnixNano"]) == WRITTEN - 10 * 10**9
    assert first["endTimeUnixNano"] == second["startTimeUnixNano"]
    known = attributes(lines[0]["resourceSpans"][0]["resource"])
    assert known["gym_trl.estimated"] == ["times of day", "duration of chat", "duration of execute_tool"]
    assert known["service.name"] == "gym-trl"
    root, *parts = spans_in(lines[:1])
    times = [int(span[name]) for span in parts for name in ("startTimeUnixNano", "endTimeUnixNano")]
    assert times == sorted(times)
    assert int(root["startTimeUnixNano"]) < times[0] <= times[-1] <= int(root["endTimeUnixNano"])


def test_lone_surrogates_numbers_of_any_size_and_odd_calls_are_written(tmp_path: Path) -> None:
    answer = 'x\ud800 <tool>{"name": "é", "arguments": [1, "\\ud800", NaN]}</tool> y'
    turns = (Turn("?", Answer("", answer), 0.0, False, 0, 0), Turn("?", Answer("", "<tool>{" * 9), 0.0, True, 0, 0))
    said = [Message("user", "?\ud800"), Message("assistant", answer), Message("user", "?")]
    episode = EpisodeResult(Task("X-v0", 2**70, {"\ud800": [1]}), StopReason.FAILURE, turns, tuple(said))
    lines = lines_of([as_record(episode)], tmp_path)
    assert "\\ud800" not in (tmp_path / "spans.out").read_text()
    root, chat, tool, _ = spans_in(lines)
    assert attributes(root)["gym_trl.task.seed"] == str(2**70)
    assert json.loads(attributes(chat)["gen_ai.output.messages"])[0]["parts"][0]["content"] == "x\ufffd  y"
    assert json.loads(attributes(tool)["gen_ai.tool.call.arguments"]) == [1, "\ufffd", None]
    assert (attributes(tool)["error.type"], tool["name"]) == ("invalid_action", "execute_tool é")


def test_every_call_of_an_imported_episode_is_a_span(tmp_path: Path) -> None:
    record: Any = {**called(), "source": "Inspect", "prompt_tokens": None, "model_seconds": None, "env_seconds": None}
    two = '<tool_call>{"name": "a", "arguments": {}}</tool_call>\n<tool_call>{"name": "b"}</tool_call>'
    record["turns"] = [{**record["turns"][0], "answer": two, "start": None, "stop": None}]
    record |= {"total_time": 3.0, "unanswered": None, "last_observation": "done"}
    root, chat, *tools = spans_in(lines_of([record], tmp_path))
    assert [(span["name"], attributes(span).get("gen_ai.tool.call.result")) for span in tools] == [
        ("execute_tool a", None),
        ("execute_tool b", "done"),
    ]
    assert attributes(chat)["gen_ai.provider.name"] == "inspect"
    assert int(chat["endTimeUnixNano"]) - int(chat["startTimeUnixNano"]) == 3 * 10**9
    assert attributes(root)["gen_ai.usage.output_tokens"] == record["sampled_tokens"]


def test_a_turn_has_the_messages_and_tokens_of_its_segment(tmp_path: Path) -> None:
    turns = tuple(Turn(f"o{index}", Answer("", f"a{index}"), 0.0, True, index * 5, index * 5 + 2) for index in range(3))
    said = [Message("user", "Rules. o0")]
    for index in range(3):
        said += [Message("assistant", f"a{index}"), Message("user", f"o{index + 1}")]
    trace = TokenTrace([1] * 4, [2] * 12, [1] * 12, [-0.1] * 12, (Border(6, 10, 2, 1, "a0 was wrong"),))
    episode = EpisodeResult(Task("X-v0", 1), StopReason.FAILURE, turns, tuple(said), trace)
    spans = [attributes(span) for span in spans_in(lines_of([as_record(episode)], tmp_path))][1:]
    assert [span["gen_ai.usage.input_tokens"] for span in spans] == [4, 9, 4]
    shown = [
        [message["parts"][0]["content"] for message in json.loads(span["gen_ai.input.messages"])] for span in spans
    ]
    assert shown == [
        ["Rules. o0"],
        ["Rules. o0", "a0", "o1"],
        ["Rules. o0", "a0 was wrong", "o1", "a1", "o2"],
    ]
    assert [span.get("gym_trl.left_out") for span in spans] == [None, None, 1]


def test_a_long_episode_has_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(spans_in(lines_of([called()], tmp_path)))
    monkeypatch.setattr(otel, "LONGEST", 400)
    lines = [json.loads(line) for line in _written(tmp_path)]
    assert len(lines) > 2
    assert list(spans_in(lines)) == whole


def _written(folder: Path) -> list[str]:
    write_otel(folder, folder / "lines.out")
    return (folder / "lines.out").read_text().splitlines()


def test_the_command_writes_traces_and_does_not_replace_the_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate("TrlEnv/GuessNumber-v0", "random", episodes=3, out=tmp_path / "guess")
    out = tmp_path / "spans.jsonl"
    command = ["export", str(tmp_path / "guess"), "--to", "otel", "--debug", "--out"]
    assert app([*command, str(out)], standalone_mode=False) in (0, None)
    assert "Wrote 3 traces" in capsys.readouterr().out
    assert len(out.read_text().splitlines()) == 3
    before = (tmp_path / "guess" / "rollouts.jsonl").read_bytes()
    with pytest.raises(ConfigError, match="choose another --out"):
        app([*command, str(tmp_path / "guess" / "rollouts.jsonl")], standalone_mode=False)
    with pytest.raises(ConfigError, match="--license requires --to hub, got --to otel"):
        app([*command, str(out), "--license", "mit"], standalone_mode=False)
    assert (tmp_path / "guess" / "rollouts.jsonl").read_bytes() == before


@pytest.mark.full
def test_opentelemetrys_protocol_and_sdk_have_the_same_spans(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="OpenTelemetry is not there: make .venv/.has-interop")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.common", reason="its exporter is not there")
    from google.protobuf.json_format import ParseDict
    from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

    lines = lines_of([called(), called(step=5), failed()], tmp_path)
    for line in lines:
        resource = Resource(attributes(line["resourceSpans"][0]["resource"]))
        scope = InstrumentationScope(**line["resourceSpans"][0]["scopeSpans"][0]["scope"])
        spans = []
        for span in spans_in([line]):
            trace = int(span["traceId"], 16)
            parent = span.get("parentSpanId")
            status = span.get("status")
            happened = [Event(one["name"], attributes(one), int(one["timeUnixNano"])) for one in span["events"]]
            made = ReadableSpan(
                name=span["name"],
                context=SpanContext(trace, int(span["spanId"], 16), is_remote=False),
                parent=parent and SpanContext(trace, int(parent, 16), is_remote=False),
                resource=resource,
                attributes=attributes(span),
                events=happened,
                kind={1: SpanKind.INTERNAL, 3: SpanKind.CLIENT}[span["kind"]],
                status=Status(StatusCode.ERROR, status["message"]) if status else Status(StatusCode.UNSET),
                start_time=int(span["startTimeUnixNano"]),
                end_time=int(span["endTimeUnixNano"]),
                instrumentation_scope=scope,
            )
            spans.append(made)
            # Protobuf's mapping has bytes in base64, that of OpenTelemetry ids in hexadecimal digits.
            for name in ("traceId", "spanId", "parentSpanId"):
                if name in span:
                    span[name] = b64encode(bytes.fromhex(span[name])).decode()
        read = ParseDict(line, ExportTraceServiceRequest())
        exported = encode_spans(spans)
        for span in exported.resource_spans[0].scope_spans[0].spans:
            assert span.flags == 256  # the parent is known to be of this process
            span.flags = 0
            if not span.status.code:
                span.ClearField("status")
        assert read == exported


@pytest.mark.full
def test_every_attribute_is_one_of_the_conventions_or_ours(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.semconv", reason="OpenTelemetry is not there: make .venv/.has-interop")
    from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
    from opentelemetry.semconv.attributes.error_attributes import ERROR_TYPE

    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")} | {ERROR_TYPE}
    for span in spans_in(lines_of([called(), failed()], tmp_path)):
        for held in [span, *span["events"]]:
            names = set(attributes(held))
            assert {name for name in names if not name.startswith("gym_trl.")} <= known
