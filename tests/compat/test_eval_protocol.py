"""The real Eval Protocol, in a process with a folder of its own; and what needs none of it."""

import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.trainer_double import TrainerDouble

from gym_trl.errors import ConfigError
from gym_trl.integrations.eval_protocol import as_row, create_openenv_vllm_rollout_func
from gym_trl.integrations.eval_protocol.client_env import ClientEnv
from gym_trl.integrations.eval_protocol.training import Rollouts
from gym_trl.types import Answer, EpisodeResult, Message, StopReason, Task, TokenTrace, Turn

NEEDS_OPENENV = [
    pytest.mark.openenv,
    pytest.mark.skipif(find_spec("openenv") is None, reason="openenv is not installed"),
]
PEER = Path(__file__).parents[2] / ".venv/.peers/eval-protocol"

# Files as users have them. The example of the documentation's page is here with its import and its model changed, and
# without what today's TRL has no more (max_prompt_length) or does not come with (peft).
PAGE = """
import re

from eval_protocol.models import EvaluateResult, EvaluationRow, Message
from eval_protocol.pytest import evaluation_test
from eval_protocol.pytest.openenv_rollout_processor import OpenEnvRolloutProcessor


class Seen:
    def __init__(self, observation, reward=None, done=False):
        self.observation, self.reward, self.done = observation, reward, done


class Page:
    def reset(self):
        return Seen("buttons 0 to 6")

    def step(self, action):
        return Seen(action, float(action != "noop()"), action == "click('3')")

    def close(self):
        pass


@evaluation_test(
    input_messages=[[[Message(role="user", content="start")]]],
    completion_params=[{"model": "none"}],
    rollout_processor=OpenEnvRolloutProcessor(
        env_factory=Page, prompt_builder=lambda obs, step, history: "theirs", action_parser=lambda text: "noop()"
    ),
)
def clicks(row: EvaluationRow) -> EvaluationRow:
    row.evaluation_result = EvaluateResult(score=sum(row.execution_metadata.extra["step_rewards"]) / 10, reason="")
    return row
"""

GROUPS = """
from eval_protocol.models import EvaluationRow, Message
from eval_protocol.pytest import evaluation_test
from page_eval import clicks


@evaluation_test(
    input_messages=[[[Message(role="user", content="start")]]],
    completion_params=[{"model": "none"}, {"model": "none either"}],
    mode="groupwise",
)
def groups(rows: list[EvaluationRow]) -> list[EvaluationRow]:
    return rows
"""

