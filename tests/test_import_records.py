"""Episodes of verifiers as records. The files in ``tests/foreign`` were written by the writers of those versions:
``verifiers.v1.utils.trace_store.write_episode``, and ``states_to_outputs``, ``save_outputs`` and ``save_metadata``.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError
from gym_trl.records import (
    RecordWriter,
    messages_of,
    read_foreign,
    read_records,
    sft_rows,
)
from gym_trl.records.otel import write_otel
from gym_trl.records.schema import Record
from gym_trl.records.verifiers_results import read_verifiers
from gym_trl.types import StopReason
from gym_trl.viewer.run import Run

FOREIGN = Path(__file__).parent / "foreign"
NEW, OLD = FOREIGN / "verifiers-0.4.0", FOREIGN / "verifiers-0.1.14"


def said(record: Record) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in messages_of(record)]


def test_a_trace_of_verifiers_is_an_episode_with_tokens() -> None:
    record = next(read_verifiers(NEW))
    assert said(record) == [
        ("system", "Be brief."),
        ("user", "2 + 2?"),
        ("assistant", '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'),
        ("user", "4"),
        ("assistant", "It is 4."),
    ]
    assert [turn["thinking"] for turn in record["turns"]] == ["I add.", ""]
    assert [turn["reward"] for turn in record["turns"]] == [0.0, 1.25]
    assert (record["return"], record["success"], record["policy"]) == (1.25, None, "tiny/model")
    assert (record["prompt_ids"], record["completion_ids"]) == ([1, 2, 3, 4, 5], [6, 7, 8, 9, 10])
    assert record["mask"] == [1, 1, 0, 0, 1]
    assert record["logprobs"] == [-0.5, -0.25, 0.0, 0.0, -0.125]
    ids = record["completion_ids"] or []
    assert [ids[turn["start"] : turn["stop"]] for turn in record["turns"]] == [[6, 7], [10]]
    assert (record["sampled_tokens"], record["completion_tokens"]) == (3, 5)


def test_episodes_without_ids_have_none() -> None:
    for record in [*list(read_verifiers(NEW))[1:], *read_verifiers(OLD)]:
        assert [record["prompt_ids"], record["completion_ids"], record["mask"], record["logprobs"]] == [None] * 4
        assert record["prompt_tokens"] is None
        assert all(turn["start"] is None for turn in record["turns"])


def test_the_end_of_a_trace_is_told() -> None:
    found = list(read_verifiers(NEW))
    assert [(record["stop_reason"], record["return"]) for record in found] == [
        ("terminated", 1.25),
        ("token_limit", 0.0),
        ("env_error", None),
        ("turn_limit", 1.0),
        ("timeout", None),
    ]
    assert [record["truncated"] for record in found] == [False, True, False, True, False]
    assert (found[2]["error"], found[4]["error"]) == (
        "ModelError: 503 from the endpoint",
        "TimeoutError: setup took 60 s",
    )
    assert found[1]["sampled_tokens"] == 8


def test_the_last_branch_of_a_trace_is_its_episode() -> None:
    record: Any = list(read_verifiers(NEW))[3]
    assert said(record) == [("user", "2 + 2, again?"), ("assistant", "4")]
    assert record["branches"] == 2


def test_attempts_at_a_task_are_a_group() -> None:
    for folder, expected in ((NEW, [(0, 0), (1, 0), (2, 0), (0, 1)]), (OLD, [(0, 0), (0, 1), (1, 0), (2, 0)])):
        assert [(record["group"], record["attempt"]) for record in read_verifiers(folder)][:4] == expected


def test_results_of_older_verifiers_are_episodes() -> None:
    first, cut, text, broken = read_verifiers(OLD)
    assert said(first)[2:] == [
        ("assistant", '<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>'),
        ("user", "4"),
        ("assistant", "It is 4."),
    ]
    assert (first["policy"], first["task"]["id"], first["sampled_tokens"]) == ("tiny/model", "sums#0", 3)
    assert (cut["stop_reason"], cut["return"], cut["truncated"]) == ("turn_limit", 0.0, True)
    assert said(text) == [("user", "2 + 3 ="), ("assistant", " 5")]
    assert (broken["return"], broken["error"]) == (None, "ValueError('503 from the endpoint')")


@pytest.mark.parametrize(("folder", "count"), [(NEW, 5), (OLD, 4)])
def test_imported_episodes_open_in_the_viewer_and_are_exported(folder: Path, count: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert app(["import", str(folder), "--out", str(out)], standalone_mode=False) in (0, None)
    run = Run(out)
    bodies = list(run.read())
    assert (len(bodies), run.broken) == (count, 0)
    assert bodies[0]["turns"][-1]["answer"] == "It is 4."
    assert bodies[0]["more"]["source"] == "verifiers"
    assert (bodies[0]["tokens"] is not None) == (folder is NEW)
    assert {*run.columns["env"]} == {"sums"}
    records = list(read_records(out))
    assert len(list(sft_rows(records))) == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"turns": [], "task": {}}, r"line 1 of .* is no result of verifiers, which has traces, or completion and"),
        ({"traces": [{"nodes": [{"parent": 3, "message": {"role": "user"}}]}]}, r"has the parent 3"),
        ({"traces": [7]}, r"line 1 of .* is a damaged result of verifiers"),
        ({"completion": [5], "reward": 1}, r"line 1 of .* is a damaged result of verifiers"),
    ],
)
def test_damaged_results_are_refused_by_line(line: dict[str, Any], message: str, tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ConfigError, match=message):
        list(read_verifiers(tmp_path))


def test_a_reward_beyond_all_floats_is_none(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps({"completion": "4", "reward": 10**400}) + "\n")
    [record] = read_verifiers(tmp_path)
    assert (record["return"], record["stop_reason"]) == (None, StopReason.ENV_ERROR)


@pytest.mark.parametrize("depth", [400, 800, 5_000])
def test_nested_values_are_refused_or_can_be_written_again(depth: int, tmp_path: Path) -> None:
    metrics = "[" * depth + "]" * depth
    (tmp_path / "results.jsonl").write_text(f'{{"completion": "4", "reward": 1, "metrics": {{"a": {metrics}}}}}\n')
    try:
        records = list(read_verifiers(tmp_path))
    except ConfigError as error:
        assert str(error).startswith("line 1 of")  # noqa: PT017 -- it depends on Python's version
    else:
        with RecordWriter(tmp_path) as writer:
            writer.write(records[0])
        assert write_otel(tmp_path, tmp_path / "spans.out") == 1


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no"):
        read_foreign(tmp_path / "nothing")
    with pytest.raises(ConfigError, match=r"cannot be imported: give .*traces.jsonl, results.jsonl or their folder"):
        read_foreign(tmp_path)
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigError, match=r"cannot be imported: give a log of Inspect \(.eval, .json\) or"):
        read_foreign(tmp_path / "notes.txt")


def test_an_import_that_fails_leaves_no_folder(tmp_path: Path) -> None:
    bad = tmp_path / "results.jsonl"
    bad.write_text((OLD / "results.jsonl").read_text() + "[]\n")
    with pytest.raises(ConfigError, match="line 5"):
        app(["import", str(bad), "--out", str(tmp_path / "run"), "--debug"], standalone_mode=False)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_a_name_from_a_file_imports_no_module(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text((OLD / "results.jsonl").read_text())
    (tmp_path / "metadata.json").write_text('{"env_id": "os:sums"}')
    assert {record["task"]["env_id"] for record in read_verifiers(tmp_path)} == {"os-sums"}
