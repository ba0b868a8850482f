"""Any data set is an environment: one row is one task, and a verifier decides."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

import gym_trl
from gym_trl.envs.question_answer import QAEnv
from gym_trl.errors import ConfigError, InfrastructureError, RowError
from gym_trl.testing import check_text_env, play

ROWS = [{"question": f"What is {n} + {n}?", "answer": 2 * n} for n in range(8)]
PLANETS = [
    {"question": "Which planets have no moon?", "answer": ["Mercury", "Venus"]},
    {"question": "Which is red?", "answer": ["Mars"]},
]
SUMS = partial(QAEnv, ROWS, prompt="question", answer="answer", verify="numeric")


def doubled(response: str, answer: Any, row: Mapping[str, Any]) -> bool:
    return response == str(2 * int(row["question"].split()[2]))


def short(response: str, answer: Any, row: Mapping[str, Any]) -> bool:
    return len(response) <= 3


@pytest.mark.parametrize(
    "make",
    [
        SUMS,
        partial(QAEnv, PLANETS, prompt="question", answer="answer"),
        *(
            pytest.param(partial(SUMS, **arguments), marks=pytest.mark.slow)
            for arguments in ({"turns": 3}, {"verify": doubled}, {"answer": None, "verify": doubled})
        ),
    ],
)
def test_it_meets_the_requirements_of_training(make: Callable[[], QAEnv]) -> None:
    check_text_env(make, episodes=8)


def test_without_answers_there_is_neither_a_solver_nor_an_optimum() -> None:
    env = SUMS(answer=None, verify=short)
    assert not hasattr(env, "solver")
    assert not hasattr(env, "random_policy")
    assert env.optimal_success is None


@examples(60)
@given(st.data())
def test_trying_out_all_possible_answers_pays_no_more_than_giving_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    rows = [{"question": "Which letter?", "answer": letter} for letter in "abcdef"[:count]]
    env = QAEnv(rows, prompt="question", answer="answer", turns=data.draw(st.integers(1, count)))
    guesses, returns = data.draw(st.permutations("abcdef"[:count])), []
    for row in range(count):  # their mean is the expected return of guessing
        env.reset(options={"instance": row})
        returns.append(sum(env.step(letter)[1] for letter in guesses))
    assert sum(returns) / count <= 1 / count
    assert min(returns) >= env.loss_return


def test_a_score_is_paid_and_only_all_of_it_is_a_success() -> None:
    env = SUMS(verify=lambda response, answer, row: 1 / (1 + abs(int(response) - answer)))
    for said, paid in (("7", 0.5), ("6", 1.0)):
        env.reset(options={"instance": 3})
        _, reward, over, _, info = env.step(said)
        assert (reward, over, info["success"]) == (paid, True, paid == 1)


@pytest.mark.parametrize("score", [1.1, -0.1, float("nan"), "1", None])
def test_a_score_that_is_not_from_0_to_1_is_refused(score: Any) -> None:
    env = SUMS(verify=lambda response, answer, row: score)
    env.reset(seed=0)
    with pytest.raises(ConfigError):
        env.step("6")


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv"])
def test_a_file_is_a_data_set_by_the_registered_id(tmp_path: Path, kind: str) -> None:
    lines = [f"{row['question']},{row['answer']}" for row in ROWS]
    texts = {"jsonl": "\n".join(map(json.dumps, ROWS)), "csv": "\n".join(["question,answer", *lines])}
    (file := tmp_path / f"sums.{kind}").write_text(texts.get(kind) or json.dumps(ROWS), encoding="utf-8")
    env: Any = gym.make("TrlEnv/QA-v0", dataset=str(file), prompt="Q: {question}", answer="answer", verify="numeric")
    assert env.reset(options={"instance": 3})[0] == "Q: What is 3 + 3?"
    assert env.step("6")[1] == 1


def test_a_dataset_of_the_datasets_library_is_not_copied() -> None:
    import datasets

    dataset = datasets.Dataset.from_list(ROWS)
    env = QAEnv(dataset, prompt="question", answer="answer", verify="numeric")
    assert env.rows is dataset
    assert all(play(env, env.solver(), options={"instance": row})[-1][2] == 1 for row in range(8))


@pytest.mark.parametrize(
    "arguments",
    [
        *({"prompt": "qestion"}, {"prompt": "{qestion}"}, {"prompt": "nowhere:f"}, {"prompt": 3}, {"answer": "anser"}),
        *({"answer": None}, {"verify": "numerc"}, {"verify": "exact", "answer": None}, {"turns": 0}, {"turns": "3"}),
        *({"dataset": []}, {"dataset": ["a"]}, {"dataset": iter(ROWS)}, {"dataset": {"train": ROWS}}),
        *({"dataset": "missing.jsonl"}, {"dataset": __file__}),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        QAEnv(**{"dataset": ROWS, "prompt": "question", "answer": "answer", "verify": "numeric", **arguments})


def test_a_fault_of_the_data_or_of_a_column_is_not_the_models() -> None:
    with pytest.raises(InfrastructureError):
        SUMS(prompt=lambda row: row["nothing"]).reset(options={"instance": 0})
    for broken in ({"question": "x", "answer": "nan"}, {"question": " ", "answer": 1}, {"question": "x"}):
        env = QAEnv([ROWS[0], broken], prompt="question", answer="answer", verify="numeric")
        with pytest.raises(RowError):
            env.reset(options={"instance": 1})


@pytest.mark.slow
def test_a_tiny_model_trains_on_questions_of_which_one_is_broken(tmp_path: Path) -> None:
    from support.tiny_trainer import make as make_trainer

    broken = {"question": "This row is broken", "answer": "nan"}  # its episodes are unscored
    digits = [{"question": f"{n} + 1", "answer": n + 1} for n in range(7)]
    spec = gym_trl.GymSpec.from_dataset(
        [*digits, broken],
        prompt="question",
        answer="answer",
        verify="numeric",
        num_tasks=8,
        action_format="open",
        instructions="",
        max_tokens_per_turn=1,
    )
    trainer: Any = make_trainer(
        tmp_path, spec, eval_dataset=None, grpo={"max_steps": 3, "per_device_train_batch_size": 32}
    )
    trainer.train()
    logs = trainer.state.log_history[:3]
    assert {log["env/unscored"] for log in logs} == {1 / 8}
