"""The real GRPOTrainer on two processes with the real vLLM, colocated: one engine each."""

import json
from pathlib import Path

import pytest
from support import vllm_cpu, warm

SCRIPT = Path(__file__).parent / "train_with_vllm.py"

pytestmark = [
    pytest.mark.needs(package="vllm"),
]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two processes of six rows each, so that the second group of four straddles them; one has longer games."""
    folder = tmp_path_factory.mktemp("pair")
    grpo = {
        "per_device_train_batch_size": 6,
        "per_device_eval_batch_size": 6,
        "max_steps": 5,
    }
    options = json.dumps({"grpo": grpo, "turns": [2, 5]})
    return warm.run_ranks(SCRIPT, folder, options, processes=2, env=vllm_cpu.SETTINGS, timeout=280)


def trained(report):
    return [rollout for rollout in report["rollouts"] if rollout["split"] == "train"]


def test_groups_that_straddle_two_processes_play_one_game(pair):
    assert len(trained(pair[0])) == len(trained(pair[1])) == 5
    for first, second in zip(trained(pair[0]), trained(pair[1]), strict=True):
        played = first["task"] + second["task"]
        assert [len(set(played[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
        assert len(set(played)) == 3


def test_members_of_a_group_are_sampled_apart(pair):
    for first, second in zip(trained(pair[0]), trained(pair[1]), strict=True):
        straddling = (first["completion_ids"] + second["completion_ids"])[4:8]
        assert len({json.dumps(ids) for ids in straddling}) > 1


def test_each_process_plays_its_own_number_of_turns(pair):
    turns = [max(rollout["num_turns"]) for report in pair for rollout in trained(report)]
    assert turns[:5] == [2] * 5
    assert set(turns[5:]) <= {3, 4, 5}


def test_every_rollout_samples_from_the_weights_of_its_step(pair):
    """Law 4 on each process, after each change of the weights."""
    for report in pair:
        assert all(rollout["difference"] < 1e-5 for rollout in report["rollouts"])
        assert all(rollout["difference_to_first"] > 0.01 for rollout in trained(report)[1:])


def test_the_importance_ratio_stays_at_one(pair):
    key = "sampling/importance_sampling_ratio/mean"
    ratios = [entry[key] for entry in pair[0]["logs"] if key in entry]
    print(*(f"{ratio:.7f}" for ratio in ratios))
    assert ratios == pytest.approx([1.0] * 5, abs=1e-3)


def test_nothing_failed_and_nothing_is_left_running(pair):
    for report in pair:
        for rollout in report["rollouts"]:
            assert set(rollout["stop_reason"]) <= {"ended", "token_limit", "invalid"}
            assert rollout["unfinished"] == 0
