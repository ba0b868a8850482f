"""Records as logs of Inspect, and back, with the real package."""

import math
from pathlib import Path
from typing import Any

import pytest

from gym_trl.cli.app import app
from gym_trl.errors import ConfigError
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.records import RecordWriter, as_record, messages_of, write_inspect_logs
from gym_trl.records.schema import Record
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn

pytest.importorskip("inspect_ai", reason="Inspect is not there: make .venv/.has-interop")

from inspect_ai.log import EvalLog, list_eval_logs, read_eval_log

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
