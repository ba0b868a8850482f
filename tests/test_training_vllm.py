"""``gym-trl train --vllm``: the same run as with Transformers, with the real vLLM where it can be."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import vllm_run
from support.vllm_double import VLLMDouble

from gym_trl.records.json_lines import read_json_lines
from gym_trl.testing import save_tiny

FILES = {
    "config.json",
    "metrics.jsonl",
    "rollouts.jsonl",
    "curve.png",
    "summary.json",
    "model",
    "checkpoints",
} | {"tokenizer"}
LARGE = ["--learning-rate=0.02", "--grpo=lr_scheduler_type=constant"]
SMALL = ["--episodes-per-step=8", "--num-generations=4", "--eval-episodes=8", "--max-tokens-per-turn=3"]
RATIO = "sampling/importance_sampling_ratio"
needs_vllm = [
    pytest.mark.vllm,
    pytest.mark.trl,
    pytest.mark.processes,
]


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_json_lines(folder / name))


def played(folder: Path) -> list[dict[str, Any]]:
    """Return the records, without the clock."""
    return [record | {"model_seconds": 0, "env_seconds": 0} for record in lines(folder, "rollouts.jsonl")]


def answers(folder: Path, split: str, *, greedy: bool) -> set[str]:
    """Return the first response of each episode on record."""
    records = lines(folder, "rollouts.jsonl")
    return {
        record["turns"][0]["answer"]
        for record in records
        if (record["split"], record["greedy"]) == (split, greedy) and record["step"]
    }


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    vllm_run.run(
        "gym_trl", "train", "--vllm=colocate", "--steps=3", "--grpo=save_steps=2", *LARGE, f"--out={folder}", *SMALL
    )
    return folder


class TestColocated:
    pytestmark = needs_vllm

    def test_a_runs_folder_is_complete(self, finished: Path) -> None:
        assert {entry.name for entry in finished.iterdir()} == FILES
        assert [line["step"] for line in lines(finished)] == [1, 2, 3]
        assert {"success_before", "success_after", "success_after_greedy"} <= set(
            json.loads((finished / "summary.json").read_text())
        )

    def test_the_engine_samples_from_the_weights_of_each_step(self, finished: Path) -> None:
        assert all(line["grad_norm"] > 0 for line in lines(finished))
        assert [line[f"{RATIO}/mean"] for line in lines(finished)] == pytest.approx([1.0] * 3, abs=1e-3)

    def test_greedy_play_is_greedy(self, finished: Path) -> None:
        # Every game begins with the same words here.
        assert len(answers(finished, "eval", greedy=True)) == 1 < len(answers(finished, "eval", greedy=False))

    def test_a_run_goes_on_with_vllm_from_its_checkpoint(self, finished: Path, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        shutil.copytree(finished, folder)
        shutil.rmtree(folder / "checkpoints" / "checkpoint-3")
        vllm_run.run("gym_trl", "train", "--resume", folder)
        again, before = lines(folder), lines(finished)
        assert [line["step"] for line in again] == [1, 2, 3]
        for name in ("loss", "reward", "grad_norm", f"{RATIO}/mean"):
            assert again[2][name] == pytest.approx(before[2][name], rel=1e-4), name

    def test_the_last_evaluation_is_of_the_last_weights(self, finished: Path, tmp_path: Path) -> None:
        """The engine of a new process reads it from the checkpoint, and that of the run was given it."""
        folder = tmp_path / "run"
        shutil.copytree(finished, folder)
        told = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps({name: told[name] for name in told if "after" not in name}))
        vllm_run.run("gym_trl", "train", "--resume", folder)
        assert played(folder) == played(finished)


class TestServer:
    """With the double: TRL gives a server its weights over NCCL, for which both sides need a GPU."""

    pytestmark = needs_vllm

    def test_every_evaluation_is_sampled_at_its_own_temperature(self, tmp_path: Path) -> None:
        save_tiny(tmp_path / "tiny")
        with VLLMDouble(lambda body: [body["seed"] % 90 + 8]) as server:
            vllm_run.run(
                *("gym_trl", "train", "--vllm=server", f"--grpo=vllm_server_base_url={server.url}", "--steps=2"),
                *(f"--model={tmp_path / 'tiny'}", "--action-format=plain", "--grpo=temperature=0.5", *SMALL),
                f"--out={tmp_path / 'run'}",
            )
            temperatures = [body["temperature"] for body in server.bodies if "seed" in body and body["max_tokens"] > 1]
        assert temperatures == sorted(temperatures, reverse=True)
        assert set(temperatures) == {0.5, 0.0}
