"""The real GRPOTrainer, on one process and on two, newest TRL and oldest."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import warm

from gym_trl.chat import Stops
from gym_trl.errors import ConfigError
from gym_trl.grpo.trainer_engine import trainer_engine

SCRIPT = Path(__file__).parent / "train_some_steps.py"

pytestmark = [pytest.mark.trl, pytest.mark.processes]


def run(folder, *, processes=1, **options):
    """Train in processes of their own (one process state per trainer, as users have) and read what they wrote."""
    return warm.run_ranks(SCRIPT, folder, json.dumps(options), processes=processes)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Three training steps and an evaluation on one process."""
    return run(tmp_path_factory.mktemp("alone"))[0]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two processes of six rows each: the second group of four straddles them."""
    grpo = {"per_device_train_batch_size": 6, "per_device_eval_batch_size": 6, "num_generations": 4}
    return run(tmp_path_factory.mktemp("pair"), processes=2, plain=True, grpo=grpo)


def groups(rollout, size=4):
    return [rollout["tasks"][start : start + size] for start in range(0, len(rollout["tasks"]), size)]


def test_a_group_plays_one_game_and_different_groups_different_ones(alone):
    trained = [rollout for rollout in alone["rollouts"] if rollout["split"] == "train"]
    assert len(trained) == 3
    played = [group for rollout in trained for group in groups(rollout)]
    assert all(len(set(group)) == 1 for group in played)
    assert len({group[0] for group in played}) == len(played)


def test_what_trl_gets_has_one_length_and_ends_on_a_sampled_token(alone):
    for returned in alone["returned"]:
        rows = zip(*(returned[name] for name in ("completion_ids", "env_mask", "logprobs")), strict=True)
        for ids, mask, logprobs in rows:
            assert len(ids) == len(mask) == len(logprobs)
            assert mask[-1] == 1
            assert all((logprob == 0.0) == (bit == 0) for bit, logprob in zip(mask, logprobs, strict=True))


def test_logprobs_are_those_of_the_model_in_training(alone):
    assert max(alone["logprob_differences"]) < 1e-4  # law 4 asks for 2e-3


@pytest.mark.full
def test_rollouts_are_sampled_as_the_trainer_is_told(tmp_path):
    options = {"temperature": 0.5, "top_k": 5, "max_steps": 1}
    report = run(tmp_path, grpo=options, spec={"max_alive": 3})[0]
    # The recomputation uses the trainer's temperature and top-k: any other sampling would give other logprobs.
    assert max(report["logprob_differences"]) < 1e-4


@pytest.mark.full
def test_the_templates_own_options_reach_it(tmp_path):
    template = "{% for m in messages %}<|user|>{{ tone }}{{ m['content'] }}<|end|>{% endfor %}"
    template = (
        template.replace("<|user|>", "<|{{ m['role'] }}|>") + "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    spec = {"chat_template_kwargs": {"tone": "Kindly: "}, "instructions": ""}
    report = run(tmp_path, template=template, spec=spec, grpo={"max_steps": 1})[0]
    assert report["first_prompts"][0] == "<|user|>Kindly: Guess 1 to 8 in 3 tries.<|end|><|assistant|>"


def test_the_environments_numbers_reach_the_logs(alone):
    steps = [entry for entry in alone["logs"] if "env/return" in entry]
    assert len(steps) == 3
    for entry in steps:
        assert 1 <= entry["env/turns"] <= 3
        assert sum(value for name, value in entry.items() if name.startswith("env/stop/")) == pytest.approx(1.0)
        assert entry["rewards/env_reward/mean"] == pytest.approx(entry["env/return"], abs=1e-6)


def test_evaluation_plays_tasks_that_training_never_saw(alone):
    assert "eval_reward" in alone["evaluation"] or "eval_loss" in alone["evaluation"]
    evaluated = {task for r in alone["rollouts"] if r["split"] == "eval" for task in r["tasks"]}
    trained = {task for r in alone["rollouts"] if r["split"] == "train" for task in r["tasks"]}
    assert evaluated
    assert not evaluated & trained


@pytest.mark.full
def test_the_same_seeds_train_the_same_way(alone, tmp_path):
    again = run(tmp_path)[0]
    assert again["rollouts"] == alone["rollouts"]
    assert again["returned"] == alone["returned"]


@pytest.mark.full
def test_training_goes_on_where_environments_raise_hang_and_kill_their_process(tmp_path):
    faults = {"raises": 0.05, "hangs": 0.01, "dies": 0.05, "garbage": 0.05, "fails_to_start": 0.05}
    limits = {"reset_timeout": 30.0, "step_timeout": 1.0}
    [report] = run(tmp_path, faults=faults, spec={"executor": "process", "workers": 2, **limits}, grpo={"max_steps": 4})
    logs = [entry for entry in report["logs"] if "env/unscored" in entry and "loss" in entry]
    assert len(logs) == 4
    assert 0 < sum(float(entry["env/stop/env_error"]) for entry in logs) < 4
    assert all(len(set(group)) == 1 for rollout in report["rollouts"] for group in groups(rollout))


@pytest.mark.full
def test_a_plain_dataset_gets_one_game_a_group_though_all_prompts_are_equal(tmp_path):
    report = run(tmp_path, plain=True)[0]
    played = [group for rollout in report["rollouts"] if rollout["split"] == "train" for group in groups(rollout)]
    assert all(len(set(group)) == 1 for group in played)
    assert len({group[0] for group in played}) == len(played)


@pytest.mark.full
def test_groups_that_straddle_two_processes_play_one_game(pair):
    assert [report["rank"] for report in pair] == [0, 1]
    for first, second in zip(pair[0]["rollouts"], pair[1]["rollouts"], strict=True):
        if first["split"] == "train":
            played = first["tasks"] + second["tasks"]
            assert [len(set(played[start : start + 4])) for start in (0, 4, 8)] == [1, 1, 1]
            assert len(set(played)) == 3


@pytest.mark.full
def test_members_of_a_group_are_sampled_apart_on_every_process(pair):
    for first, second in zip(pair[0]["rollouts"], pair[1]["rollouts"], strict=True):
        if first["split"] == "train":
            straddling = (first["texts"] + second["texts"])[4:8]
            assert len({json.dumps(texts) for texts in straddling}) > 1


@pytest.mark.full
def test_a_batch_that_groups_do_not_divide_is_refused_before_training(tmp_path):
    with pytest.raises(AssertionError, match=r"ValueError: .*must be divisible by num_generations"):
        run(tmp_path, grpo={"num_generations": 3})


@pytest.mark.full
def test_a_budget_too_small_for_the_first_observation_leaves_rows_without_score(tmp_path):
    report = run(tmp_path, spec={"instructions": "x" * 3000}, grpo={"max_steps": 1})[0]
    logs = next(entry for entry in report["logs"] if "env/unscored" in entry)
    assert logs["env/unscored"] == 1.0
    assert logs["env/stop/context_overflow"] == 1.0
    assert set(map(tuple, report["returned"][0]["env_mask"])) == {(0,)}


@pytest.mark.parametrize(
    ("fsdp", "plugin", "said"), [(True, None, "FSDP"), (False, SimpleNamespace(zero_stage=3), "ZeRO-3 without")]
)
def test_weights_that_stay_sharded_are_refused_before_any_process_waits(fsdp, plugin, said):
    trainer = SimpleNamespace(
        use_vllm=False,
        is_fsdp_enabled=fsdp,
        processing_class=None,
        args=SimpleNamespace(ds3_gather_for_generation=False),
        accelerator=SimpleNamespace(num_processes=2, state=SimpleNamespace(deepspeed_plugin=plugin)),
    )
    with pytest.raises(ConfigError, match=said), trainer_engine(trainer, Stops()):
        pass
