import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from support import tiny_trainer
from trl import GRPOTrainer

from gym_trl import GymSpec
from gym_trl.errors import ConfigError
from gym_trl.grpo.parts.part import Rollout
from gym_trl.grpo.transcripts import LogTranscripts, transcript
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn

pytestmark = pytest.mark.trl
ROOT = Path(__file__).parents[2]
TRACKERS = ROOT / ".venv" / ".peers" / "trackers"

REASONS = [one for one in StopReason if one not in (StopReason.FORFEIT, StopReason.UNPLAYED)]  # those of one seat


def played(worth: float | None, answer: str = "ox") -> EpisodeResult:
    reason = StopReason.ENV_ERROR if worth is None else StopReason.FAILURE
    turn = Turn("Say ox.", Answer("", answer), worth or 0.0, True, 0, 1)
    messages = (Message("user", "Say ox."), Message("assistant", answer))
    error = "it broke" if worth is None else None
    return EpisodeResult(
        Task("TrlEnv/Echo-v0", 1), reason, (turn,), messages, TokenTrace([1], [2], [1], [-0.5]), error=error
    )


class Tables(ModuleType):
    """Stands in for a tracker's module where only its table is looked at; the real ones are in the test above it."""

    def __init__(self) -> None:
        super().__init__("tracker")
        self.logged: list[Any] = []

    def log(self, values: Any) -> None:
        self.logged.append(values)

    def Table(self, **content: Any) -> Any:
        return content


@pytest.mark.full
def test_tensorboard_gets_the_environments_numbers_and_some_transcripts(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard", reason="TensorBoard is not installed: make test-full does it")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    transcripts = LogTranscripts(every=2, count=2)
    kwargs = {"alphabet": "ab", "word_length": 2}
    spec = GymSpec(
        "TrlEnv/Echo-v0", num_tasks=8, env_kwargs=kwargs, on_rollout=transcripts.on_rollout, max_tokens_per_turn=2
    )
    grpo = {"max_steps": 3, "per_device_train_batch_size": 8, "report_to": "tensorboard"}
    trainer = tiny_trainer.make(tmp_path, spec, GRPOTrainer, grpo=grpo)
    transcripts.attach(trainer)
    trainer.train()
    [folder] = {file.parent for file in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    names = {"return", "success", "turns", "invalid_actions", "unscored", *(f"stop/{one}" for one in REASONS)}
    assert {f"train/env/{name}" for name in names} <= set(tags["scalars"])
    assert [event.step for event in events.Scalars("train/env/return")] == [1, 2, 3]
    texts = [tag for tag in tags["tensors"] if "transcripts" in tag]
    assert sorted(texts) == ["transcripts/0/text_summary", "transcripts/1/text_summary"]
    assert [event.step for event in events.Tensors(texts[0])] == [1, 3]
    text = events.Tensors(texts[0])[0].tensor_proto.string_val[0].decode()
    assert text.startswith("    TrlEnv/Echo-v0, seed ")
    assert "\n    [assistant] " in text


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.skipif(not (TRACKERS / "wandb").is_dir(), reason="W&B is not there: make .venv/.peers/trackers")
def test_wandb_and_trackio_write_the_same_numbers_without_a_network(tmp_path: Path) -> None:
    # Nobody answers at this address, which is where anything that asks the network would be sent.
    away = "http://127.0.0.1:9"
    env = os.environ | {
        "PYTHONPATH": f"{TRACKERS}{os.pathsep}{ROOT}{os.pathsep}{ROOT / 'tests'}",
        "HTTPS_PROXY": away,
        "HTTP_PROXY": away,
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(tmp_path),
        "TRACKIO_DIR": str(tmp_path / "trackio"),
    }
    script = [sys.executable, str(Path(__file__).with_name("train_with_trackers.py")), str(tmp_path)]
    ran = subprocess.run(script, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    read = json.loads((tmp_path / "read.json").read_text())
    numbers = {name: [one for one in read[name] if "train/env/return" in one] for name in ("wandb", "trackio")}
    names = {"return", "success", "turns", "invalid_actions", "unscored", *(f"stop/{one}" for one in REASONS)}
    for logged in numbers.values():
        assert len(logged) == 3
        assert all({f"train/env/{name}" for name in names} <= set(one) for one in logged)
        assert all(sum(one[f"train/env/stop/{reason}"] for reason in REASONS) == pytest.approx(1) for one in logged)
        told = [[one[f"train/env/{name}"] for name in sorted(names)] for one in logged]
        known = [[one[f"env/{name}"] for name in sorted(names)] for one in read["trainer"] if "env/return" in one]
        assert told == known
        assert any(one["train/env/return"] for one in logged)
    rows = {
        "wandb": [one["transcripts"]["data"] for one in read["wandb"] if "transcripts" in one],
        "trackio": [
            [list(row.values()) for row in one["transcripts"]["_value"]]
            for one in read["trackio"]
            if "transcripts" in one
        ],
    }
    assert rows["wandb"] == rows["trackio"]
    assert [[row[0] for row in table] for table in rows["wandb"]] == [[1, 1], [3, 3]]
    for row in (row for table in rows["wandb"] for row in table):
        assert json.loads(row[1])["env_id"] == "TrlEnv/Echo-v0"
        assert re.match(r"TrlEnv/Echo-v0, seed [0-9]+: ", row[4])
        assert "\n[assistant] " in row[4]


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_table_has_the_worst_the_best_and_some_between(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = Tables()
    monkeypatch.setitem(__import__("sys").modules, name, tracker)
    transcripts = LogTranscripts(count=3)
    transcripts.attach(
        SimpleNamespace(callback_handler=SimpleNamespace(callbacks=[]), add_callback=lambda callback: None)
    )
    transcripts.on_rollout(Rollout("train", 0, [played(worth) for worth in (0.5, None, 1.0, -1.0, 0.0)]))
    transcripts.on_rollout(Rollout("eval", 0, [played(9.0)]))
    state = SimpleNamespace(is_world_process_zero=True, global_step=1)
    transcripts.on_step_end(SimpleNamespace(report_to=[name]), state, None)
    [logged] = tracker.logged
    table = logged["transcripts"]
    rows = table["data"] if name == "wandb" else table["dataframe"].to_numpy().tolist()
    assert [row[0] for row in rows] == [1, 1, 1]
    assert [row[2] if row[3] != "env_error" else None for row in rows] == [None, 0.0, 1.0]  # worst, middle, best
    assert "[error] it broke" in rows[0][4]


def test_a_failed_episode_says_what_went_wrong_in_its_transcript() -> None:
    assert transcript(played(None)).splitlines()[-1] == "[error] it broke"


def test_numbers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="every must be an integer of at least 1, got 0"):
        LogTranscripts(every=0)
