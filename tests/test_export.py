import json
from pathlib import Path
from typing import Any

import pytest

from gym_trl.episode import Episode, Turn
from gym_trl.evaluation.evaluation import evaluate
from gym_trl.records.export import preference_rows, sft_rows
from gym_trl.records.json_lines import write_json_lines
from gym_trl.records.schema import Record, as_record, messages_of
from gym_trl.testing import save_tiny
from gym_trl.types import Answer, Message, StopReason, Task

GUESS = "TrlEnv/GuessNumber-v0"


def played(policy: Any, episodes: int, **options: Any) -> list[Record]:
    kept: list[Record] = []
    evaluate(GUESS, policy, episodes=episodes, on_episode=lambda record, board: kept.append(record), **options)
    return kept


def thought() -> Record:
    turns = [Turn("Go.", Answer("Hm.", "on")), Turn("On.", Answer("", "stop"), 1.0)]
    said = [Message("system", "Play."), Message("user", "Rules. Go."), Message("assistant", "on")]
    said += [Message("user", "On."), Message("assistant", "stop"), Message("user", "Won.")]
    return as_record(Episode(Task("X-v0", 0), turns=turns, messages=said, stop_reason=StopReason.ENDED))


def test_conversations_end_with_the_models_last_answer() -> None:
    [row] = sft_rows([thought()])
    assert [message["content"] for message in row["messages"]] == ["Play.", "Rules. Go.", "on", "On.", "stop"]
    assert row["messages"] == messages_of(thought())[:-1]


def test_thinking_is_put_before_answers_on_request() -> None:
    [row] = sft_rows([thought()], thinking=True)
    said = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
    assert said == ["<think>\nHm.\n</think>\n\non", "stop"]


def test_conversations_are_filtered_by_what_they_were_worth() -> None:
    records = played("random", 60, seed=3)
    won = sum(bool(record["success"]) for record in records)
    assert 0 < won < 60
    assert len(list(sft_rows(records))) == 60
    assert len(list(sft_rows(records, min_return=0.5))) == len(list(sft_rows(records, successes=True))) == won
    failed: Any = {**records[0], "return": None}
    assert list(sft_rows([failed])) == []


def test_games_that_nobody_knows_are_no_pairs() -> None:
    records = played("random", 16, attempts=8, env_kwargs={"high": 10, "turns": 3})
    assert len(list(preference_rows(records))) == 2
    for record in records:
        record["task"] |= {"id": "TrlEnv/GuessNumber-v0#None", "seed": None}
    assert list(preference_rows([{**record, "opening": records[0]["opening"]} for record in records])) == []


def test_pairs_are_the_best_and_the_worst_of_a_game() -> None:
    records = played("random", 80, attempts=8, env_kwargs={"high": 10, "turns": 3})
    pairs = list(preference_rows(records))
    games: dict[str, list[Record]] = {}
    for record in records:
        games.setdefault(record["task"]["id"], []).append(record)
    mixed = [game for game in games.values() if len({record["return"] for record in game}) == 2]
    assert 0 < len(pairs) == len(mixed) <= 10
    for pair, game in zip(pairs, mixed, strict=True):
        assert pair["prompt"] == game[0]["opening"]
        won = [messages_of(record)[:-1] for record in game if record["success"]]
        lost = [messages_of(record)[:-1] for record in game if not record["success"]]
        assert [*pair["prompt"], *pair["chosen"]] in won
        assert [*pair["prompt"], *pair["rejected"]] in lost
    assert list(preference_rows(records, min_gap=1.0)) == []


@pytest.mark.full
@pytest.mark.trl
def test_trl_trains_on_what_is_exported(tmp_path: Path) -> None:
    """One step of the real SFTTrainer on conversations, and one of the real DPOTrainer on pairs."""
    import datasets
    import trl

    records = played("random", 24, attempts=8, env_kwargs={"high": 4, "turns": 2})
    written = {
        "sft": write_json_lines(sft_rows(records, min_return=1.0), tmp_path / "sft.jsonl"),
        "dpo": write_json_lines(preference_rows(records), tmp_path / "dpo.jsonl"),
    }
    assert min(written.values()) > 1
    save_tiny(tmp_path / "tiny")
    common: dict[str, Any] = {
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "save_strategy": "no",
        "gradient_checkpointing": False,
        "logging_steps": 1,
    }
    for name, trainer_class, config in (
        ("sft", trl.SFTTrainer, trl.SFTConfig),
        ("dpo", trl.DPOTrainer, trl.DPOConfig),
    ):
        dataset = datasets.load_dataset(
            "json", data_files=str(tmp_path / f"{name}.jsonl"), split="train", cache_dir=str(tmp_path / "cache")
        )
        assert dataset.num_rows == written[name]
        trainer = trainer_class(
            model=str(tmp_path / "tiny"),
            args=config(output_dir=str(tmp_path / name), **common),
            train_dataset=dataset,
        )
        before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
        found = trainer.train()
        assert found.global_step == 1
        assert found.training_loss > 0
        assert any((before[key] != value).any() for key, value in trainer.model.state_dict().items())


def test_rows_are_plain_json(tmp_path: Path) -> None:
    write_json_lines(sft_rows([thought()]), tmp_path / "sft.jsonl")
    [line] = (tmp_path / "sft.jsonl").read_text().splitlines()
    assert json.loads(line)["messages"][0] == {"role": "system", "content": "Play."}


def test_pairs_of_a_game_are_those_of_one_seat() -> None:
    def record(seat: int | None, reward: float) -> Record:
        turn = Turn("Bid.", Answer("", f"{reward:g}"), reward)
        said = [Message("user", "Bid."), Message("assistant", turn.answer.text)]
        played = Episode(Task("auction", 1), seat, turns=[turn], messages=said, stop_reason=StopReason.ENDED)
        return as_record(played)

    records = [record(0, 1.0), record(1, -1.0), record(0, 2.0), record(1, 3.0)]
    pairs = [(pair["chosen"][0]["content"], pair["rejected"][0]["content"]) for pair in preference_rows(records)]
    assert pairs == [("2", "1"), ("3", "-1")]
    assert [row["messages"][-1]["content"] for row in sft_rows(records, min_return=2.0)] == ["2", "3"]
