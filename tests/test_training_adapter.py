"""A run that trains an adapter is resumed, evaluated, trained further and exported like any other."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.command_line import run_command_line
from support.fused_game import registered

from gym_trl.errors import ConfigError
from gym_trl.options import TrainOptions
from gym_trl.policies.weights import is_run, load_weights, read_adapter
from gym_trl.records.json_lines import read_json_lines
from gym_trl.testing.tiny import save_tiny
from gym_trl.training.model_checks import ROWS_AT_ONCE, MicroBatch, choose_micro_batch
from gym_trl.training.models import ModelChoice
from gym_trl.training.options import PRETRAINED, choose, read_options
from gym_trl.training.run import resume, train

pytestmark = pytest.mark.trl

SMALL: dict[str, Any] = {
    "steps": 4,
    "episodes_per_step": 16,
    "num_generations": 4,
    "eval_episodes": 4,
    "max_tokens_per_turn": 3,
    "action_format": "plain",
    "lora": 4,
    "success": 0.5,
    "grpo": {"max_completion_length": 16, "learning_rate": 1e-2, "save_steps": 2},
}


def options(base: Path, **changes: Any) -> TrainOptions:
    return choose("Tests/Fused-v0", model=str(base), **{**SMALL, **changes})


@pytest.fixture(scope="module", autouse=True)
def _game() -> Iterator[None]:
    with registered():
        yield


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    save_tiny(folder, width=32, layers=1)
    return folder


@pytest.fixture(scope="module")
def finished(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of an adapter, with what it printed in ``said``."""
    out = tmp_path_factory.mktemp("run") / "run"
    with (out.parent / "said").open("w", encoding="utf-8") as said:
        train(options(base), out=out, console=Console(file=said, width=200))
    return out


def weights(folder: Path) -> dict[str, Any]:
    return dict(load_weights(str(folder)).named_parameters())


def test_the_model_of_the_run_is_an_adapter_that_names_its_base(finished: Path, base: Path) -> None:
    adapter = read_adapter(str(finished / "model"))
    assert adapter is not None
    assert (adapter.base, adapter.rank) == (str(base.resolve()), 4)
    assert is_run(finished)
    card = (finished / "model" / "README.md").read_text(encoding="utf-8")
    assert 'library_name: "peft"' in card
    assert str(base) not in card  # as PEFT's own card has it
    for folder in (finished / "model", finished / "checkpoints" / "checkpoint-4"):
        assert not (folder / "model.safetensors").exists()
    before, after = weights(base), weights(finished / "model")
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_a_resumed_run_ends_with_the_same_adapter_to_the_last_bit(finished: Path, base: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(options(base, steps=2), out=out, console=Console(quiet=True))
    resume(out, steps=4, console=Console(quiet=True))
    again, whole = weights(out / "model"), weights(finished / "model")
    assert all(torch.equal(again[name], whole[name]) for name in whole)
    logged = [[log["grad_norm"] for log in read_json_lines(one / "metrics.jsonl")] for one in (out, finished)]
    assert logged[0] == logged[1]
    assert any(logged[0])


def test_eval_takes_the_run(finished: Path) -> None:
    done = run_command_line(["eval", "--model", str(finished), "--episodes", "4", "--json"])
    assert done.exit_code == 0, done.output


@pytest.mark.full
def test_the_command_trains_in_bfloat16_against_a_reference(base: Path, tmp_path: Path) -> None:
    arguments = ["--lora", "2", "--lora-alpha", "4", "--lora-targets", "q_proj", "--dtype", "bfloat16"]
    arguments += [
        "--steps",
        "1",
        "--episodes-per-step",
        "8",
        "--num-generations",
        "4",
        "--eval-episodes",
        "4",
        "--max-tokens-per-turn",
        "3",
    ]
    arguments += ["--grpo", "beta=0.1", "--max-completion-length", "16", "--out", str(tmp_path / "run")]
    done = run_command_line(["train", "TrlEnv/Echo-v0", "--model", str(base), *arguments])
    assert done.exit_code == 0, done.output
    recorded = read_options(tmp_path / "run")
    assert (recorded.lora, recorded.lora_alpha, recorded.lora_targets) == (2, 4.0, ("q_proj",))
    config = json.loads((tmp_path / "run" / "model" / "adapter_config.json").read_text())
    assert config["target_modules"] == ["q_proj"]


def test_an_adapter_has_a_learning_rate_ten_times_that_of_all_weights(base: Path) -> None:
    assert PRETRAINED.learning_rate == 1e-6
    for given in ({"lora": 4}, {"lora": 4, "dtype": "bfloat16"}):
        assert choose(model=str(base), **given).learning_rate == 1e-5
    assert choose(model=str(base)).learning_rate == 1e-6


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"lora": 4}, "lora needs a model: the tiny model trains all of its weights"),
        ({"model": "Qwen/Qwen3-0.6B", "dtype": "bfloat16"}, "dtype='bfloat16' requires lora"),
        (
            {"model": "Qwen/Qwen3-0.6B", "lora": 4, "grpo": {"model_init_kwargs": {"dtype": "auto"}}},
            "model_init_kwargs cannot be combined with lora",
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose(**given)


def test_micro_batches_shrink_with_memory_after_gradient_checkpointing(base: Path) -> None:
    def chosen(free: float, rows: int = 64, **given: Any) -> MicroBatch:
        choice = ModelChoice(model=str(base), lora=4)
        return choose_micro_batch(choice, rows=rows, tokens=1000, free=int(free), **given)

    plenty = chosen(1e12)
    assert (plenty.rows, plenty.checkpointing) == (ROWS_AT_ONCE, False)
    assert chosen(1e12, rows=12).rows == 4
    found = [chosen(plenty.needed / 0.8 * share) for share in (1.0, 0.99, 0.6, 0.4, 0.2, 0.01)]
    assert [one.rows for one in found][:2] == [8, 4]
    assert [one.checkpointing for one in found] == sorted(one.checkpointing for one in found)
    assert [one.needed for one in found] == sorted((one.needed for one in found), reverse=True)
    assert (found[-1].rows, found[-1].checkpointing) == (1, True)
    assert not chosen(plenty.needed / 10, checkpointing=False).checkpointing


@pytest.mark.lm
def test_the_command_trains_an_adapter_of_the_pretrained_model(pretrained: Path, tmp_path: Path) -> None:
    arguments = [
        "--lora",
        "16",
        "--dtype",
        "bfloat16",
        "--env-kwargs",
        "high=8",
        "--env-kwargs",
        "turns=2",
        "--max-tokens-per-turn",
        "6",
    ]
    arguments += ["--action-format", "plain", "--turn-limit", "2", "--max-completion-length", "256"]
    arguments += ["--steps", "1", "--episodes-per-step", "8", "--num-generations", "4", "--eval-episodes", "4"]
    out = tmp_path / "run"
    done = run_command_line(
        ["train", "TrlEnv/GuessNumber-v0", "--model", str(pretrained), *arguments, "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    adapter = read_adapter(str(out / "model"))
    assert adapter is not None
    assert (adapter.base, adapter.rank) == (str(pretrained.resolve()), 16)
    assert (out / "model" / "adapter_model.safetensors").stat().st_size < 1 << 25  # 5 million weights, not 135
    [log] = read_json_lines(out / "metrics.jsonl")
    assert log["entropy"] > 0
