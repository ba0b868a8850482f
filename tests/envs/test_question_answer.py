"""Any data set is an environment: one row is one task, and a verifier decides."""

import csv
import json
import pickle
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
from gym_trl.errors import ConfigError, InfrastructureError
from gym_trl.testing import check_text_env, play

ROWS = [{"question": f"What is {n} + {n}?", "answer": 2 * n, "hints": ["Double it.", f"{n} twice."]} for n in range(8)]
PLANETS = [
    {"question": "Which planets have no moon?", "answer": ["Mercury", "Venus"]},
    {"question": "Which is red?", "answer": ["Mars"]},
]
SUMS = partial(QAEnv, ROWS, prompt="question", answer="answer", verify="numeric")


def short(response: str, answer: Any, row: Mapping[str, Any]) -> bool:
    return len(response) <= 3


def near(response: str, answer: Any, row: Mapping[str, Any]) -> float:
    return float(1 / (1 + abs(int(response) - answer)))


@pytest.mark.parametrize(
    "make",
    [
        SUMS,
        partial(SUMS, turns=3, hints="hints"),
        partial(SUMS, turns=3, reward="efficient"),
        partial(SUMS, verify=short),
        partial(SUMS, answer=None, verify=short),
        partial(QAEnv, PLANETS, prompt="question", answer="answer", verify="exact"),
    ],
)
def test_it_meets_the_requirements_of_training(make: Callable[[], QAEnv]) -> None:
    check_text_env(make, episodes=8)


@examples(30)
@given(st.integers(0, 7), st.text(max_size=5))
def test_a_row_is_a_task_and_only_its_answer_wins(instance: int, response: str) -> None:
    env = SUMS()
    assert env.reset(options={"instance": instance}) == (ROWS[instance]["question"], {})
    right = response.strip() == str(ROWS[instance]["answer"])
    _, reward, terminated, truncated, info = env.step(response)
    assert (reward, info["success"]) == (float(right), right)
    assert (terminated, truncated) == (True, False)


def test_the_solver_wins_every_row_and_the_blind_policies_do_not() -> None:
    env = SUMS()
    policies = env.baselines
    for name, expected in (("solver", 8), ("constant", 1), ("noop", 0), ("garbage", 0)):
        played = [play(env, policies[name](0), options={"instance": row})[-1] for row in range(8)]
        assert sum(step[-1]["success"] for step in played) == expected
    assert env.constant_action == "0"


def test_without_answers_there_is_neither_a_solver_nor_an_optimum() -> None:
    env = SUMS(answer=None, verify=short)
    assert not hasattr(env, "solver")
    assert not hasattr(env, "random_policy")
    assert env.constant_action is None
    assert env.optimal_success is None
    assert set(env.baselines) == {"garbage", "noop"}


def test_a_wrong_answer_may_be_followed_by_another_with_a_hint() -> None:
    env = SUMS(turns=3, hints="hints")
    assert env.reset(options={"instance": 3})[0] == "What is 3 + 3?\n3 tries left."
    assert env.instructions.endswith("You have 3 tries; each after the first costs a reward of 1.")
    assert env.step("5")[:3] == ("Wrong. Double it.\n2 tries left.", -1.0, False)
    assert env.step(" ")[:3] == ("Empty answers are wrong. 3 twice.\n1 try left.", -1.0, False)
    assert env.step("6")[:3] == ("Right.", 1.0, True)
    env.reset(options={"instance": 3})
    assert [env.step("7")[:3] for _ in range(3)][-1] == ("Wrong.", 0.0, True)


def test_with_efficient_rewards_a_hint_has_a_price() -> None:
    env = SUMS(turns=3, hints="hints", reward="efficient")
    for wrong, paid in ((0, 1.0), (1, 1 / 2), (2, 1 / 3)):
        env.reset(options={"instance": 3})
        for _ in range(wrong):
            assert env.step("5")[1] == 0
        assert env.step("6")[1] == paid


@examples(60)
@given(st.data())
def test_trying_out_all_possible_answers_pays_no_more_than_giving_one(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 6))
    turns = data.draw(st.integers(1, count))
    cost = data.draw(st.sampled_from([1.0, 2 / (2 * count - turns)]))
    rows = [{"question": "Which letter?", "answer": letter} for letter in "abcdef"[:count]]
    env = QAEnv(rows, prompt="question", answer="answer", turns=turns, retry_cost=cost)
    guesses = data.draw(st.permutations("abcdef"[:count]))
    returns = []
    for row in range(count):  # their mean is the expected return of guessing
        env.reset(options={"instance": row})
        returns.append(sum(env.step(letter)[1] for letter in guesses))
    assert sum(returns) / count <= 1 / count + 1e-9
    assert sorted(returns)[-1] == 1  # and of those that are not right at once, each is paid less
    assert turns == 1 or sorted(returns)[-2] < 1


