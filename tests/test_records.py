import json
import re
import tracemalloc
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.episode import Episode, Segment, Span, Turn
from gym_trl.errors import ConfigError
from gym_trl.records import json_lines
from gym_trl.records.files import RecordWriter, read_records
from gym_trl.records.json_lines import JsonLinesWriter, keep_json_lines, read_json_lines, to_json
from gym_trl.records.schema import (
    CreditRecord,
    TaskRecord,
    TurnRecord,
    as_record,
    complete,
    messages_of,
    task_id,
)
from gym_trl.types import Answer, Message, StopReason, Task

ANY_TEXT = st.text(st.characters(exclude_categories=()))


def trajectory(text: str = "ox", **changes: Any) -> Episode:
    fields: dict[str, Any] = {
        "task": Task("TrlEnv/Echo-v0", 3, {"instance": 7}),
        "stop_reason": StopReason.ENDED,
        "success": False,
        "segments": [Segment([1, 2, 3], [4, 5, 6], [1, 0, 1], [-0.5, 0.0, -0.25])],
        "turns": [
            Turn(text, Answer("hm", text), 0.5, spans=[Span(0, 0, 1)]),
            Turn("go on", Answer("", "no"), -1.0, action_valid=False, spans=[Span(0, 2, 3)], action="n"),
        ],
        "messages": [
            Message("user", text),
            Message("assistant", text),
            Message("user", "go on"),
            Message("assistant", "no"),
            Message("user", "Over."),
        ],
        "terminated": True,
        "model_seconds": 0.5,
        "env_seconds": 0.25,
    }
    return Episode(**{**fields, **changes})


def written(path: Path, *records: Mapping[str, Any]) -> list[dict[str, Any]]:
    with JsonLinesWriter(path) as writer:
        for record in records:
            writer.write(record)
    return list(read_json_lines(path))


def test_a_record_says_what_was_played() -> None:
    about: dict[str, Any] = {"step": 2, "policy": "tiny", "split": "train", "group": 4, "attempt": 1, "greedy": False}
    assert as_record(trajectory(), env_kwargs={"turns": 3}, spec={"action_format": "tag"}, **about) == {
        **about,
        "version": 1,
        "seat": None,
        "task": {
            "id": task_id("TrlEnv/Echo-v0", 3, env_kwargs={"turns": 3}, options={"instance": 7}),
            "env_id": "TrlEnv/Echo-v0",
            "env_kwargs": {"turns": 3},
            "seed": 3,
            "options": {"instance": 7},
        },
        "spec": {"action_format": "tag"},
        "opening": [{"role": "user", "content": "ox"}],
        "turns": [
            {
                "observation": "ox",
                "thinking": "hm",
                "answer": "ox",
                "action": None,
                "reward": 0.5,
                "action_valid": True,
                "action_cut": False,
                "start": 0,
                "stop": 1,
            },
            {
                "observation": "go on",
                "thinking": "",
                "answer": "no",
                "action": "n",
                "reward": -1.0,
                "action_valid": False,
                "action_cut": False,
                "start": 2,
                "stop": 3,
            },
        ],
        "last_observation": "Over.",
        "unanswered": None,
        "return": -0.5,
        "success": False,
        "terminated": True,
        "truncated": False,
        "stop_reason": "ended",
        "error": None,
        "num_turns": 2,
        "invalid_actions": 1,
        "prompt_tokens": 3,
        "completion_tokens": 3,
        "sampled_tokens": 2,
        "model_seconds": 0.5,
        "env_seconds": 0.25,
        "prompt_ids": None,
        "completion_ids": None,
        "mask": None,
        "logprobs": None,
        "token_texts": None,
        "segments": None,
    }


def test_a_record_of_a_seat_says_which_and_when_it_was_to_move(tmp_path: Path) -> None:
    record = as_record(trajectory(seat=1), group=2, attempt=5)
    assert record["seat"] == 1
    older = {name: value for name, value in record.items() if name != "seat"}
    (tmp_path / "older.jsonl").write_text(f"{to_json(older)}\n")
    [read] = read_records(tmp_path / "older.jsonl")
    assert read["seat"] is None


def test_every_stop_reason_is_written_down() -> None:
    docs = Path(__file__).parents[1] / "docs"
    [row] = [line for line in (docs / "records.md").read_text().splitlines() if line.startswith("| `stop_reason`")]
    assert re.findall(r"`(\w+)`", row)[1:] == list(StopReason)
    table = (docs / "concepts" / "groups.md").read_text().split("## Stop reasons")[1]
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert {name for cell in cells for name in re.findall(r"\w+", cell)} == {*StopReason}


