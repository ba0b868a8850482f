"""Records as logs of Inspect, and back, with the real package."""

import io
import json
import math
import random
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.records import RecordWriter, as_record, messages_of, read_records
from gym_trl.records.inspect_logs import read_inspect_log, write_inspect_logs
from gym_trl.records.schema import Record
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn
from gym_trl.viewer.run import Run

pytest.importorskip("inspect_ai", reason="Inspect is not there: make .venv/.has-interop")

from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log, write_eval_log

pytestmark = pytest.mark.full

GUESS = "TrlEnv/GuessNumber-v0"


def played(policy: str = "random", **options: Any) -> list[Record]:
    kept: list[Record] = []
    evaluate(GUESS, policy, on_episode=lambda record, board: kept.append(record), **options)
    return kept


def thought(**extra: Any) -> Record:
    """Return an episode of a model with thinking, two rewards, counted tokens and an unanswered response."""
    turns = (
        Turn("Go.", Answer("Hm.", "on"), 0.25, True, 0, 2, "on"),
        Turn("On.", Answer("", "stop"), 0.5, False, 3, 4, None, True),
    )
    said = [Message("system", "Play."), Message("user", "Rules. Go."), Message("assistant", "on")]
    said += [Message("user", "On."), Message("assistant", "stop"), Message("user", "Too long.")]
    trace = TokenTrace([1, 2, 3], [4, 5, 6, 7], [1, 1, 0, 1], [-0.1, -0.2, 0.0, -0.3])
    task = Task("TrlEnv/Echo-v0", 7, {"instance": 3})
    episode = EpisodeResult(task, StopReason.TOKEN_LIMIT, turns, tuple(said), trace, model_seconds=2.0, env_seconds=0.5)
    return as_record(episode, tokens=True, **{"policy": "tiny", "split": "train", "step": 4, **extra})


def failed() -> Record:
    return as_record(EpisodeResult(Task("TrlEnv/Echo-v0", 8), StopReason.ENV_ERROR, (), (), error="it broke"))


def logs(records: list[Record], folder: Path) -> list[EvalLog]:
    files = write_inspect_logs(records, folder)
    assert len(list_eval_logs(str(folder))) == len(files)
    return [read_eval_log(file) for file in files]


def test_inspect_computes_the_metrics_that_we_compute(tmp_path: Path) -> None:
    records = played(episodes=12, attempts=3)
    [log] = logs(records, tmp_path)
    assert (log.status, log.eval.task, log.eval.model, log.eval.config.epochs) == ("success", GUESS, "random", 3)
    assert log.results is not None
    found = {score.name: score.metrics for score in log.results.scores}
    returns = [record["return"] or 0.0 for record in records]
    assert found["return"]["mean"].value == pytest.approx(math.fsum(returns) / 12)
    assert found["success"]["accuracy"].value == pytest.approx(sum(bool(record["success"]) for record in records) / 12)


def test_a_log_has_messages_thinking_rewards_seed_and_usage(tmp_path: Path) -> None:
    record = thought()
    [log] = logs([record], tmp_path)
    [sample] = log.samples or []
    assert [message.text for message in sample.messages] == [said["content"] for said in messages_of(record)]
    assert [message.role for message in sample.messages] == ["system", "user", "assistant", "user", "assistant", "user"]
    first, last = (message for message in sample.messages if message.role == "assistant")
    assert first.content[0].reasoning == "Hm."
    assert first.metadata == {"reward": 0.25, "action": "on", "action_valid": True, "action_cut": False}
    assert (last.metadata or {})["action_cut"] is True
    assert sample.metadata["task"] == record["task"]
    assert (sample.metadata["step"], log.eval.metadata) == (4, {"split": "train", "step": 4})
    usage = sample.model_usage["tiny"]
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (4, 3, 7)
    assert log.stats.model_usage["tiny"] == usage
    assert (sample.scores or {})["return"].value == 0.75
    assert sample.total_time == 2.5


def test_an_unscored_episode_is_an_error_and_in_no_metric(tmp_path: Path) -> None:
    [log] = logs([failed(), {**failed(), "return": 1.0, "success": True, "error": None}], tmp_path)
    broken, fine = log.samples or []
    assert broken.error is not None
    assert (broken.error.message, fine.error) == ("it broke", None)
    assert math.isnan((broken.scores or {})["return"].value)
    assert log.results is not None
    assert [(score.scored_samples, score.metrics["stderr"].value) for score in log.results.scores] == [(1, 0.0)] * 2


def test_undeclared_success_is_unscored(tmp_path: Path) -> None:
    [log] = logs([thought()], tmp_path)
    assert thought()["success"] is None
    assert [(sample.scores or {})["success"].reason for sample in log.samples or []] == ["not declared"]


