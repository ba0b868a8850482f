"""Losses at sampled positions only are TRL's; an adapter is merged for a rollout and leaves no trace."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch
from support import warm
from support.trainer_double import TrainerDouble
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
)

from gym_trl.grpo import sampled_logprobs
from gym_trl.grpo.adapters import merged_adapter, sync_weights
from gym_trl.grpo.sampled_logprobs import ScoredRows, is_plain, score_sampled
from gym_trl.grpo.trainer_parts import Batch
from gym_trl.testing.tiny import tiny_model, tiny_tokenizer

SCRIPT = Path(__file__).parent / "train_beside_trl.py"
pytestmark = [pytest.mark.trl, pytest.mark.processes]

# Fields of GRPOConfig with which log-probabilities or entropies are used in another way; the losses are in the grid.
CASES = {
    "plain": {},
    "adapter": {"lora": 4},
    "temperature": {"grpo": {"temperature": 0.7}},
    "reference": {"grpo": {"beta": 0.1, "num_iterations": 2}, "lora": 4},
    "entropy": {"grpo": {"entropy_coef": 0.1}},
    "quantile": {"grpo": {"top_entropy_quantile": 0.5}},
    "checkpointing": {"grpo": {"gradient_checkpointing": True}, "lora": 4},
    "masked": {"masked": True},
    "bfloat16": {"lora": 4, "dtype": "bfloat16"},
    "scaled": {"scaled": True},
}
EQUAL = [name for name in CASES if name not in ("scaled", "bfloat16")]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return warm.run_ranks(SCRIPT, tmp_path_factory.mktemp("beside"), json.dumps(CASES))[0]


def equal(ours, theirs, tolerance=1e-5):
    assert math.isclose(ours["loss"], theirs["loss"], rel_tol=tolerance, abs_tol=tolerance)
    size = max(theirs["norm"], 1e-3)
    apart = math.dist(ours["gradient"], theirs["gradient"])
    assert apart < 20 * tolerance * size
    assert ours["logged"].keys() == theirs["logged"].keys()
    for name, value in theirs["logged"].items():
        assert ours["logged"][name] == pytest.approx(value, rel=tolerance, abs=tolerance, nan_ok=True), name


@pytest.mark.parametrize("case", EQUAL)
def test_losses_gradients_and_metrics_are_those_of_trl(report, case):
    losses = report[case]["losses"]
    assert len(losses) >= 4
    for loss in losses:
        equal(**loss)
    assert (max(loss["ours"]["norm"] for loss in losses) > 0) == (case != "masked")


def test_in_bfloat16_they_are_equal_up_to_its_rounding(report):
    for loss in report["bfloat16"]["losses"]:
        equal(**loss, tolerance=5e-3)


def test_the_head_is_applied_to_sampled_positions_only(report):
    for case in EQUAL:
        counted = [loss["ours"]["head"] for loss in report[case]["losses"]]
        assert counted == [[sampled] for sampled in report[case]["sampled"]]


def test_a_model_whose_scores_are_changed_after_its_head_is_left_to_trl(report):
    for scored, case in ((True, "plain"), (False, "scaled")):
        found = report[case]
        for loss, sampled in zip(found["losses"], found["sampled"], strict=True):
            equal(**loss)
            assert (loss["ours"]["head"] == [sampled]) is scored


def test_rollouts_of_a_merged_adapter_have_the_logprobs_of_the_unmerged_one(report):
    found = report["adapter"]
    assert max(found["differences"]) < 1e-4  # law 4 asks for 2e-3
    assert len(found["differences"]) == 2


@pytest.mark.parametrize("case", ["adapter", "bfloat16", "reference"])
def test_a_rollout_leaves_every_weight_as_it_was_to_the_last_bit(report, case):
    assert report[case]["weights_kept"] == [True] * len(report[case]["weights_kept"])


def adapted(dtype="float32"):
    """Return a tiny model with an adapter that changes its scores."""
    model = tiny_model(tiny_tokenizer(), width=32).to(getattr(torch, dtype))
    config = peft.LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return peft.get_peft_model(model, config)


def weights_of(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


@pytest.mark.parametrize("raises", [False, True])
def test_merging_in_bfloat16_leaves_every_bit_also_after_an_exception(raises):
    model = adapted("bfloat16")
    before, ids = weights_of(model), torch.arange(8)[None]
    with torch.no_grad():
        unmerged = model(ids).logits
        with pytest.raises(ZeroDivisionError) if raises else nullcontext(), merged_adapter(model):
            inside, merged = weights_of(model), model(ids).logits
            if raises:
                _ = 1 / 0
        assert torch.equal(model(ids).logits, unmerged)
    torch.testing.assert_close(merged, unmerged, rtol=0.05, atol=0.1)
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(model).items())
    changed = {name for name in before if not torch.equal(before[name], inside[name])}
    assert changed == {name for name in before if name.endswith("base_layer.weight")}
    # Without copies they would not be:
    model.merge_adapter()
    model.unmerge_adapter()
    assert any(not torch.equal(before[name], weight) for name, weight in weights_of(model).items())


def test_what_has_no_adapter_or_a_merged_or_disabled_one_is_left_alone():
    whole = tiny_model(tiny_tokenizer(), width=32)
    before = weights_of(whole)
    with merged_adapter(whole):
        assert all(torch.equal(before[name], weight) for name, weight in weights_of(whole).items())
    model = adapted()
    before = weights_of(model)
    with model.disable_adapter(), merged_adapter(model):
        assert all(torch.equal(before[name], weight) for name, weight in weights_of(model).items())
    model.merge_adapter()
    before = weights_of(model)
    with merged_adapter(model):
        pass
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(model).items())


def test_a_sync_to_vllm_in_bfloat16_leaves_every_bit_too():
    model = adapted("bfloat16")
    before, sent = weights_of(model), []

    def sync():  # as VLLMGeneration.sync_weights does it
        model.merge_adapter()
        sent.append(weights_of(model))
        model.unmerge_adapter()

    trainer = SimpleNamespace(
        model=model,
        use_vllm=True,
        accelerator=SimpleNamespace(),
        vllm_generation=SimpleNamespace(sync_weights=sync),
    )
    sync_weights(trainer)
    assert any(not torch.equal(before[name], sent[0][name]) for name in before)
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(model).items())


def test_the_trainers_own_sync_of_an_adapter_is_done_before_it_generates():
    model = adapted("bfloat16")
    before, sent = weights_of(model), []

    def sync():
        model.merge_adapter()
        sent.append(weights_of(model))
        model.unmerge_adapter()

    class Generates:
        """Stands in for GRPOTrainer."""

        _last_loaded_step: int
        state: Any

        def _generate(self, prompts):
            assert self._last_loaded_step == self.state.global_step, "TRL syncs otherwise"
            return [[1]], [[2]], [[1]], ["a"], [[0.0]], {}, None, []

    class Trainer(TrainerDouble, Generates):
        """Trainer with both."""

    trainer: Any = Trainer(step=3)
    trainer.model, trainer.use_vllm, trainer._last_loaded_step = model, True, 2
    trainer.vllm_generation = SimpleNamespace(sync_weights=sync)
    for _ in range(2):
        trainer.gym_trl.batch = Batch(trainer)
        trainer._generate(["Hi"])
    assert len(sent) == 1
    assert any(not torch.equal(before[name], sent[0][name]) for name in before)
    assert all(torch.equal(before[name], weight) for name, weight in weights_of(model).items())


def test_in_small_pieces_scores_and_gradients_are_the_same(monkeypatch):
    model = tiny_model(tiny_tokenizer(), width=32)
    ids = torch.arange(40).reshape(4, 10)
    attended = torch.ones_like(ids)
    attended[0, :3], attended[:, -1] = 0, 0
    sampled = torch.zeros(4, 5, dtype=torch.bool)
    sampled[:, 1:3], sampled[2, 0] = True, True

    def scored():
        rows = ScoredRows(ids, attended, sampled, entropy=True, entropy_gradient=True)
        found = score_sampled(model, rows, temperature=0.5)
        model.zero_grad()
        (found.logprobs.sum() + found.entropies.sum()).backward()
        return found, torch.cat([weight.grad.flatten() for weight in model.parameters()])

    found, gradient = scored()
    assert ((found.logprobs != 0) == sampled).all()
    assert ((found.entropies != 0) == sampled).all()
    monkeypatch.setattr(sampled_logprobs, "_CHUNK", 3 * 102)  # three positions
    again, its = scored()
    torch.testing.assert_close(again, found)
    torch.testing.assert_close(its, gradient)


def test_models_are_plain_unless_their_scores_are_changed_after_the_head():
    small = {"vocab_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    small |= {"hidden_size": 16, "intermediate_size": 16, "head_dim": 8}
    assert is_plain(adapted())
    assert not is_plain(Gemma2ForCausalLM(Gemma2Config(**small, final_logit_softcapping=0.1)))
    assert is_plain(Gemma2ForCausalLM(Gemma2Config(**small, final_logit_softcapping=None)))
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_layer=1, n_head=2, n_embd=16, bos_token_id=0, eos_token_id=0)
    )  # with dropout
    assert model.training
    state = torch.get_rng_state()
    assert is_plain(model)
    assert all(part.training for part in model.modules())
    assert torch.equal(state, torch.get_rng_state())
    assert not is_plain(object())


@pytest.mark.lm
def test_the_pretrained_models_logprobs_are_those_of_its_whole_scores(pretrained):
    model = AutoModelForCausalLM.from_pretrained(pretrained, dtype="float32")
    ids = torch.randint(3, 1000, (3, 40), generator=torch.Generator().manual_seed(0))
    attended = torch.ones_like(ids)
    attended[1, :4], attended[2, -6:] = 0, 0
    sampled = torch.zeros(3, 20, dtype=torch.bool)
    sampled[:, 2:5], sampled[1, 18:] = True, True
    assert is_plain(model)
    rows = ScoredRows(ids, attended, sampled, entropy=True, entropy_gradient=False)
    with torch.no_grad():
        found = score_sampled(model, rows, temperature=0.8)
        scores = (model(input_ids=ids, attention_mask=attended).logits[:, 19:-1] / 0.8).log_softmax(-1)
    expected = scores.gather(-1, ids[:, -20:, None])[..., 0] * sampled
    torch.testing.assert_close(found.logprobs, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.entropies, -(scores.exp() * scores).sum(-1) * sampled, rtol=1e-4, atol=1e-4)
