"""A response has the logprobs of the model as it is, in every way in which a model can have changed."""

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from gym_trl.engines.transformers import TransformersEngine
from gym_trl.types import Request

SIZES = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.3}
PROMPT = [7, 9, 11, 13] * 10


def llama(seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **SIZES, **HEADS)).eval()


def adapted():
    import peft

    options = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": False}
    model = peft.get_peft_model(llama(), peft.LoraConfig(**options))
    model.add_adapter("other", peft.LoraConfig(**options))
    return model.eval()


def optimizer_step(model, **options):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, **options)
    with torch.enable_grad():
        model(torch.tensor([PROMPT]), labels=torch.tensor([PROMPT])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def fused_step(model):
    optimizer_step(model, fused=True)


def load(model):
    model.load_state_dict(llama(1).state_dict())


def load_assigned(model):
    model.load_state_dict(llama(1).state_dict(), assign=True)


def replace_parameters(model):
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight = torch.nn.Parameter(layer.self_attn.v_proj.weight.detach() * 1.5)


def replace_modules(model):
    model.model.layers[1].mlp = llama(1).model.layers[1].mlp
    model.model.layers[0].self_attn.v_proj = torch.nn.Linear(32, 16)


def replace_a_layer(model):
    """By one whose configuration is another object."""
    model.model.layers[0] = llama(1).model.layers[0]


def replace_data(model):
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.3


def write_through_data(model):
    for parameter in model.parameters():
        parameter.data.copy_(parameter.data * 1.3)


def change_one_value(model):
    model.model.layers[0].self_attn.v_proj.weight.data[3, 5] += 3.0


def change_a_buffer(model):
    model.model.rotary_emb.inv_freq.data.mul_(1.2)


def cast(model):
    model.model.layers[0].self_attn.v_proj.weight.data.mul_(1.5)
    model.double()


def rescale(model):
    for layer in model.model.layers:
        layer.self_attn.scaling *= 2.0


def hook(model):
    model.model.layers[0].register_forward_hook(lambda module, given, states: states * 1.5)


def switch_adapter(model):
    model.set_adapter("other")


def merge_adapter(model):
    model.merge_adapter()
    for layer in model.base_model.model.model.layers:
        layer.self_attn.o_proj.weight.data.mul_(1.2)


def scale_adapter(model):
    for layer in model.base_model.model.model.layers:
        layer.self_attn.v_proj.scaling["default"] *= 3


def disable_adapter(model):
    model.base_model.disable_adapter_layers()


def train_adapter(model):
    optimizer_step(model, fused=True)


SEEN = [
    *(optimizer_step, fused_step, load, load_assigned, replace_parameters, replace_modules, replace_data),
    *(write_through_data, cast),
]
HIDDEN = [change_one_value, change_a_buffer, rescale, hook]
ADAPTERS = [switch_adapter, merge_adapter, scale_adapter, disable_adapter, train_adapter]


def named(ways):
    return pytest.mark.parametrize("change", ways, ids=lambda change: change.__name__)


def made(change):
    return adapted() if change in ADAPTERS else llama()


def engine(model, **options):
    return TransformersEngine(model, pad_id=0, eos_ids=[], **options)


def until(engine, name):
    while True:
        for completion in engine.collect(block=True):
            if completion.request_id == name:
                return completion


def off_by(model, request, completion):
    """The mean difference in nats between the logprobs of a completion and those of the model."""
    with torch.no_grad():
        scores = model(torch.tensor([request.prompt_ids + completion.ids])).logits[0].float().log_softmax(-1)
    start = len(request.prompt_ids) - 1
    own = [scores[start + place, id_].item() for place, id_ in enumerate(completion.ids)]
    return sum(abs(a - b) for a, b in zip(own, completion.logprobs, strict=True)) / len(own)


@named([*SEEN, replace_a_layer, *HIDDEN, *ADAPTERS])
def test_after_a_pause_a_response_has_the_logprobs_of_the_changed_model(change):
    """Law 4, in the second turn of an episode, and in an episode that begins like it."""
    model = made(change)
    tried, before = engine(model), copy.deepcopy(model)
    tried.submit(first := Request("a", PROMPT, 6, 0, 1))
    answered = until(tried, first.id)
    assert off_by(model, first, answered) < 1e-4
    change(model)
    second = Request("a", PROMPT + answered.ids + [3, 4], 6, 1, 2)
    for request in (second, Request("b", PROMPT, 6, 2, 1)):
        tried.submit(request)
        completion = until(tried, request.id)
        assert off_by(model, request, completion) < 1e-4
        assert off_by(before, request, completion) > 2e-3  # or nothing was tested


@named(SEEN)
def test_a_change_while_others_are_sampled_is_seen(change):
    model = llama()
    tried = engine(model)
    tried.submit(Request("running", [5] * 30, 40, 0, 1))
    tried.submit(Request("a", PROMPT, 3, 1, 1))
    until(tried, "a-1")
    change(model)
    tried.submit(request := Request("b", PROMPT, 6, 2, 1))
    assert off_by(model, request, until(tried, request.id)) < 1e-4
    assert len(until(tried, "running-1").ids) == 40


@named([*HIDDEN, *ADAPTERS])
@pytest.mark.parametrize("running", [True, False])
def test_a_change_that_is_announced_is_seen_at_any_time(change, running):
    model = made(change)
    tried = engine(model, constant_weights=True)
    if running:
        tried.submit(Request("running", [5] * 30, 40, 0, 1))
    tried.submit(Request("a", PROMPT, 3, 1, 1))
    until(tried, "a-1")
    change(model)
    tried.reset_cache()
    tried.submit(request := Request("b", PROMPT, 6, 2, 1))
    assert off_by(model, request, until(tried, request.id)) < 1e-4


@pytest.mark.parametrize("constant", [True, False])
def test_constant_weights_keep_what_was_computed_over_a_pause(constant):
    tried = engine(llama(), constant_weights=constant)
    tried.submit(Request("a", PROMPT, 6, 0, 1))
    answered = until(tried, "a-1")
    tried.submit(Request("a", PROMPT + answered.ids + [3, 4], 1, 1, 2))
    until(tried, "a-2")
    assert tried.stats.reused == (len(PROMPT) + len(answered.ids) - 1 if constant else 0)