def test_further_segments_are_where_their_prompts_are_in_the_row() -> None:
    segments = [Segment([1, 2], [4, 5], [1, 1], [-0.5, -0.5]), Segment([1, 3, 3], [6], [1], [-0.25])]
    spans = [[Span(0, 0, 1)], [Span(0, 1, 2), Span(1, 0, 1)]]
    turns = [Turn("ox", Answer("", "ox"), spans=one) for one in spans]
    record = as_record(trajectory(segments=segments, turns=turns), tokens=True)
    assert record["segments"] == [{"start": 2, "stop": 5, "turn": 1}]
    assert record["completion_ids"] == [4, 5, 1, 3, 3, 6]
    assert [(turn["start"], turn["stop"]) for turn in record["turns"]] == [(0, 1), (5, 6)]


def test_records_with_the_names_of_earlier_releases_are_read(tmp_path: Path) -> None:
    earlier = {"stop_reason": "parse_error", "segments": [{"start": 2, "stop": 5, "turn": 1, "left_out": 1}]}
    (tmp_path / "rollouts.jsonl").write_text(f"{to_json({**as_record(trajectory()), **earlier})}\n")
    [read] = read_records(tmp_path)
    assert (read["stop_reason"], read["segments"]) == (earlier["stop_reason"], earlier["segments"])


def test_tokens_are_kept_when_asked_for() -> None:
    record = as_record(trajectory(), tokens=True)
    assert (record["completion_ids"], record["mask"], record["logprobs"]) == ([4, 5, 6], [1, 0, 1], [-0.5, 0.0, -0.25])


def test_a_failed_episode_has_its_error_and_no_return() -> None:
    empty: dict[str, Any] = {"segments": [], "turns": []}
    failed = trajectory(stop_reason=StopReason.ENV_ERROR, error="reset raised", messages=[], success=None, **empty)
    record = as_record(failed)
    assert (record["return"], record["error"], record["last_observation"]) == (None, "reset raised", None)


@given(text=ANY_TEXT)
def test_any_text_survives_the_disk(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("records") / "rollouts.jsonl"
    record = as_record(trajectory(text))
    assert written(path, record) == [record]


def test_numbers_that_json_does_not_have_become_null() -> None:
    values = {"nan": float("nan"), "inf": -np.inf, "count": np.int64(3), "loss": np.float32(0.5), "path": Path("a")}
    assert json.loads(to_json(values)) == {"nan": None, "inf": None, "count": 3, "loss": 0.5, "path": "a"}


def test_writing_again_appends(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, {"step": 1})
    assert written(path, {"step": 2}) == [{"step": 1}, {"step": 2}]


@pytest.mark.parametrize("torn", [b'{"step": 3, "lo', b'{"step"', b"\xff", b'{"text": "\\ud8'])
def test_a_torn_last_line_is_ignored_and_then_overwritten(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "log.jsonl"
    written(path, {"step": 1}, {"step": 2})
    path.write_bytes(path.read_bytes() + torn)
    assert list(read_json_lines(path)) == [{"step": 1}, {"step": 2}]
    assert written(path, {"step": 3}) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_whole_last_line_without_a_line_break_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}')
    assert written(path, {"step": 2}) == [{"step": 1}, {"step": 2}]


def test_a_torn_line_in_the_middle_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ConfigError, match=r"line 2 of .*log\.jsonl is not a JSON object"):
        list(read_json_lines(path))


def test_a_line_that_no_crash_has_torn_is_an_error_also_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\nnonsense\n')
    with pytest.raises(ConfigError, match="line 2 of"):
        list(read_json_lines(path))


def test_reading_takes_memory_for_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    line = to_json(as_record(trajectory("x" * 20_000))) + "\n"
    with path.open("w") as file:
        file.writelines(line for _ in range(1_000))
    tracemalloc.start()
    try:
        count = sum(1 for _ in read_records(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (count, path.stat().st_size > 40_000_000, peak < 2_000_000) == (1_000, True, True)


@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=4),
    block=st.integers(1, 9),
)
def test_the_last_line_is_found_whatever_the_size_of_a_read(lines: list[bytes], block: int) -> None:
    content = b"\n".join(lines)
    with BytesIO(content) as file:
        assert json_lines._start_of_last_line(file, block) == content.rfind(b"\n") + 1


def test_failures_are_kept_beside(tmp_path: Path) -> None:
    failed = trajectory(stop_reason=StopReason.CANCELLED, error="too slow")
    with RecordWriter(tmp_path) as writer:
        for played in (failed, trajectory(), trajectory("go")):
            writer.write(as_record(played))
    assert [entry.name for entry in sorted(tmp_path.iterdir())] == ["failures.jsonl", "rollouts.jsonl"]
    assert [record["return"] for record in read_records(tmp_path)] == [-0.5, -0.5, None]
    [line] = read_json_lines(tmp_path / "failures.jsonl")
    assert (line["stop_reason"], line["error"], line["terminated"], line["truncated"]) == (
        "cancelled",
        "too slow",
        True,
        False,
    )