TRAINING = """
import json
import os
import re

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from eval_protocol.dataset_logger import default_logger
from gym_trl import GymSpec
from gym_trl.integrations.eval_protocol import EvaluationTest, create_openenv_vllm_rollout_func
from gym_trl.errors import ConfigError
from gym_trl.testing import tiny_model, tiny_tokenizer

torch.set_num_threads(1)
REPORT = {}


def build_prompt(obs, step, history):
    return f"Step {step}: {obs}"


def parse_action(text):
    match = re.search(r"\\\\d", text)
    return f"click('{match.group(0)}')" if match else "noop()"


def reward_func(completions, **kwargs):
    eval_scores = kwargs.get("eval_score") or []
    REPORT["columns"] = {name: kwargs[name] for name in ("eval_score", "step_rewards", "turn_rewards", "messages")}
    if eval_scores:
        return [float(s) for s in eval_scores]
    return [0.0] * len(completions)


def train(rollout_func, reward, dataset):
    tokenizer = tiny_tokenizer()
    trainer = GRPOTrainer(
        model=tiny_model(tokenizer),
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir="out", per_device_train_batch_size=4, num_generations=2, max_steps=2, max_completion_length=300,
            logging_steps=1, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
        ),
        train_dataset=dataset,
        reward_funcs=reward,
        rollout_func=rollout_func,
    )
    trainer.train()
    return [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]


def test_the_page_of_the_documentation():
    rollout_func = create_openenv_vllm_rollout_func(
        env_factory=None,
        env_client_cls=None,          # taken from the @evaluation_test
        prompt_builder=build_prompt,
        action_parser=parse_action,
        vllm_base_url="http://localhost:8000",
        vllm_model="tiny",
        env_path="page_eval",         # reuse OpenEnvRolloutProcessor config + rewards
        max_steps=6,
        completion_params={"temperature": 1.0, "max_tokens": 3},
        concurrency=2,
    )
    dataset = Dataset.from_dict({"prompt": ["Start task"] * 6})
    REPORT["page"] = train(rollout_func, reward_func, dataset)
    REPORT["page_columns"] = REPORT["columns"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("nowhere", "cannot be imported"),
        ("json", "json has no @evaluation_test"),
        ("page_eval::nothing", "has no @evaluation_test 'nothing'; it has .'clicks'."),
        ("groups_eval", "has 2 @evaluation_tests, say which"),
        ("groups_eval::groups", "judges rows together"),
    ],
)
def test_what_cannot_judge_a_row_is_refused(path, why):
    with pytest.raises(ConfigError, match=why):
        EvaluationTest(path)


def test_everything_is_in_the_logs():
    rows = default_logger.read()
    REPORT["logged"] = [
        [row.eval_metadata.name, len(row.messages), row.evaluation_result and row.evaluation_result.score,
         row.rollout_status.code, row.execution_metadata.finish_reason, row.input_metadata.dataset_info,
         row.execution_metadata.extra, row.execution_metadata.usage and row.execution_metadata.usage.total_tokens]
        for row in rows
    ]
    with open("report.json", "w") as file:
        json.dump(REPORT, file, default=str)
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return the output of pytest and of a training of users' files, with the real package."""
    if not (PEER / "eval_protocol").is_dir():
        pytest.skip("Eval Protocol is not there: make .venv/.peers/eval-protocol")
    folder = tmp_path_factory.mktemp("eval_protocol")
    (folder / "page_eval.py").write_text(PAGE)
    (folder / "groups_eval.py").write_text(GROUPS)
    (folder / "test_training.py").write_text(TRAINING)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("EP_", "PYTEST_"))},
        "PYTHONPATH": str(PEER),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
        "EP_DISABLE_AUTO_BROWSER": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # asks nobody on the network
        "NO_PROXY": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "pytest", "-q", "-s", "test_training.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    return json.loads((folder / "report.json").read_text())


def logged(report, name):
    fields = ("name", "messages", "score", "code", "finish", "dataset", "extra", "tokens")
    return [dict(zip(fields, row, strict=True)) for row in report["logged"] if row[0] == name]


def with_openenv(test):
    for mark in NEEDS_OPENENV:
        test = mark(test)
    return test


def real(test):
    return pytest.mark.eval_protocol(pytest.mark.trl(pytest.mark.processes(test)))


@real
def test_the_page_of_the_documentation_trains_on_the_score_of_its_test(report):
    assert len(report["page"]) == 2
    columns = report["page_columns"]
    assert columns["eval_score"] == pytest.approx([total / 10 for total in columns["step_rewards"]])
    # The environment is the test's, the words are the caller's, who goes first.
    assert all(said[0]["content"] == "Start task\n\nStep 1: buttons 0 to 6" for said in columns["messages"])
    page = logged(report, "clicks")
    assert len(page) == 8
    assert all(row["score"] == pytest.approx(sum(row["extra"]["step_rewards"]) / 10) for row in page)
    assert all(len(row["extra"]["completion_ids"]) == len(row["extra"]["logprobs"]) > 0 for row in page)


# ---------------------------------------------------------------------------------------------------------------------
# What needs no Eval Protocol
# ---------------------------------------------------------------------------------------------------------------------


