"""Models in lockstep have the logprobs of forward passes without padding, or they are refused."""

import logging

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gym_trl.engines.kv_support import FAMILIES
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.errors import ConfigError
from gym_trl.types import Completion, Request

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "sliding_window": 8,
    "initializer_range": 0.3,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}, "max_position_embeddings": 64}
KINDS = {
    "rwkv": {},
    "minimax": {"block_size": 8},
    "llama": DYNAMIC,
    **{kind: {} for kind in ("gemma2", "gemma3_text", "gpt_oss", "cohere2", "olmo3", "mamba", "bloom", "lfm2", "opt")},
}
WHOLE = {"cache_implementation": "dynamic"}
"""Sampling option with which models are generated in lockstep of which keys and values would be kept."""
SLOW = {"falcon", "qwen3_next", "stablelm", "mpt", "apertus", "bitnet", "biogpt", "nemotron", "exaone4", "falcon_mamba"}


def model_of(kind, options):
    known = AutoConfig.for_model(kind)
    settable = {
        name: size
        for name, size in SIZES.items()
        if hasattr(known, name) and not isinstance(getattr(type(known), name, None), property)
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settable | options)).eval().float()


def sampled(made, requests):
    for request in requests:
        made.submit(request)
    found: list[Completion] = []
    while len(found) < len(requests):
        found += made.collect(block=True)
    return {one.request_id: one for one in found}


@pytest.mark.parametrize("kind", [*KINDS, *(pytest.param(kind, marks=pytest.mark.full) for kind in sorted(SLOW))])
def test_padding_does_not_change_the_logprobs_of_a_batch(kind, caplog):
    """Law 4."""
    model = model_of(kind, KINDS.get(kind, {}))
    sampling = WHOLE if kind in FAMILIES else {}
    made = TransformersEngine(model, pad_id=0, eos_ids=[], sampling=sampling)
    requests = [
        Request(f"{length}", [(7 * place + length) % 90 + 3 for place in range(length)], 8, length)
        for length in (3, 21, 40, 9, 60)
    ]
    requests.append(Request("another of 21", [place % 50 + 9 for place in range(21)], 8, 5))
    with caplog.at_level(logging.WARNING, "gym_trl"):
        answers = sampled(made, requests)
        sampled(TransformersEngine(model, pad_id=0, eos_ids=[], sampling=sampling), requests[:1])
    for request in requests:
        ids, logprobs = answers[request.id].ids, answers[request.id].logprobs
        with torch.no_grad():
            scores = model(torch.tensor([request.prompt_ids + ids])).logits[0].log_softmax(-1)
        start = len(request.prompt_ids) - 1
        own = [scores[start + place, id_].item() for place, id_ in enumerate(ids)]
        assert sum(abs(a - b) for a, b in zip(own, logprobs, strict=True)) / len(own) < 2e-3
    told = [record.getMessage() for record in caplog.records if "lockstep" in record.getMessage()]
    assert len(told) == 1
    assert made.lockstep in told[0]
    assert ("each is generated alone" in told[0]) is (kind == "rwkv")


def test_a_row_that_has_ended_is_not_computed_after_the_models_positions():
    model = model_of("opt", {"max_position_embeddings": 64})
    made = TransformersEngine(model, pad_id=0, eos_ids=[])
    answers = sampled(made, [Request("long", [7] * 62, 9, 0), Request("short", [7] * 9, 30, 0)])
    assert {name: len(one.ids) for name, one in answers.items()} == {"long": 2, "short": 30}


def test_a_model_with_other_logprobs_than_its_forward_pass_is_refused():
    made = TransformersEngine(model_of("bert", {}), pad_id=0, eos_ids=[])
    made.submit(Request("a", [7, 8, 9], 4, 0))
    with pytest.raises(ConfigError, match="'bert' generates with other log probabilities"):
        made.collect(block=True)