def test_each_environment_policy_and_step_has_its_log(tmp_path: Path) -> None:
    records = [thought(step=step, policy=policy) for step in (1, 2) for policy in ("a/b", "a b")]
    found = logs([*records, *records], tmp_path)
    assert [(log.eval.model, (log.eval.metadata or {})["step"]) for log in found] == [
        ("a/b", 1),
        ("a b", 1),
        ("a/b", 2),
        ("a b", 2),
    ]
    assert [[(sample.id, sample.epoch) for sample in log.samples or []] for log in found] == [
        [(records[0]["task"]["id"], 1), (records[0]["task"]["id"], 2)]
    ] * 4


def test_the_command_writes_logs_and_names_what_opens_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with RecordWriter(tmp_path) as writer:
        writer.write(thought())
        writer.write(failed())
    command = ["export", str(tmp_path), "--to", "inspect", "--out", str(tmp_path / "logs")]
    assert app(command, standalone_mode=False) in (0, None)
    assert "Wrote 2 logs" in capsys.readouterr().out
    assert len(list_eval_logs(str(tmp_path / "logs"))) == 2
    with pytest.raises(ConfigError, match="is not empty"):
        app([*command, "--debug"], standalone_mode=False)


def test_a_log_that_was_written_is_read_as_the_same_episodes(tmp_path: Path) -> None:
    records = [*played(episodes=4, attempts=2), thought(), failed()]
    read = [record for file in write_inspect_logs(records, tmp_path) for record in read_inspect_log(file)]
    fields = "task policy split step group attempt seat opening last_observation unanswered return success terminated"
    fields += " truncated stop_reason error num_turns sampled_tokens"
    for before, after in zip(records, read, strict=True):
        one: Any = before
        again: Any = after
        if before not in records[-2:]:  # of one environment
            assert [again[name] for name in fields.split()] == [one[name] for name in fields.split()]
        assert messages_of(after) == messages_of(before)
        for name in ("thinking", "answer", "action", "reward", "action_valid", "action_cut"):
            assert [turn[name] for turn in again["turns"]] == [turn[name] for turn in one["turns"]]
    assert (read[-1]["return"], read[-1]["error"], read[-1]["stop_reason"]) == (None, "it broke", "env_error")
    assert (read[-2]["return"], read[-2]["stop_reason"], read[-2]["completion_ids"]) == (0.75, "token_limit", None)


def foreign(sample: dict[str, Any], folder: Path, task: str = "gsm8k", suffix: str = "eval") -> Path:
    """Write a log with a sample as other tasks have them."""
    spec = {"created": "2026-01-01T00:00:00+00:00", "task": task, "model": "openai/tiny", "dataset": {}, "config": {}}
    whole = {"id": 1, "epoch": 2, "input": "2 + 2?", "target": "4", **sample}
    write_eval_log(EvalLog.model_validate({"eval": spec, "samples": [whole]}), str(folder / f"log.{suffix}"))
    return folder / f"log.{suffix}"


CALLED = [
    {"role": "user", "content": "2 + 2?"},
    {
        "role": "assistant",
        "content": [{"type": "reasoning", "reasoning": "Add."}, {"type": "text", "text": "I add."}],
        "tool_calls": [{"id": "c1", "function": "add", "arguments": {"a": 2, "b": 2}}],
    },
    {"role": "tool", "content": "4", "tool_call_id": "c1", "function": "add"},
    {"role": "user", "content": "Go on."},
    {"role": "assistant", "content": [{"type": "image", "image": "data:image/png;base64,AAAA"}]},
]


