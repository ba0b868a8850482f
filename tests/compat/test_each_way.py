"""Two steps of the real GRPOTrainer through each way in, in one process."""

import json
import math
from importlib.util import find_spec
from pathlib import Path

import pytest
from support import warm

FOLDER = Path(__file__).parent
TRL_ENV = Path(__file__).parents[2] / ".venv/.peers/trl-env"
OPENENV = find_spec("openenv") is not None
ROUTES = ("trl_env", "legacy", "eval_protocol")

pytestmark = [pytest.mark.trl, pytest.mark.processes, pytest.mark.full]
needs_trl_env = pytest.mark.skipif(
    not (TRL_ENV / "trl_env").is_dir(), reason="trl-env is not there: make .venv/.peers/trl-env"
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    target = tmp_path_factory.mktemp("ways")
    routes = [*ROUTES, *(["real_trl_env"] if (TRL_ENV / "trl_env").is_dir() else []), *(["tasks"] if OPENENV else [])]
    done = warm.run(FOLDER / "train_each_way.py", target, *routes, env={"TRL_ENV": TRL_ENV}, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((target / "report.json").read_text())


@pytest.mark.parametrize("way", ["trl_env", "legacy", "eval_protocol"])
def test_each_prompt_has_a_row_of_one_length_that_ends_with_a_sample(reports, way):
    assert len(reports[way]["columns"]) == 2
    for columns in reports[way]["columns"]:
        masks = columns.get("env_mask") or [[1] * len(ids) for ids in columns["completion_ids"]]
        rows = list(zip(columns["prompt_ids"], columns["completion_ids"], masks, columns["logprobs"], strict=True))
        assert len(rows) == 8
        for prompt, ids, mask, logprobs in rows:
            assert prompt
            assert len(ids) == len(mask) == len(logprobs) > 0
            assert mask[-1] == 1
            assert all((logprob == 0.0) == (bit == 0) for bit, logprob in zip(mask, logprobs, strict=True))


@pytest.mark.parametrize("way", ["trl_env", "legacy", "eval_protocol"])
def test_each_way_trains_two_steps_on_the_rewards_of_its_own_environment(reports, way):
    report = reports[way]
    assert len(report["losses"]) == 2
    assert all(math.isfinite(loss) for loss in report["losses"])
    rewards = [reward for batch in report["rewards"] for reward in batch]
    assert len(rewards) == 16
    assert len(set(rewards)) > 1


def test_a_group_of_trl_env_plays_its_prompt_as_its_seed(reports):
    for columns in reports["trl_env"]["columns"]:
        seeds = [json.loads(task)["options"]["seed"] for task in columns["task"]]
        assert [len(set(seeds[start : start + 4])) for start in (0, 4)] == [1, 1]
        assert columns["reward"] == columns["episode_return"]


def test_a_group_of_eval_protocol_plays_one_task(reports):
    games = [task for columns in reports["eval_protocol"]["columns"] for task in columns["task"]]
    groups = [games[start : start + 4] for start in range(0, 16, 4)]
    assert all(len(set(group)) == 1 for group in groups)
    assert len({group[0] for group in groups}) == 4


def test_documented_reward_functions_get_a_number_for_each_episode(reports):
    for columns, rewards in zip(reports["eval_protocol"]["columns"], reports["eval_protocol"]["rewards"], strict=True):
        assert columns["step_rewards"] == [sum(turns) for turns in columns["turn_rewards"]] == rewards
        assert columns["eval_score"] == columns["step_rewards"]


def test_system_prompt_prompt_and_observation_open_a_conversation(reports):
    messages = reports["eval_protocol"]["columns"][0]["messages"][0]
    assert messages[0] == {"role": "system", "content": "Click."}
    assert messages[1]["content"].startswith("Start task\n\nStep 1\nGoal: click ")
    assert messages[3]["content"].startswith("Step 2")


def test_concurrency_bounds_the_open_environments_which_are_reused(reports):
    assert reports["eval_protocol"]["opened"] <= 2  # for 16 episodes


def test_a_temperature_other_than_the_trainers_warns_once(reports):
    [warning] = [one for one in reports["eval_protocol"]["warnings"] if "temperature" in one]
    assert "temperature 0.7, GRPOConfig trains at 1.0" in warning


def test_the_page_of_trls_first_signature_runs_as_it_is(reports):
    asked = reports["legacy"]["asked"]
    assert [len(prompts) for prompts in asked] == [2, 2]  # one a group, as TRL gave them then
    for columns, rewards in zip(reports["legacy"]["columns"], reports["legacy"]["rewards"], strict=True):
        assert columns["env_reward"] == rewards


@pytest.mark.openenv
@pytest.mark.skipif(not OPENENV, reason="openenv is not installed")
def test_tasks_rotate_by_group_on_real_servers_one_for_each_task(reports):
    report = reports["tasks"]
    played = [json.loads(task) for columns in report["columns"] for task in columns["task"]]
    assert [game["env_id"] for game in played[::4]] == [
        f"OpenEnv/{task}" for task in ("click-test", "click-button", "click-link", "click-test")
    ]
    groups = [played[start : start + 4] for start in range(0, 16, 4)]
    assert all(group == [group[0]] * 4 for group in groups)
    assert sorted(report["seeds"]) == sorted(game["seed"] for game in played)  # what the servers were told
    assert len(report["started"]) == 3
    variables = {"image": "tasks:latest", "BROWSERGYM_BENCHMARK": "miniwob", "BROWSERGYM_HEADLESS": "false"}
    assert all(started | variables == started for started in report["started"])
    assert [reward for batch in report["rewards"] for reward in batch] == [
        pytest.approx(sum(turns)) for columns in report["columns"] for turns in columns["turn_rewards"]
    ]


@needs_trl_env
def test_trl_envs_own_rollout_samples_the_same_tokens_as_ours(reports):
    theirs, ours = reports["real_trl_env"]["played"]
    assert theirs == ours
    assert ours["reward"] == 1.0


@needs_trl_env
def test_the_preset_is_trl_envs_but_for_the_separator_that_it_leaves_out(reports):
    ours, theirs = reports["real_trl_env"]["preset"]
    assert ours == theirs
