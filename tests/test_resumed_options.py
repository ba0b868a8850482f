"""A run whose options have options and functions of their own goes on bit for bit after the process was killed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gym_trl.cli.app import app
from gym_trl.records.json_lines import read_json_lines

pytestmark = [
    pytest.mark.trl,
    pytest.mark.full,
    pytest.mark.skipif(sys.platform == "win32", reason="it has no SIGKILL"),
]
MODULE = """
import os, signal
from pathlib import Path
import gymnasium as gym
from gym_trl.grpo.credit import return_to_go


class Paid(gym.Wrapper):
    def step(self, action):
        fuse = Path(os.environ.get("FUSE", "nowhere"))
        if fuse.exists() and fuse.read_text().count("\\n") == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        observation, reward, *others = self.env.step(action)
        return observation, 2.0 * float(reward), *others


def wrap(env):
    return Paid(env)


def observe(observation, info):
    return f"See: {observation}"


def won(info, total):
    return total > 1


def credit(group):
    return return_to_go(group)


def shorten(messages, before):
    return f"{len(messages)} of them"


def opponent(env):
    fuse = Path(os.environ.get("FUSE", "nowhere"))
    if fuse.exists() and fuse.read_text().count("\\n") == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return lambda observation: "bet" if "1" in observation else "check"
"""
SMALL = {
    "steps": 8,
    "episodes_per_step": 16,
    "num_generations": 4,
    "eval_episodes": 8,
    "max_tokens_per_turn": 2,
    "learning_rate": 0.01,
    "grpo": {"save_steps": 3},
}
RUNS: dict[str, dict[str, Any]] = {
    "a curriculum, a history, a cutoff and functions": {
        "env": "TrlEnv/GuessNumber-v0",
        "curriculum": {"levels": [{"high": n, "turns": 5} for n in (1, 2, 3, 4)], "rise": 0.3, "episodes": 16},
        "history": {"last": 1, "most": 2, "summary": "my_task:shorten"},
        "cutoff": {"episode_s": 600, "stragglers": 0.9, "on_cutoff": "truncated"},
        "wrappers": ["my_task:wrap"],
        "observe": "my_task:observe",
        "success": "my_task:won",
        "credit": "my_task:credit",
    },
    "a league": {
        "env": "TrlEnv/KuhnPoker-v0",
        "env_kwargs": {},
        "seats": {"opponents": ["random", "my_task:opponent"], "every": 2, "schedule": "prioritized"},
        "history": {"last": 2},
        "cutoff": {"rollout_s": 600},
    },
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Working directory with the module, which is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "my_task.py").write_text(MODULE, encoding="utf-8")
    yield tmp_path
    sys.modules.pop("my_task", None)


def train(*words: str) -> Result:
    """Train in this process."""
    return CliRunner().invoke(app, ["train", *words])


def learnt(folder: Path) -> list[Any]:
    """Return what a run did, without the clock."""
    steps = [
        {name: one for name, one in line.items() if "second" not in name and "time" not in name and "/s" not in name}
        for line in read_json_lines(folder / "metrics.jsonl")
    ]
    episodes = [
        [record[name] for name in ("step", "split", "task", "return", "success", "stop_reason")]
        for record in read_json_lines(folder / "rollouts.jsonl")
    ]
    return [*steps, *episodes]


@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_of_a_file_goes_on_bit_for_bit(name: str, place: Path) -> None:
    (place / "run.yaml").write_text(json.dumps({**SMALL, **RUNS[name]}), encoding="utf-8")
    whole, killed = place / "whole", place / "killed"
    ran = subprocess.run(
        [sys.executable, "-m", "gym_trl", "train", "run.yaml", "--trust", "--out", "killed"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "FUSE": "killed/metrics.jsonl"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert [line["step"] for line in read_json_lines(killed / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert not (killed / "model").exists()

    refused = train("--resume", "killed")
    assert refused.exit_code == 2
    assert "my_task:" in refused.stderr
    assert "my_task" not in sys.modules
    for words in (["--resume", "killed", "--trust"], ["run.yaml", "--trust", "--out", "whole"]):
        done = train(*words)
        assert done.exit_code == 0, done.output

    options = [json.loads((folder / "config.json").read_text())["options"] for folder in (whole, killed)]
    assert options[0] == options[1]
    assert {key: value for key, value in options[0]["cutoff"].items() if value is not None}.items() >= (
        RUNS[name]["cutoff"].items()
    )
    assert learnt(killed) == learnt(whole)
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed)]
    assert weights[0] == weights[1]