def played(reason=StopReason.SUCCESS, rewards=(0.25, 0.75), error=None):
    turns = tuple(
        Turn(f"seen {i}", Answer("hm", f"did {i}"), reward, True, i, i + 1) for i, reward in enumerate(rewards)
    )
    said = [Message("system", "Play.")]
    for turn in turns:
        said += [Message("user", turn.observation), Message("assistant", turn.answer.text)]
    ids = list(range(len(turns)))
    return EpisodeResult(
        Task("TrlEnv/Echo-v0", 4, {"instance": 3}),
        reason,
        turns,
        tuple(said),
        TokenTrace([9], ids, [1] * len(ids), [-1.0] * len(ids)),
        error=error,
        terminated=reason in (StopReason.SUCCESS, StopReason.FAILURE),
    )


def test_a_row_tells_the_whole_episode():
    row = as_row(played(), name="echo", completion_params={"temperature": 0.5}, seconds=2.0)
    result, execution = row["evaluation_result"], row["execution_metadata"]
    assert result["score"] == 1.0
    assert [(step["step_index"], step["base_reward"], step["terminated"]) for step in result["step_outputs"]] == [
        (0, 0.25, False),
        (1, 0.75, True),
    ]
    assert result["metrics"]["turns"]["score"] == 2.0
    assert row["input_metadata"]["row_id"] == "TrlEnv/Echo-v0:4:instance=3"
    assert row["input_metadata"]["dataset_info"] == {"env_id": "TrlEnv/Echo-v0", "seed": 4, "options": {"instance": 3}}
    assert execution["extra"] == {
        "step_rewards": [0.25, 0.75],
        "prompt_ids": [9],
        "completion_ids": [0, 1],
        "logprobs": [-1.0, -1.0],
        "env_mask": [1, 1],
    }
    assert execution["usage"] == {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    assert [message.get("reasoning_content") for message in row["messages"]] == [None, None, "hm", None, "hm"]


@pytest.mark.parametrize(
    ("reason", "code"), [(StopReason.ENV_ERROR, 13), (StopReason.TIMEOUT, 4), (StopReason.CANCELLED, 1)]
)
def test_an_episode_that_failed_has_no_result_and_says_why(reason, code):
    row = as_row(played(reason, error="it broke"))
    assert row["evaluation_result"] is None
    assert (row["rollout_status"]["code"], row["rollout_status"]["message"]) == (code, "it broke")


class Client:
    """Double of OpenEnv's clients, without a server."""

    def __init__(self):
        self.closed = False

    def reset(self):
        return self._seen("start")

    def step(self, action):
        if action == "crash":
            raise ConnectionError("the server is gone")
        return self._seen(action, 0.5, done=action == "end")

    def close(self):
        self.closed = True

    def _seen(self, text, reward=None, done=False):
        return type("Result", (), {"observation": text, "reward": reward, "done": done})()


class AsyncClient:
    """One that is asynchronous first, as OpenEnv's are since 0.2."""

    def sync(self):
        return Client()


async def started():
    return AsyncClient()


@pytest.mark.parametrize("make", [Client, AsyncClient, started])
def test_a_client_is_played_in_words_whether_synchronous_or_not(make):
    env = ClientEnv(make, lambda seen, step, history: f"{step} {seen} {history}", lambda text: text.strip())
    assert env.reset(seed=1)[0] == "1 start []"
    assert env.step(" go ")[:4] == ("2 go ['Step 1:  go  -> reward +0.50']", 0.5, False, False)
    assert env.step("end")[1:4] == (0.5, True, False)
    with pytest.raises(gym.error.ResetNeeded):
        env.step("again")
    env.close()


REFUSED = [
    ({"env_factory": Client, "tasks": ["a"], "task_var": "TASK"}, "env_factory makes the client by itself, so tasks"),
    ({"env_factory": Client, "env_vars": {"A": "1"}}, "so env_vars cannot reach"),
    ({"env_factory": Client, "headless": False}, "so headless cannot reach"),
    ({"env_base_url": "http://127.0.0.1:1", "timeout_ms": 5}, "is running already, so timeout_ms"),
    ({"env_base_url": "http://127.0.0.1:1", "tasks": ["a"], "task_var": "TASK"}, "is running already, so tasks"),
    ({"docker_image": "x", "tasks": ["a"]}, "tasks need task_var"),
    ({}, "nothing says what to play"),
    ({"env_factory": Client, "action_parser": None}, "action_parser must be given"),
    ({"env_factory": Client, "processor_cls": Client}, "processor_cls=Client cannot be used"),
    ({"env_factory": Client, "processor_kwargs": {"speed": 2}}, "processor_kwargs has 'speed'"),
    pytest.param(
        {"docker_image": "x", "env_client_cls": Client},
        "client must be a subclass of openenv.core.EnvClient",
        marks=NEEDS_OPENENV,
    ),
    ({"env_factory": Client, "completion_params": {"n": 2}}, "completion_params has 'n'"),
    ({"env_factory": Client, "completion_params": {"seed": 2}}, "completion_params has 'seed'"),
]


@pytest.mark.parametrize(("given", "why"), REFUSED)
def test_what_cannot_be_honoured_is_refused_with_a_reason(given, why):
    with pytest.raises(ConfigError, match=re.escape(why)):
        create_openenv_vllm_rollout_func(**{"prompt_builder": None, "action_parser": str, **given})


def games(rollouts, prompts, **trainer):
    prepared = rollouts._with_tasks(prompts, TrainerDouble(**trainer))
    return [Task.from_json(prompt[-1]["task"]) for prompt in prepared]


def rotating(tasks=("a", "b", "c")):
    rollout_func = create_openenv_vllm_rollout_func(
        None, None, str, tasks=tasks, task_var="TASK", docker_image="none", concurrency=1
    )
    assert isinstance(rollout_func, Rollouts)
    return rollout_func


@with_openenv
@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 5), st.integers(1, 4))
def test_groups_that_straddle_processes_play_one_task_and_one_game(ranks, size, groups, steps):
    rows = -(-size * groups // ranks)  # on each process
    total = ranks * rows
    on_ranks = [rotating() for _ in range(ranks)]
    number = 0
    for step in range(steps):
        played = [
            game
            for rank, rollouts in enumerate(on_ranks)
            for game in games(rollouts, ["Start task"] * rows, rank=rank, processes=ranks, size=size, step=step)
        ]
        for start in range(0, total, size):
            group = played[start : start + size]
            assert group == [group[0]] * len(group)
            assert group[0].env_id == f"OpenEnv/{'abc'[number % 3]}"
            number += 1
        assert len({game.seed for game in played}) == -(-total // size)


@with_openenv
def test_every_evaluation_plays_the_same_games_which_training_never_does():
    rollouts = rotating()
    first = games(rollouts, ["x"] * 8, training=False, step=5) + games(rollouts, ["x"] * 8, training=False, step=5)
    trained = games(rollouts, ["x"] * 8, step=5)
    again = games(rollouts, ["x"] * 8, training=False, step=6) + games(rollouts, ["x"] * 8, training=False, step=6)
    assert first == again
    assert not {game.seed for game in first} & {game.seed for game in trained}


def test_another_model_or_server_than_the_trainers_is_refused():
    trainer = SimpleNamespace(
        model=SimpleNamespace(config=SimpleNamespace(_name_or_path="mine")),
        use_vllm=True,
        args=SimpleNamespace(vllm_mode="server", temperature=1.0),
        vllm_generation=SimpleNamespace(server_base_url=None, server_host="0.0.0.0", server_port=8000),
    )

    def check(**given):
        rollouts = create_openenv_vllm_rollout_func(Client, None, str, **given)
        assert isinstance(rollouts, Rollouts)
        rollouts._check(trainer)

    check(vllm_model="mine", vllm_base_url="http://localhost:8000/")
    with pytest.raises(ConfigError, match="vllm_model='yours' is not 'mine'"):
        check(vllm_model="yours")
    with pytest.raises(ConfigError, match="the trainer's own server"):
        check(vllm_base_url="http://localhost:9000")
