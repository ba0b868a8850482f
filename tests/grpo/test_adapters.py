"""An adapter is merged for a rollout and for vLLM, and leaves no trace."""

from contextlib import nullcontext
from types import SimpleNamespace

import peft
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gym_trl.grpo.adapters import merged_adapter, sync_weights
from gym_trl.models import with_adapter
from gym_trl.testing import tiny_model, tiny_tokenizer


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


@pytest.mark.parametrize("kind", ["llama", "mamba2", "phimoe"])
def test_a_new_adapter_changes_nothing_yet(kind):
    """Also where layers cannot have one."""
    sizes = {"vocab_size": 9, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 8}
    sizes |= {"num_heads": 2, "head_dim": 32, "n_groups": 1} if kind == "mamba2" else {"intermediate_size": 32}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    plain = model(torch.arange(8)[None]).logits
    assert torch.equal(with_adapter(model, 2)(torch.arange(8)[None]).logits, plain)


def test_what_has_no_adapter_or_a_merged_one_is_left_alone():
    whole = tiny_model(tiny_tokenizer(), width=32)
    before = weights_of(whole)
    with merged_adapter(whole):
        assert all(torch.equal(before[name], weight) for name, weight in weights_of(whole).items())
    model = adapted()
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
