"""Two steps of the real GRPOTrainer through each way in, in one process."""

import json
import math
from pathlib import Path

import pytest
from support import warm

FOLDER = Path(__file__).parent
TRL_ENV = Path(__file__).parents[2] / ".venv/.peers/trl-env"
ROUTES = ("trl_env", "legacy")

pytestmark = pytest.mark.slow
needs_trl_env = pytest.mark.skipif(
    not (TRL_ENV / "trl_env").is_dir(), reason="trl-env is not there: make .venv/.peers/trl-env"
)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    target = tmp_path_factory.mktemp("ways")
    routes = [*ROUTES, *(["real_trl_env"] if (TRL_ENV / "trl_env").is_dir() else [])]
    done = warm.run(FOLDER / "train_each_way.py", target, *routes, env={"TRL_ENV": TRL_ENV}, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((target / "report.json").read_text())


@pytest.mark.parametrize("way", ["trl_env", "legacy"])
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


@pytest.mark.parametrize("way", ["trl_env", "legacy"])
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
        assert columns["reward"] == columns["return"]


def test_the_page_of_trls_first_signature_runs_as_it_is(reports):
    asked = reports["legacy"]["asked"]
    assert [len(prompts) for prompts in asked] == [2, 2]  # one a group, as TRL gave them then
    for columns, rewards in zip(reports["legacy"]["columns"], reports["legacy"]["rewards"], strict=True):
        assert columns["env_reward"] == rewards


@needs_trl_env
def test_trl_envs_own_rollout_samples_the_same_tokens_as_ours(reports):
    theirs, ours = reports["real_trl_env"]["played"]
    assert theirs == ours
    assert ours["reward"] == 1.0


@needs_trl_env
def test_the_preset_is_trl_envs_but_for_the_separator_that_it_leaves_out(reports):
    ours, theirs = reports["real_trl_env"]["preset"]
    assert ours == theirs
