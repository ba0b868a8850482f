"""``train`` with ``vllm=``: the real vLLM where it can be, and the double of its server."""

from pathlib import Path
from typing import Any

import pytest
from engines.vllm_double import VLLMDouble
from fused_game import FILES, lines, summary
from support import vllm_run

from gym_trl.setting import Setting
from gym_trl.testing import save_tiny

LARGE = ["--learning_rate=0.02", "--grpo.lr_scheduler_type=constant"]
SMALL = ["--groups=2", "--num_generations=4", "--eval_episodes=8", "--max_tokens_per_turn=3"]
GUESS = ["train", "TrlEnv/GuessNumber-v0", *SMALL]
RATIO = "sampling/importance_sampling_ratio"
pytestmark = [
    pytest.mark.needs(package="vllm"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    vllm_run.run("gym_trl", *GUESS, "--vllm=colocate", "--steps=3", "--save_steps=2", *LARGE, f"--out={folder}")
    return folder


def test_a_run_leaves_its_folder_and_its_settings(finished: Path) -> None:
    assert {entry.name for entry in finished.iterdir()} == FILES
    assert [line["step"] for line in lines(finished)] == [1, 2, 3]
    assert {"before", "after"} <= summary(finished).keys()
    assert Setting.beside(finished).max_tokens_per_turn == 3


def test_the_engine_samples_from_the_weights_of_each_step(finished: Path) -> None:
    """Law 4."""
    assert all(line["grad_norm"] > 0 for line in lines(finished))
    assert [line[f"{RATIO}/mean"] for line in lines(finished)] == pytest.approx([1.0] * 3, abs=1e-3)


def test_a_run_goes_on_with_vllm_from_its_checkpoint(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    given: list[Any] = ["--vllm=colocate", "--save_steps=2", *LARGE]
    vllm_run.run("gym_trl", *GUESS, *given, "--steps=2", f"--out={folder}")
    vllm_run.run("gym_trl", "train", f"--resume={folder}", "--steps=3")
    assert [line["step"] for line in lines(folder)] == [1, 2, 3]
    assert lines(folder)[2][f"{RATIO}/mean"] == pytest.approx(1.0, abs=1e-3)


def test_a_server_is_asked_at_the_temperature_of_the_training(tmp_path: Path) -> None:
    """With the double: TRL gives a server its weights over NCCL, for which both sides need a GPU."""
    save_tiny(tmp_path / "tiny")
    with VLLMDouble(lambda body: [body["seed"] % 90 + 8]) as server:
        vllm_run.run(
            *("gym_trl", *GUESS, "--vllm=server", f"--grpo.vllm_server_base_url={server.url}", "--steps=2"),
            *(f"--model={tmp_path / 'tiny'}", "--action_format=plain", "--lora=0", "--grpo.temperature=0.5"),
            f"--out={tmp_path / 'run'}",
        )
        temperatures = {body["temperature"] for body in server.bodies if "seed" in body and body["max_tokens"] > 1}
    assert temperatures == {0.5}