@examples(60)
@given(
    st.lists(st.sampled_from(["6", "7", "", "WRONG", "a long answer"]), min_size=1, max_size=4),
    st.sampled_from([1.0, 0.0, 0.5]),
)
def test_an_episode_that_is_cut_off_is_never_paid_more_than_one_that_is_lost(actions: list[str], cost: float) -> None:
    make = partial(SUMS, turns=4, retry_cost=cost)
    env = make()
    env.reset(options={"instance": 3})
    assert env.settlement == -3 * env.retry_cost
    paid = 0.0
    for number, action in enumerate(actions, start=1):
        _, reward, over, _, _ = env.step(action)
        paid += reward
        if over:
            assert env.settlement == 0
            return
        assert reward == -env.retry_cost
        assert env.settlement == env.loss_reward == pytest.approx(-(3 - number) * env.retry_cost)
        assert env.owes == (cost > 0)
    owed = paid + env.settlement
    for ending in ("7", "", "WRONG", "x" * 300_000):
        env = make()
        env.reset(options={"instance": 3})
        lost = sum(env.step(action)[1] for action in [*actions, *[ending] * 4])
        assert lost >= owed - 1e-9


def test_a_graded_answer_pays_its_score_and_wins_with_all_of_it() -> None:
    env = SUMS(verify=near)
    env.reset(options={"instance": 3})
    assert env.step("7")[1:3] == (0.5, True)
    env.reset(options={"instance": 3})
    _, reward, _, _, info = env.step("6")
    assert (reward, info["success"]) == (1.0, True)
    env = SUMS(verify=near, reward="success")
    env.reset(options={"instance": 3})
    assert env.step("7")[1] == 0


def _write(path: Path) -> Path:
    rows = [{name: row[name] for name in ("question", "answer")} for row in ROWS]
    if path.suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["question", "answer"])
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "csv", "parquet"])
def test_a_file_is_a_data_set_by_the_registered_id(tmp_path: Path, kind: str) -> None:
    file = _write(tmp_path / f"sums.{kind}")
    env: Any = gym.make("TrlEnv/QA-v0", dataset=str(file), prompt="Q: {question}", answer="answer", verify="numeric")
    assert env.reset(options={"instance": 3})[0] == "Q: What is 3 + 3?"
    assert env.step("6")[1] == 1
    copy = pickle.loads(pickle.dumps(env.unwrapped))
    assert len(pickle.dumps(env.unwrapped)) < 3_000
    assert copy.reset(options={"instance": 3}) == env.reset(options={"instance": 3})


def test_a_dataset_of_the_datasets_library_is_not_copied() -> None:
    import datasets

    dataset = datasets.Dataset.from_list([{"question": row["question"], "answer": row["answer"]} for row in ROWS])
    env = QAEnv(dataset, prompt="question", answer="answer", verify="numeric")
    assert env._rows is dataset
    assert all(play(env, env.solver(), options={"instance": row})[-1][2] == 1 for row in range(8))
    with pytest.raises(ConfigError, match=r"one split.*train"):
        QAEnv(datasets.DatasetDict({"train": dataset}), prompt="question")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prompt": "qestion"}, "did you mean 'question'"),
        ({"prompt": "{qestion}"}, "does not fit the columns"),
        ({"prompt": "nowhere:f"}, "names no function"),
        ({"prompt": 3}, "prompt must be"),
        ({"answer": "anser"}, "did you mean 'answer'"),
        ({"answer": None}, "give answer="),
        ({"hints": "none"}, "hints must be"),
        ({"verify": "numerc"}, "did you mean 'numeric'"),
        ({"turns": 0}, "turns must be at least 1"),
        ({"turns": "3"}, "turns must be an integer"),
        ({"reward": "shaped"}, "reward must be one of"),
        ({"dataset": []}, "at least one row"),
        ({"dataset": ["a"]}, "must be a mapping"),
        ({"dataset": iter(ROWS)}, "length"),
        ({"dataset": {"train": ROWS}}, "one split"),
        ({"dataset": "missing.jsonl"}, "there is no file"),
    ],
)
def test_wrong_arguments_are_refused_with_what_to_do(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        QAEnv(**{"dataset": ROWS, "prompt": "question", "answer": "answer", "verify": "numeric", **arguments})


@pytest.mark.parametrize(("name", "text"), [("a.json", "{"), ("a.json", "{}"), ("a.jsonl", "{\n"), ("a.jsonl", "")])
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"a\.json"):
        QAEnv(str(tmp_path / name), prompt="question")


def test_a_column_function_that_fails_is_not_the_model_s_fault() -> None:
    env = SUMS(prompt=lambda row: row["nothing"])
    with pytest.raises(InfrastructureError, match="reading the row"):
        env.reset(options={"instance": 0})


def test_a_specification_of_a_data_set_keeps_rows_for_evaluation() -> None:
    for rows, train, evaluated in ((ROWS, 8, 0), (ROWS * 3, 22, 2)):
        spec = gym_trl.GymSpec.from_dataset(rows, prompt="question", answer="answer", verify="numeric")
        tasks = {split: [task.options["instance"] for task in spec.tasks(split)] for split in ("train", "eval")}
        assert (len(tasks["train"]), len(tasks["eval"])) == (train, evaluated)
        assert sorted(tasks["train"] + tasks["eval"]) == list(range(len(rows)))


@pytest.mark.trl
@pytest.mark.full
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
        action_format="plain",
        instructions="",
        max_tokens_per_turn=1,
        cut_actions="accept",
    )
    trainer: Any = make_trainer(
        tmp_path, spec, eval_dataset=None, grpo={"max_steps": 3, "per_device_train_batch_size": 32}
    )
    trainer.train()
    logs = trainer.state.log_history[:3]
    assert {log["env/unscored"] for log in logs} == {1 / 8}
