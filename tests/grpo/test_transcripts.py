# mypy: allow-untyped-calls
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")

from trl import GRPOConfig, GRPOTrainer  # noqa: E402 -- they need torch

from gym_trl import GymSpec  # noqa: E402
from gym_trl.errors import ConfigError  # noqa: E402
from gym_trl.grpo.rollout_func import Rollout  # noqa: E402
from gym_trl.grpo.transcripts import LogTranscripts, transcript  # noqa: E402
from gym_trl.tiny import tiny_model, tiny_tokenizer  # noqa: E402
from gym_trl.types import Answer, Message, StopReason, Task, Trajectory, Turn  # noqa: E402

pytestmark = pytest.mark.trl


def played(worth: float | None, answer: str = "ox") -> Trajectory:
    reason = StopReason.ENV_ERROR if worth is None else StopReason.FAILURE
    turn = Turn("Say ox.", Answer("", answer), worth or 0.0, True, 0, 1)
    messages = (Message("user", "Say ox."), Message("assistant", answer))
    error = "it broke" if worth is None else None
    return Trajectory(Task("TrlEnv/Echo-v0", 1), reason, [1], [2], [1], [-0.5], (turn,), messages, error)


class Tables(ModuleType):
    """Stands in for a tracker's module, which talks to a server."""

    def __init__(self) -> None:
        super().__init__("tracker")
        self.logged: list[Any] = []

    def log(self, values: Any) -> None:
        self.logged.append(values)

    def Table(self, **content: Any) -> Any:
        return content


def test_tensorboard_gets_the_environments_numbers_and_some_transcripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    transcripts = LogTranscripts(every=2, count=2)
    kwargs = {"alphabet": "ab", "word_length": 2}
    spec = GymSpec(
        "TrlEnv/Echo-v0", num_tasks=8, env_kwargs=kwargs, on_rollout=transcripts.on_rollout, max_tokens_per_turn=2
    )
    tokenizer = tiny_tokenizer()
    args = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=3,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=64,
        use_cpu=True,
        bf16=False,
        report_to="tensorboard",
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer, width=16, layers=1),
        processing_class=tokenizer,
        args=args,
        train_dataset=spec.train_dataset,
        rollout_func=spec.rollout_func,
        reward_funcs=spec.reward_funcs,
    )
    transcripts.attach(trainer)
    trainer.train()
    [folder] = {file.parent for file in tmp_path.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = events.Tags()
    names = {"return", "success", "turns", "invalid_actions", "unscored", *(f"stop/{one}" for one in StopReason)}
    assert {f"train/env/{name}" for name in names} <= set(tags["scalars"])
    assert [event.step for event in events.Scalars("train/env/return")] == [1, 2, 3]
    texts = [tag for tag in tags["tensors"] if "transcripts" in tag]
    assert sorted(texts) == ["transcripts/0/text_summary", "transcripts/1/text_summary"]
    assert [event.step for event in events.Tensors(texts[0])] == [1, 3]
    text = events.Tensors(texts[0])[0].tensor_proto.string_val[0].decode()
    assert text.startswith("    TrlEnv/Echo-v0, seed ")
    assert "\n    [assistant] " in text


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_other_trackers_get_a_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas")
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
    with pytest.raises(ConfigError, match="every must be at least 1, got 0"):
        LogTranscripts(every=0)