@pytest.mark.parametrize("suffix", ["eval", "json"])
def test_a_log_of_another_task_becomes_an_episode_that_opens_in_the_viewer(suffix: str, tmp_path: Path) -> None:
    usage = {"openai/tiny": {"input_tokens": 9, "output_tokens": 5, "total_tokens": 14}}
    scores = {"match": {"value": "C"}, "style": {"value": 0.5}}
    log = foreign({"messages": CALLED, "scores": scores, "model_usage": usage}, tmp_path, suffix=suffix)
    assert app(["import", str(log), "--out", str(tmp_path / "run")], standalone_mode=False) in (0, None)
    [record] = read_records(tmp_path / "run")
    assert [message["content"] for message in messages_of(record)] == [
        "2 + 2?",
        'I add.\n<tool_call>{"name": "add", "arguments": {"a": 2, "b": 2}}</tool_call>',
        "4\nGo on.",
        "[image]",
    ]
    assert (record["return"], record["success"], record["stop_reason"], record["attempt"]) == (1.0, True, "success", 1)
    assert (record["task"]["id"], record["policy"], record["sampled_tokens"]) == ("gsm8k#1", "openai/tiny", 5)
    assert (record["prompt_ids"], record["completion_ids"], record["prompt_tokens"]) == (None, None, None)
    [body] = Run(tmp_path / "run").read()
    assert [turn["thinking"] for turn in body["turns"]] == ["Add.", ""]
    assert (body["more"]["source"], body["tokens"]) == ("Inspect", None)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({"scores": {"match": {"value": "I"}}}, (0.0, False, "failure")),
        ({"scores": {"f1": {"value": 0.25}}}, (0.25, None, "terminated")),
        ({"scores": {"ok": {"value": True}}}, (1.0, True, "success")),
        ({"scores": {"f1": {"value": 0.25}}, "limit": {"type": "token", "limit": 9}}, (0.25, None, "token_limit")),
        ({"scores": {"f1": {"value": 0.25}}, "limit": {"type": "message", "limit": 9}}, (0.25, None, "turn_limit")),
        ({"scores": {"f1": {"value": float("nan")}}}, (None, None, "env_error")),
        ({}, (None, None, "env_error")),
        (
            {"scores": {"f1": {"value": 1}}, "error": {"message": "x", "traceback": "", "traceback_ansi": ""}},
            (None, None, "env_error"),
        ),
    ],
)
def test_scores_limits_and_errors_of_inspect_are_understood(
    sample: dict[str, Any], expected: tuple[Any, ...], tmp_path: Path
) -> None:
    [record] = read_inspect_log(foreign({"messages": CALLED, **sample}, tmp_path))
    assert (record["return"], record["success"], record["stop_reason"]) == expected


def test_a_log_of_anybody_names_no_module_to_import(tmp_path: Path) -> None:
    task = {"env_id": "os:Evil-v0", "env_kwargs": {}, "seed": 1, "options": {}}
    [record] = read_inspect_log(foreign({"metadata": {"task": task}}, tmp_path, task="os:Evil-v0"))
    assert record["task"]["env_id"] == "os-Evil-v0"


HEADER = b"""{"version": 2, "status": "success", "eval": {"created": "2026-01-01T00:00:00+00:00", "task": "sums",
    "model": "tiny/model", "config": {}, "dataset": {"samples": 1, "sample_ids": ["a"]}}"""


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_an_archive_with_any_wrong_bytes_is_read_or_refused(tmp_path: Path, compression: int) -> None:
    path, whole, numbers = tmp_path / "x.eval", io.BytesIO(), random.Random(0)
    with zipfile.ZipFile(whole, "w", compression) as archive:
        archive.writestr("header.json", HEADER + b"}")
        archive.writestr("samples/a.json", json.dumps({"id": "a", "epoch": 1, "input": "x" * 300, "target": "y"}))
    for _ in range(300):
        content = bytearray(whole.getvalue())
        for _ in range(numbers.choice([1, 1, 2, 5])):
            content[numbers.randrange(len(content))] = numbers.randrange(256)
        path.write_bytes(content)
        with suppress(ConfigError, OSError):
            list(read_inspect_log(path))


def test_damaged_logs_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "x.eval"
    for content, message in [
        (b"nonsense", "is not JSON"),
        (b"[]", "is not a JSON object"),
        (b'{"a": 1}', "is not a log of Inspect: it has a"),
        (b'{"eval": {}}', "is a damaged log of Inspect: eval"),
        (b"[" * 100_000, "is not JSON"),
        (HEADER + b', "samples": 5}', "samples must be a list"),
        (HEADER + b', "samples": [null]}', "is a damaged log of Inspect: sample 0"),
    ]:
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=message):
            list(read_inspect_log(path))
    for files, message in [
        ({"other.txt": "x"}, "has no header.json"),
        ({"header.json": "{}"}, "damaged log of Inspect: header.json"),
        ({"header.json": "nonsense"}, "header.json in .* is not JSON"),
    ]:
        with zipfile.ZipFile(path, "w") as archive:
            for name, text in files.items():
                archive.writestr(name, text)
        with pytest.raises(ConfigError, match=message):
            list(read_inspect_log(path))
    whole = foreign({}, tmp_path).read_bytes()
    (tmp_path / "torn.eval").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match="is not JSON"):
        list(read_inspect_log(tmp_path / "torn.eval"))


def test_a_sample_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gym_trl.records.inspect_logs.LARGEST", 1_000_000)
    log = foreign({}, tmp_path)
    with zipfile.ZipFile(log, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("samples/bomb_epoch_1.json", b" " * 30_000_000)
    assert log.stat().st_size < 100_000
    with pytest.raises(ConfigError, match=r"samples/bomb_epoch_1.json in .* is larger than 1000000 bytes"):
        list(read_inspect_log(log))
    assert not list(tmp_path.glob("**/samples"))
