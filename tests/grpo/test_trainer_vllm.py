"""The real GRPOTrainer with the real vLLM, colocated, on a CPU."""

import json
from pathlib import Path

import pytest
from support import vllm_cpu, warm

SCRIPT = Path(__file__).parent / "train_with_vllm.py"
STEPS = 20

needs_vllm = [
    pytest.mark.needs(package="vllm"),
]


def run(folder, **options):
    """Train in a process of its own: vLLM and the trainer both keep the process to themselves."""
    env = {**vllm_cpu.SETTINGS, **vllm_cpu.own_port()}
    [report] = warm.run_ranks(SCRIPT, folder, json.dumps(options), env=env, timeout=280)
    return report


@pytest.fixture(scope="module")
def awake(tmp_path_factory):
    """Twenty steps with a large learning rate, and an evaluation."""
    return run(tmp_path_factory.mktemp("awake"), grpo={"max_steps": STEPS})


@pytest.fixture(scope="module")
def asleep(tmp_path_factory):
    """The same with an engine that forgets its weights whenever it sleeps."""
    return run(tmp_path_factory.mktemp("asleep"), grpo={"max_steps": STEPS}, sleep=True)


def splits(report):
    return [rollout["split"] for rollout in report["rollouts"]]


class TestTraining:
    pytestmark = needs_vllm

    def test_the_importance_ratio_stays_at_one(self, awake):
        key = "sampling/importance_sampling_ratio"
        steps = [entry for entry in awake["logs"] if f"{key}/mean" in entry]
        for step, entry in enumerate(steps, start=1):
            print(step, *(f"{what} {entry[f'{key}/{what}']:.7f}" for what in ("min", "mean", "max")))
        assert len(steps) == STEPS
        for entry in steps:
            assert entry[f"{key}/mean"] == pytest.approx(1.0, abs=1e-3)
            assert entry[f"{key}/min"] == pytest.approx(1.0, abs=0.02)
            assert entry[f"{key}/max"] == pytest.approx(1.0, abs=0.02)
            assert entry["sampling/sampling_logp_difference/mean"] < 1e-5

    def test_every_rollout_samples_from_the_weights_of_its_step(self, awake):
        """Law 4 after each change of the weights, which would show: they are far from the first ones."""
        assert all(rollout["difference"] < 1e-5 for rollout in awake["rollouts"])
        assert all(rollout["difference_to_first"] > 0.1 for rollout in awake["rollouts"][1:])

    def test_what_trl_gets_has_one_length_and_ends_on_a_sampled_token(self, awake):
        for rollout in awake["rollouts"]:
            rows = zip(*(rollout[name] for name in ("completion_ids", "env_mask", "logprobs")), strict=True)
            for ids, mask, logprobs in rows:
                assert len(ids) == len(mask) == len(logprobs)
                assert mask[-1] == 1
                assert all((logprob == 0.0) == (bit == 0) for bit, logprob in zip(mask, logprobs, strict=True))
            assert set(rollout["error"]) == {None}
            assert rollout["unfinished"] == 0

    def test_segments_with_credit_per_turn_are_trained_on_as_they_were_sampled(self, tmp_path):
        """Also with the ratio of a whole episode (``sequence_mask``), TRL's default."""
        report = run(tmp_path, spec={"history": "rendered", "system_prompt": "Play.", "credit": "pool"})
        assert all(rollout["difference"] < 1e-5 for rollout in report["rollouts"])
        assert all(sum(rollout["segments"]) > 8 for rollout in report["rollouts"])
        assert len(report["losses"]) == 3
        for loss, rollout in zip(report["losses"], report["rollouts"], strict=False):
            assert loss["rows"] == sum(rollout["segments"])
            assert loss["ratios"] == [loss["rows"], 1]
            assert loss["furthest"] < 0.02
            assert loss["advantages"][0] == loss["rows"]
            assert len(loss["advantages"]) == 2, "one for each token"

    def test_evaluation_plays_too(self, awake):
        assert splits(awake)[:STEPS] == ["train"] * STEPS
        assert splits(awake).count("eval") >= 2
        assert 2.5 < awake["evaluation"]["eval_env/turns"] <= 3.0

    def test_an_engine_that_sleeps_is_woken_once_a_rollout(self, asleep):
        """The CPU frees no memory, so that the test zeroes the weights; what TRL and we call is the real thing."""
        calls = [tuple(call) for call in asleep["sleeper"]]
        woken = [("sync_weights",), ("wake_up", "weights"), ("wake_up", "kv_cache"), ("sleep",)]
        assert calls[: 1 + 4 * len(splits(asleep))] == [("sleep",), *woken * len(splits(asleep))]

    def test_sleeping_changes_nothing_of_what_is_sampled(self, awake, asleep):
        assert asleep["rollouts"] == awake["rollouts"]

    def test_sampling_is_what_trl_would_do(self, tmp_path):
        grpo = {
            "max_steps": 1,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 20,
            "min_p": 0.01,
            "repetition_penalty": 1.1,
            "generation_kwargs": {"frequency_penalty": 0.1, "stop": ["7"]},
            "vllm_structured_outputs_regex": "[0-9]+",
        }
        params = run(tmp_path, grpo=grpo)["params"]
        # How an answer ends and comes back is ours to say, and nothing else.
        ours = {"max_tokens", "seed", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"}
        ours |= {"flat_logprobs", "output_kind", "_all_stop_token_ids", "output_text_buffer_length"}
        for noted in params.values():  # vLLM writes into it which backend it has chosen
            noted["structured_outputs"] = noted["structured_outputs"].partition(", _backend")[0]
        assert {name for name in params["trl"] if params["trl"][name] != params["ours"][name]} <= ours
        assert (params["ours"]["top_k"], params["ours"]["min_p"], params["ours"]["stop"]) == ("20", "0.01", "['7']")
        assert "[0-9]+" in params["ours"]["structured_outputs"]
