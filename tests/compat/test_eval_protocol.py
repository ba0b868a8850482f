"""Eval Protocol's ``rollout_func``: the page of its documentation with the real package, and what needs none of it."""

import json
import math
import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import gym_trl
from gym_trl.episode import Episode, Segment
from gym_trl.errors import ConfigError
from gym_trl.integrations.eval_protocol import as_row, create_openenv_vllm_rollout_func
from gym_trl.types import Answer, StepResult, StopReason, Task

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


@evaluation_test(
    input_messages=[[[Message(role="user", content="start")]]], completion_params=[{"model": "none"}], mode="groupwise"
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
    REPORT["columns"] = {name: kwargs[name] for name in ("eval_score", "step_rewards")}
    REPORT["messages"] = [[message.as_dict() for message in episode.messages] for episode in kwargs["episode"]]
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


@pytest.mark.parametrize("path", ["nowhere", "json", "groups_eval"])
def test_what_cannot_judge_a_row_is_refused(path):
    with pytest.raises(ConfigError):
        EvaluationTest(path)


def test_everything_is_in_the_logs():
    rows = default_logger.read()
    REPORT["logged"] = [
        [row.eval_metadata.name, len(row.messages), row.evaluation_result and row.evaluation_result.score,
         row.execution_metadata.extra]
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
        "PYTHONPATH": os.pathsep.join([str(Path(gym_trl.__file__).parents[1]), str(PEER)]),
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


@pytest.mark.slow
def test_the_page_of_the_documentation_trains_on_the_score_of_its_test_and_is_logged(report):
    assert len(report["page"]) == 2
    columns = report["columns"]
    assert columns["eval_score"] == pytest.approx([total / 10 for total in columns["step_rewards"]])
    # The environment is the test's, the words are the caller's, who goes first.
    assert all(said[0]["content"] == "Start task\n\nStep 1: buttons 0 to 6" for said in report["messages"])
    rows = [dict(zip(("name", "messages", "score", "extra"), row, strict=True)) for row in report["logged"]]
    assert [row["name"] for row in rows] == ["clicks"] * 8
    assert all(row["score"] == pytest.approx(sum(row["extra"]["step_rewards"]) / 10) for row in rows)
    assert all(len(row["extra"]["completion_ids"]) == len(row["extra"]["logprobs"]) > 0 for row in rows)


def played(**end):
    one = Episode(Task("TrlEnv/Echo-v0", 4, {"instance": 3}), segments=[Segment([9], [0, 1], [1, 1], [-1.0, -1.0])])
    one.begin(StepResult("seen 0"))
    one.answer(Answer("hm", "did 0"))
    one.step(StepResult("seen 1", reward=0.25, terminated=not end))
    if end:
        one.stop(**end)
    return one


def test_a_row_tells_the_whole_episode():
    row = as_row(played(), name="echo", completion_params={"temperature": 0.5})
    assert row["evaluation_result"]["score"] == 0.25
    assert row["input_metadata"]["row_id"] == "TrlEnv/Echo-v0:4:instance=3"
    assert row["input_metadata"]["dataset_info"] == {"env_id": "TrlEnv/Echo-v0", "seed": 4, "options": {"instance": 3}}
    tokens = {"prompt_ids": [9], "completion_ids": [0, 1], "logprobs": [-1.0, -1.0], "env_mask": [1, 1]}
    assert row["execution_metadata"]["extra"] == {"step_rewards": [0.25], **tokens}
    assert [message.get("reasoning_content") for message in row["messages"]] == [None, "hm", None]


@pytest.mark.parametrize(("reason", "code"), [(StopReason.ENV_ERROR, 13), (StopReason.CANCELLED, 1)])
def test_an_episode_that_failed_has_no_result_and_says_why(reason, code):
    row = as_row(played(reason=reason, error="it broke"))
    assert row["evaluation_result"] is None
    assert (row["rollout_status"]["code"], row["rollout_status"]["message"]) == (code, "it broke")


class Seen:
    def __init__(self, observation, reward=None, done=False):
        self.observation, self.reward, self.done = observation, reward, done


class Page:
    """Client with OpenEnv's calls: a page whose button the seed draws, for the task of its container."""

    variables: list = []  # noqa: RUF012 -- of all containers

    def __init__(self, task=""):
        self.task = task

    @classmethod
    def from_docker_image(cls, image, env_vars):
        cls.variables.append({"image": image, **env_vars})
        return cls(env_vars["TASK"])

    def reset(self, seed=None):
        self.button = seed % 7
        return Seen(f"{self.task} {self.button}")

    def step(self, action):
        if action == "crash":
            raise ConnectionError("the server is gone")
        return Seen("again", float(action.isdigit()), action == str(self.button))


def train(tmp_path, reward_func, **given):
    """Train the tiny model for two steps of two groups of four, and return the columns of each."""
    import torch
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from gym_trl.testing import tiny_model, tiny_tokenizer

    rollout_func = create_openenv_vllm_rollout_func(
        prompt_builder=lambda obs, step, history: f"{step}: {obs}", max_steps=3, concurrency=2, **given
    )
    kept = []

    def keep(prompts, trainer):
        kept.append(rollout_func(prompts, trainer))
        return kept[-1]

    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    bias = torch.zeros(model.lm_head.out_features)  # it likes digits, and to end its turn
    bias[tokenizer.convert_tokens_to_ids(list("0123456789"))], bias[tokenizer.eos_token_id] = 2.0, 3.5
    model.lm_head.bias = torch.nn.Parameter(bias, requires_grad=False)
    settings = {"per_device_train_batch_size": 8, "num_generations": 4, "max_steps": 2, "max_completion_length": 200}
    quiet = {"use_cpu": True, "bf16": False, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        args=GRPOConfig(output_dir=str(tmp_path), **settings, **quiet),
        train_dataset=Dataset.from_dict({"prompt": ["Start task"] * 6}),
        reward_funcs=reward_func,
        rollout_func=keep,
    )
    trainer.train()
    return kept


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_a_group_plays_one_task_in_its_container_and_every_row_has_exact_columns(tmp_path):
    rewards = []

    def reward_func(completions, **kwargs):
        """Function of the documentation's page: one number for each episode."""
        rewards.append([float(r) for r in kwargs.get("step_rewards", [])])
        return rewards[-1]

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kept = train(
            tmp_path,
            reward_func,
            env_client_cls=Page,
            action_parser=str.strip,
            tasks=["click-test", "click-button", "click-link"],
            task_var="TASK",
            docker_image="tasks:latest",
            env_vars={"A": "1"},
            completion_params={"temperature": 0.7, "max_tokens": 4},
            vllm_base_url="http://localhost:8000",
            vllm_model="tiny",
        )
    assert any("temperature 0.7" in str(one.message) for one in seen)
    games = [episode.task for columns in kept for episode in columns["episode"]]
    groups = [games[start : start + 4] for start in range(0, 16, 4)]
    assert all(group == [group[0]] * 4 for group in groups)
    assert len({group[0].seed for group in groups}) == 4
    assert all(one == {"image": "tasks:latest", "A": "1", "TASK": one["TASK"]} for one in Page.variables)
    assert {f"OpenEnv/{one['TASK']}" for one in Page.variables} == {game.env_id for game in games}
    for columns, given in zip(kept, rewards, strict=True):
        paid = [sum(turn.reward for turn in episode.turns) for episode in columns["episode"]]
        assert paid == columns["step_rewards"] == columns["eval_score"] == given
        for ids, mask, logprobs in zip(
            columns["completion_ids"], columns["env_mask"], columns["logprobs"], strict=True
        ):
            assert len(ids) == len(mask) == len(logprobs) > 0
            assert all((logprob == 0.0) == (bit == 0) for bit, logprob in zip(mask, logprobs, strict=True))
    assert len({reward for given in rewards for reward in given}) > 1


@pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")
def test_an_episode_whose_server_is_gone_is_no_number(tmp_path):
    [columns, _] = train(
        tmp_path,
        lambda completions, **kwargs: [float(score) for score in kwargs["eval_score"]],
        env_factory=Page,
        action_parser=lambda text: text.strip() if len(set(text)) > 1 else "crash",
    )
    scored = [episode.scored for episode in columns["episode"]]
    assert True in scored
    assert False in scored
    assert [not math.isnan(score) for score in columns["eval_score"]] == scored


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"env_factory": Page, "tasks": ["a"], "task_var": "TASK"},
        {"env_factory": Page, "env_vars": {"A": "1"}},
        {"env_factory": Page, "action_parser": None},
        {"env_client_cls": Page, "tasks": ["a"]},
    ],
)
def test_what_cannot_be_honoured_is_refused(given):
    with pytest.raises(ConfigError):
        create_openenv_vllm_rollout_func(**{"prompt_builder": str, "action_parser": str, **given})