def test_a_writer_cuts_off_what_a_crash_has_torn_before_it_writes(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text(to_json(as_record(trajectory())) + '\n{"version": 1, "task"')
    with RecordWriter(tmp_path):
        pass
    assert len(list(read_records(tmp_path))) == 1
    assert (tmp_path / "rollouts.jsonl").read_bytes().endswith(b"}\n")


def test_a_folder_without_records_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no records"):
        list(read_records(tmp_path))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"step": 1}', "line 2 of .* is not a record of an episode"),
        (
            '{"version": 2, "task": {}, "turns": []}',
            "line 2 of .* is a record of version 2, but this release reads version 1",
        ),
    ],
)
def test_what_is_no_record_is_an_error_that_names_the_line(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{to_json(as_record(trajectory()))}\n{line}\n")
    with pytest.raises(ConfigError, match=said):
        list(read_records(path))


def test_the_conversation_is_that_of_the_episode() -> None:
    played = trajectory()
    assert messages_of(as_record(played)) == [message.as_dict() for message in played.messages]
    unanswered = trajectory(messages=played.messages[:-1], turns=played.turns[:1])
    assert messages_of(as_record(unanswered)) == [message.as_dict() for message in unanswered.messages]
    assert messages_of(as_record(unanswered))[-1] == {"role": "assistant", "content": "no"}
    assert as_record(unanswered)["unanswered"] == "no"


def test_the_schema_that_is_written_down_is_the_one_that_is_written() -> None:
    page = (Path(__file__).parents[1] / "docs" / "records.md").read_text()
    first_column = "\n".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    named = set(re.findall(r"`([a-z_.]+)`", first_column))
    turn = {*TurnRecord.__annotations__}
    task = {f"task.{name}" for name in TaskRecord.__annotations__}
    record, credit = as_record(trajectory(), replaced=True), {*CreditRecord.__annotations__}
    assert named == {*record, *turn, *task, *credit} - {"task", "turns"} | {"turns"}


def test_what_is_not_wanted_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    written(path, *({"step": step} for step in range(5)))
    keep_json_lines(path, lambda record: record["step"] <= 2)
    assert written(path, {"step": 9}) == [{"step": 0}, {"step": 1}, {"step": 2}, {"step": 9}]
    assert [entry.name for entry in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"return": "high"}, "return must be a number or null, got 'high'"),
        ({"return": float("nan")}, "return must be a number or null of at most 1e+150, got nan"),
        ({"attempt": None}, "attempt must be an integer, got null"),
        ({"group": True}, "group must be an integer or null, got true"),
        (
            {"step": 10**400},
            "step must be an integer or null of at most 1e+150, got an integer of more than 150 digits",
        ),
        ({"mask": [0, 1.5]}, "mask must be a list of integers, got [0, 1.5]"),
        ({"opening": [{"role": "use"}]}, "opening[0].content is missing"),
        ({"turns": [5]}, "turns must be a list of objects"),
        ({"turns": [{"observation": "Say ox."}]}, "turns[0].thinking is missing"),
        ({"task": {"env_id": []}}, "task.env_id must be text or null, got []"),
    ],
)
def test_a_value_of_another_type_is_refused_by_its_field(tmp_path: Path, change: dict[str, Any], problem: str) -> None:
    lines = [{**as_record(trajectory()), **one} for one in ({}, change)]
    (tmp_path / "rollouts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(
        ConfigError, match=f"^line 2 of .*rollouts.jsonl is not a record of an episode: {re.escape(problem)}$"
    ):
        list(read_records(tmp_path))


@given(st.recursive(st.integers() | st.text(), st.lists, max_leaves=5))
def test_unknown_fields_keep_their_values(value: Any) -> None:
    record = complete({**as_record(trajectory()), "note": value}, "it")
    assert dict(record)["note"] == value


@pytest.mark.parametrize("deep", ["[" * 5_000 + "]" * 5_000, '{"a":' * 300 + "1" + "}" * 300, "[" * 150 + "]" * 150])
def test_a_line_that_is_nested_too_deeply_is_no_object(deep: str) -> None:
    assert json_lines.as_object(f'{{"a": {deep}}}'.encode()) is None
    flat = {"a": [{"text": "[[["}] * 300, "b": [1, 2, 3] * 500}
    assert json_lines.as_object(json.dumps(flat).encode()) == flat
