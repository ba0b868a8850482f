"""A warm start imitates the ids that a rollout writes, of valid answers only."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gym_trl.chat import Chat
from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate
from gym_trl.executors import InlinePool
from gym_trl.play import Conversation, Limits
from gym_trl.records import record_of
from gym_trl.rollout import rollout, run
from gym_trl.setting import Setting
from gym_trl.testing import ByteChat, ScriptedEngine, tiny_model, tiny_tokenizer
from gym_trl.training import train
from gym_trl.types import Message
from gym_trl.warm_start import NOT_TRAINED, check_source, demonstrations, imitate, rows_of, rows_of_all

GUESS = Setting(
    "TrlEnv/GuessNumber-v0", env_kwargs={"high": 8, "turns": 4}, action_format="plain", system_prompt="Play."
)
CHATS: dict[str, Any] = {"bytes": ByteChat(), "template": Chat(tiny_tokenizer())}


def the_last_alone(talk: Conversation) -> list[Message]:
    """History that shows the instructions and the last observation."""
    return [talk.messages[0], talk.messages[-1]]


def played(chat: Any, answers: list[str], limits: Limits, history: Any) -> Episode:
    """Return an episode of a rollout in which the engine says what is given, whatever it is asked."""
    said = iter(answers)
    engine = ScriptedEngine(lambda request: chat.say(next(said))[: request.max_tokens])
    with InlinePool(lambda env_id: GUESS.make()) as pool:
        [[episode]] = run(
            rollout(GUESS.tasks(1), pool=pool, engine=engine, chat=chat, preambles=[GUESS.preamble], limits=limits,
                    history=history)
        )  # fmt: skip
    return episode


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize("tokens", [None, 1], ids=["whole", "cut"])
@pytest.mark.parametrize("history", [None, the_last_alone], ids=["all", "segments"])
def test_the_rows_of_an_episode_are_the_ids_that_its_rollout_has_written(name: str, tokens: Any, history: Any) -> None:
    chat, limits = CHATS[name], Limits(tokens)
    episode = played(chat, ["1", "no number", "8", "4"], limits, history)
    assert len(episode.segments) == (1 if history is None else len(episode.turns))
    rows = rows_of(record_of(episode), chat, limits=limits, history=history)
    assert [row["input_ids"] for row in rows] == [segment.ids for segment in episode.segments]
    wanted = [[NOT_TRAINED] * len(segment.ids) for segment in episode.segments]
    for turn in episode.turns:
        for segment, start, stop in turn.spans if turn.action_valid else ():
            first = len(episode.segments[segment].prompt_ids)
            wanted[segment][first + start : first + stop] = episode.segments[segment].completion_ids[start:stop]
    assert [row["labels"] for row in rows] == wanted
    assert [turn.action_valid for turn in episode.turns].count(False) == 1


def test_a_policy_plays_tasks_of_the_training_with_the_messages_of_the_setting() -> None:
    records = demonstrations(GUESS, "solver", 12, seed=3)
    assert len(records) == 12
    assert all(one["success"] for one in records)
    assert records[0]["opening"][0] == Message("system", "Play.").as_dict()
    trained = {task.seed for task in GUESS.tasks(12, split="train", seed=3)}
    assert {one["task"]["seed"] for one in records} == trained


def test_of_records_the_successful_ones_are_imitated_that_are_not_of_the_evaluation(tmp_path: Path) -> None:
    evaluate(GUESS.env, model="random", episodes=40, seed=5, references=(), out=tmp_path, **GUESS_OPTIONS)
    records = demonstrations(GUESS, str(tmp_path), 30, seed=0)
    assert records
    assert all(one["success"] for one in records)
    with pytest.raises(ConfigError, match="warm_start"):
        demonstrations(GUESS, str(tmp_path), 30, seed=5, held_out=40)


GUESS_OPTIONS: dict[str, Any] = {"env_kwargs": {"high": 8, "turns": 4}, "action_format": "plain"}


def test_what_is_neither_a_policy_nor_a_file_is_refused_by_its_name() -> None:
    """Law 22."""
    for source in ("randon", "no/such.jsonl"):
        with pytest.raises(ConfigError, match="warm_start"):
            check_source(source)


def test_imitation_makes_the_answers_likely_and_nothing_else_matters() -> None:
    tokenizer = tiny_tokenizer()
    chat = Chat(tokenizer)
    rows = rows_of_all(demonstrations(GUESS, "solver", 16), chat, limits=Limits(1))
    model, other = tiny_model(tokenizer), tiny_model(tokenizer)
    losses = imitate(model, rows, pad_id=tokenizer.pad_token_id, rate=2e-3, updates=30)
    assert len(losses) >= 30
    assert losses[-1] < losses[0] / 2
    again = imitate(other, rows, pad_id=tokenizer.unk_token_id, rate=2e-3, updates=30)  # padding has no influence
    assert again == pytest.approx(losses, rel=1e-4)
    assert not any(weight.grad is not None and weight.grad.any() for weight in model.parameters())


def test_the_loss_is_that_of_the_labels_alone() -> None:
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    rows = rows_of_all(demonstrations(GUESS, "random", 3), Chat(tokenizer))
    total, count = 0.0, 0
    for row in rows:
        ids, labels = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"][1:])
        logits = model(ids).logits[0, :-1].log_softmax(-1).detach()
        kept = (labels != NOT_TRAINED).nonzero().squeeze(1)
        total -= float(logits[kept, labels[kept]].sum())
        count += len(kept)
    [loss] = imitate(model, rows, pad_id=tokenizer.pad_token_id, rate=1e-9, updates=1)
    assert loss == pytest.approx(total / count, rel=1e-5)


def test_a_training_begins_where_its_warm_start_has_ended(tmp_path: Path) -> None:
    small: dict[str, Any] = {"steps": 1, "groups": 2, "num_generations": 4, "eval_episodes": 64, "save_steps": 1}
    done = train("TrlEnv/GuessNumber-v0", warm_start="solver", warm_episodes=64, out=tmp_path / "run", **small)
    assert done["before"]["model"]["success"]["mean"] > 0.3
    assert done["warm_start"]["episodes"] == 64
    more = train(resume=tmp_path / "run", steps=2)
    assert more["before"] == done["before"]
