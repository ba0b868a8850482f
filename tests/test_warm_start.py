"""Warm starts: what is trained is what is masked, and a folder is that of a run."""

import io
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from support.command_line import run_command_line
from support.demonstrations import GUESS, SMALL, play, spec_of
from trl import SFTTrainer

from gym_trl.errors import ConfigError
from gym_trl.options import WarmStartOptions
from gym_trl.records.json_lines import read_json_lines
from gym_trl.rollout import Limits
from gym_trl.testing.tiny import save_tiny
from gym_trl.training.options import choose_warm_start, training_after
from gym_trl.training.run import resume
from gym_trl.training.run_folder import wrapping
from gym_trl.training.supervised import (
    WarmStart,
    resume_warm_start,
    sft_rows,
    warm_start,
)

# ---------------------------------------------------------------------------------------------------------------------
# Training
# ---------------------------------------------------------------------------------------------------------------------


def options_of(model: str | None = None, *, lora: int | None = None, **given: Any) -> WarmStartOptions:
    limits: dict[str, Any] = {"action_format": "plain", "max_tokens_per_turn": 2}
    return choose_warm_start(
        GUESS, model=model, env_kwargs=SMALL, lora=lora, **{"episodes": 24, "batch_size": 8, **limits, **given}
    )


def silent() -> Console:
    return Console(file=io.StringIO())


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, WarmStart]:
    folder = tmp_path_factory.mktemp("warm") / "start"
    return folder, warm_start(options_of(steps=60, eval_episodes=32), out=folder, console=silent())


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The batches that the trainer computes a loss on."""
    seen: list[dict[str, Any]] = []
    compute = SFTTrainer.compute_loss

    def watched(self: Any, model: Any, inputs: dict[str, Any], *rest: Any, **named: Any) -> Any:
        seen.append({name: value.tolist() for name, value in inputs.items() if hasattr(value, "tolist")})
        return compute(self, model, inputs, *rest, **named)

    monkeypatch.setattr(SFTTrainer, "compute_loss", watched)
    return seen


@pytest.mark.trl
@pytest.mark.parametrize("policy", ["solver", "random"])
def test_batches_are_the_transcripts_with_a_loss_where_the_mask_is_1(
    policy: str, batches: list[dict[str, Any]], tmp_path: Path
) -> None:
    options = options_of(policy=policy)
    warm_start(options, out=tmp_path / "run", console=silent())
    spec = spec_of(num_tasks=24, max_tokens_per_turn=2, **wrapping(training_after(options)))
    kept = play(policy, spec, limits=Limits(2, 128, 2048), episodes=24).kept
    expected = sorted((row["input_ids"], row["labels"]) for result in kept for row in sft_rows(result))
    rows = []
    for batch in batches:
        columns = (batch[name] for name in ("input_ids", "labels", "attention_mask"))
        for ids, labels, attention in zip(*columns, strict=True):
            size = sum(attention)
            assert attention == [1] * size + [0] * (len(ids) - size)  # padded on the right
            assert set(labels[size:]) <= {-100}
            rows.append((ids[:size], labels[:size]))
    assert sorted(rows) == expected


@pytest.mark.trl
def test_the_head_is_applied_where_there_is_a_label_and_the_loss_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[dict[str, Any]]
) -> None:
    from trl.trainer import utils

    from gym_trl.training import sft_trainer

    scored: list[int] = []
    apply = utils._ChunkedLogProbFunction.apply

    def counted(hidden: Any, *rest: Any) -> Any:
        scored.append(len(hidden))
        return apply(hidden, *rest)

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=counted))
    warm_start(options_of(), out=tmp_path / "some", console=silent())
    labels = [sum(label != -100 for row in batch["labels"] for label in row) for batch in batches]
    assert scored == labels
    scored.clear()
    monkeypatch.setattr(sft_trainer, "heads_without_label", lambda trainer: False)
    warm_start(options_of(), out=tmp_path / "all", console=silent())
    assert min(scored) > 2 * max(labels)
    for name in ("loss", "entropy", "mean_token_accuracy", "num_tokens", "grad_norm"):
        some, every = (read_logged(tmp_path / folder, name) for folder in ("some", "all"))
        assert some == pytest.approx(every, rel=1e-3, abs=1e-5), name


def read_logged(folder: Path, name: str) -> list[float]:
    return [line[name] for line in read_json_lines(folder / "metrics.jsonl")]


@pytest.mark.trl
def test_a_warm_start_teaches_the_format_and_the_game(started: tuple[Path, WarmStart]) -> None:
    _, done = started
    assert (done.played, done.kept, done.dropped, done.steps, done.interrupted) == (24, 24, {}, 60, False)
    assert done.before is not None
    assert done.after is not None
    assert (done.before.invalid_share or 0.0) > 0.7
    assert (done.after.invalid_share or 0.0) < 0.2
    assert (done.after.success or 0.0) > (done.before.success or 0.0) + 0.4


@pytest.mark.trl
def test_a_run_is_not_resumed_as_a_warm_start_nor_the_other_way_round(started: tuple[Path, WarmStart]) -> None:
    folder, _ = started
    with pytest.raises(ConfigError, match=r"is a warm start: train its model with --model .*model"):
        resume(folder, console=silent())
    with pytest.raises(ConfigError, match="is finished"):
        resume_warm_start(folder, console=silent())
    with pytest.raises(ConfigError, match="already has a run"):
        warm_start(options_of(), out=folder, console=silent())


@pytest.mark.trl
def test_an_interrupted_warm_start_ends_as_an_undisturbed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = warm_start(options_of(steps=6), out=tmp_path / "whole", console=silent())
    log = SFTTrainer.log

    def stopped(self: Any, logs: dict[str, float], *rest: Any) -> None:
        log(self, logs, *rest)
        if self.state.global_step == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(SFTTrainer, "log", stopped)
        told = warm_start(options_of(steps=6), out=tmp_path / "stopped", console=silent())
    assert (told.steps, told.interrupted) == (3, True)
    assert told.model.exists()
    done = resume_warm_start(tmp_path / "stopped", console=silent())
    assert (done.steps, done.interrupted) == (6, False)
    one, other = (load_file(result.model / "model.safetensors") for result in (whole, done))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "stopped" / "checkpoints").exists()


def invoke(*arguments: str) -> Any:
    return run_command_line(["warm-start", *arguments])


@pytest.mark.trl
def test_the_command_trains_and_names_the_next_one(tmp_path: Path) -> None:
    few = ["--env-kwargs", "high=8", "--env-kwargs", "turns=4", "--episodes", "8", "--batch-size", "4"]
    result = invoke(GUESS, "--policy", "random", *few, "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "8 of 8 episodes can be trained on" in result.output
    assert "Trained for 2 steps" in result.output
    assert f"gym-trl train {GUESS} --model {tmp_path / 'run' / 'model'} --env_kwargs high=8" in result.output


@pytest.mark.trl
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([GUESS, "--policy", "gone/records"], "there are no records 'gone/records'"),
        ([GUESS, "--policy", "guesser"], "has no policy 'guesser'"),
        (["FrozenLake-v1"], "has no policy 'solver'"),
        ([GUESS, "--lora", "4"], "the tiny model trains all of its weights"),
        ([GUESS, "--model", "./gone/model"], "there is no folder"),
        ([GUESS, "--learning-rate", "0"], "learning_rate"),
        (
            [GUESS, "--env-kwargs", "turns=1", "--env-kwargs", "high=1000", "--episodes", "4"],
            "0 of 4 episodes can be trained on",
        ),
        (["--resume", "gone"], "is not a run"),
        (
            ["--resume", "gone", "--steps", "3"],
            "--resume uses the run's own options, got --steps",
        ),
    ],
)
def test_a_bad_argument_is_told_in_one_line_and_leaves_no_folder(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    out = [] if "--resume" in arguments else ["--out", str(tmp_path / "run")]
    result = invoke(*arguments, *out)
    assert result.exit_code == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.trl
def test_micro_batches_fit_into_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: list[Any]) -> None:
    base = tmp_path / "base"
    save_tiny(base)
    monkeypatch.setattr("gym_trl.training.supervised.free_memory", lambda cpu: 12_000_000)
    warm_start(options_of(str(base)), out=tmp_path / "run", console=silent())
    [size] = {len(batch["input_ids"]) for batch in batches}
    assert 1 <= size < 8
    monkeypatch.setattr("gym_trl.training.supervised.free_memory", lambda cpu: 1000)
    with pytest.raises(ConfigError, match=r"training needs about .*--lora"):
        warm_start(options_of(str(base)), out=tmp_path / "other", console=silent())
    assert not (tmp_path / "other").exists()


@pytest.mark.lm
def test_a_pretrained_model_learns_the_format_in_a_few_steps(pretrained: Path, tmp_path: Path) -> None:
    options = choose_warm_start(
        GUESS,
        model=str(pretrained),
        env_kwargs=SMALL,
        action_format="plain",
        max_tokens_per_turn=8,
        lora=16,
        dtype="bfloat16",
        policy="random",
        episodes=48,
        batch_size=8,
        eval_episodes=12,
    )
    done = warm_start(options, out=tmp_path / "run", console=silent())
    assert done.before is not None
    assert done.after is not None
    assert (done.before.invalid_share or 0.0) > 0.5
    assert (done.after.invalid_share or 0.0) < 0.3
