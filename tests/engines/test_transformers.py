"""Sampling with a Transformers model: what is kept of earlier turns changes no response, and what must not change."""

import copy
import logging
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from support import tiny_trainer
from support.lanes import examples
from transformers import AutoConfig, AutoModelForCausalLM

from gym_trl import GymSpec
from gym_trl.engines import transformers as module
from gym_trl.engines.attention_backends import no_cudnn_attention
from gym_trl.engines.kv_cache import KVCache
from gym_trl.engines.sampler import End
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.errors import ConfigError, EngineError
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import Completion, FinishReason, Request

VOCABULARY = 97
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.3,  # so that the tokens before decide the next
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes by all their names, of which each configuration takes its own."""
PROMPT = [7, 9, 11, 13] * 10


def model_of(kind, seed=0, **options):
    known = AutoConfig.for_model(kind)
    sizes = {name: size for name, size in SIZES.items() if hasattr(known, name)} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval().float()


LLAMA = model_of("llama")
KINDS = ("llama", "qwen2", "qwen3", "gpt2", "gpt_neox")
KEPT = [*((kind, {}) for kind in KINDS), ("mistral", {"sliding_window": None})]
IN_LOCKSTEP = [
    ("gemma3_text", {"sliding_window": 8, "num_hidden_layers": 6}),
    ("mistral", {"sliding_window": 8}),
    ("bloom", {}),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}),
    ("mamba", {}),
]


def engine(model=LLAMA, *, whole=False, tokens=None, **options):
    """Return an engine; ``whole`` generates whole prompts in lockstep, and ``tokens`` are all that memory is for."""
    made = TransformersEngine(model, **{"pad_id": 0, "eos_ids": [], **options})
    made.lockstep = "the test asks for it" if whole else made.lockstep
    made._cache = KVCache(tokens) if tokens else None
    return made


def answers(made, requests):
    for request in requests:
        made.submit(request)
    found: dict[str, Completion] = {}
    while not found.keys() >= {request.id for request in requests}:
        found |= {one.request_id: one for one in made.collect()}
    return found


def off_by(model, request, completion, temperature=1.0):
    """The mean difference in nats between the logprobs of a completion and those of the model, without padding."""
    with torch.no_grad():
        scores = model(torch.tensor([request.prompt_ids + completion.ids])).logits[0].float() / temperature
    own = scores.log_softmax(-1)[len(request.prompt_ids) - 1 : -1].gather(1, torch.tensor(completion.ids)[:, None])
    return (own[:, 0] - torch.tensor(completion.logprobs)).abs().mean().item()


def play(made, seed, *, episodes=6, turns=3, max_tokens=12, cancels=0.0, forgets=0.0):
    """Play episodes in groups of three; episodes of a group begin alike, and all have a part in common.

    Returns the requests and the completions of those that were not cancelled; a share of turns ``forgets`` the end of
    the prompt.
    """
    rng = np.random.default_rng(seed)
    common = rng.integers(0, VOCABULARY, rng.integers(0, 40)).tolist()
    openings = [common + rng.integers(0, VOCABULARY, rng.integers(1, 40)).tolist() for _ in range(episodes // 3 + 1)]
    requests: dict[str, Request] = {}
    completions: dict[str, Completion] = {}
    running: dict[str, tuple[int, int]] = {}

    def ask(episode, turn, ids):
        request = Request(f"e{episode}", ids, int(rng.integers(1, max_tokens + 1)), int(rng.integers(2**31)), turn)
        requests[request.id], running[request.id] = request, (episode, turn)
        made.submit(request)

    for episode in range(episodes):
        ask(episode, 1, openings[episode // 3])
    while running:
        for completion in made.collect():
            episode, turn = running.pop(completion.request_id)
            assert completion.request_id not in completions
            completions[completion.request_id] = completion
            if turn < turns:
                before = requests[completion.request_id].prompt_ids + completion.ids
                if rng.random() < forgets:
                    before = before[: int(rng.integers(len(before)))]
                ask(episode, turn + 1, before + rng.integers(0, VOCABULARY, rng.integers(1, 25)).tolist())
        if running and rng.random() < cancels:
            name = sorted(running)[int(rng.integers(len(running)))]
            made.cancel(name)
            del running[name], requests[name]
    assert made.collect() == []
    return requests, completions


@contextmanager
def computed(model):
    """Provide a list that gets the number of tokens of each forward pass."""
    counts: list[int] = []

    def count(_, given, named):
        counts.append((named["input_ids"] if "input_ids" in named else given[0]).numel())

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    yield counts
    handle.remove()


def check_alone(model, played, **options):
    """Law 5: each response is that to its whole prompt, alone."""
    requests, completions = played
    assert requests.keys() == completions.keys()
    for name, completion in completions.items():
        alone = answers(engine(model, whole=True, **options), [requests[name]])[name]
        assert (completion.ids, completion.finish) == (alone.ids, alone.finish)
        assert completion.logprobs == pytest.approx(alone.logprobs, abs=1e-3)


@pytest.mark.parametrize(("kind", "options"), [*KEPT, *IN_LOCKSTEP], ids=str)
def test_every_kind_of_model_has_the_logprobs_of_its_forward_pass(kind, options, caplog):
    """Law 4, in turns of several episodes of unlike lengths."""
    model = model_of(kind, **options)
    made = engine(model)
    with caplog.at_level(logging.WARNING, "gym_trl"):
        requests, completions = play(made, 1)
    assert max(off_by(model, requests[name], one) for name, one in completions.items()) < 2e-3
    assert (made.lockstep is None) is ((kind, options) in KEPT)
    told = [record.getMessage() for record in caplog.records if "lockstep" in record.getMessage()]
    assert len(told) == (made.lockstep is not None)
    assert all(made.lockstep in message for message in told)


SAMPLINGS = [{}, {"temperature": 0}, {"temperature": 0.7, "top_p": 0.9}, {"top_k": 5}, {"repetition_penalty": 2.0}]
LETTERS = {"stop_strings": ["a", "xy"], "decode": lambda ids: "".join(chr(97 + id_ % 26) for id_ in ids)}
CASES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**32),
        "sampling": st.sampled_from(SAMPLINGS),
        "strings": st.sampled_from([{}, LETTERS]),
        "tokens": st.sampled_from([256, 512, 10**6]),
    }
)


@examples(40)
@given(CASES)
def test_joins_cancels_and_evictions_change_no_response(case):
    """Law 5, law 8, and the limit of the memory."""
    options = {"sampling": case["sampling"], "eos_ids": [5], **case["strings"]}
    made = engine(tokens=case["tokens"], **options)
    played = play(made, case["seed"], cancels=0.2, forgets=0.3)
    assert made._cache is not None
    assert made._cache.tokens <= case["tokens"]
    check_alone(LLAMA, played, **options)


def test_only_new_tokens_are_computed_and_a_group_shares_its_prompt():
    with computed(LLAMA) as counts:
        requests, completions = play(engine(), 5, turns=4)
    last = [f"e{episode}-4" for episode in range(6)]
    assert sum(counts) < sum(len(requests[name].prompt_ids) + len(completions[name].ids) for name in last)


def test_a_long_prompt_is_computed_in_several_steps(monkeypatch):
    monkeypatch.setattr(module, "_STEP_TOKENS", 16)
    check_alone(LLAMA, play(engine(), 2, episodes=4))


@pytest.mark.parametrize("whole", [False, True])
def test_a_cancelled_request_is_not_generated_and_frees_its_place(whole):
    """Law 12."""
    made = engine(whole=whole, tokens=512)
    made.submit(Request("a", [7, 8, 9], 400, 0))
    if not whole:
        assert made.collect() == []
    made.cancel("a")
    made.submit(Request("b", [7, 8], 1, 0))
    with computed(LLAMA) as counts:
        assert [one.request_id for one in made.collect()] == ["b"]
    assert sum(counts) in {1, 2}  # what both begin with may be there
    assert made.collect() == []


def test_what_was_computed_is_kept_over_a_pause():
    made = engine()
    answered = answers(made, [Request("a", PROMPT, 6, 0, 1)])["a-1"]
    with computed(LLAMA) as counts:
        answers(made, [Request("a", PROMPT + answered.ids + [3, 4], 1, 1, 2)])
    assert counts == [3]  # the last of the response, which was sampled and not read, and what is new


def test_adapters_and_compiled_models_are_sampled_like_others():
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(copy.deepcopy(LLAMA), config).eval()
    for model in (adapted, torch.compile(copy.deepcopy(LLAMA))):
        made = engine(model)
        requests, completions = play(made, 1, episodes=3, turns=2)
        assert made.lockstep is None
        plain = model if model is adapted else LLAMA
        assert max(off_by(plain, requests[name], one) for name, one in completions.items()) < 1e-3


@pytest.mark.parametrize("whole", [False, True])
def test_a_model_in_training_is_left_as_it_was(whole):
    """Law 24, also after an error."""
    model = copy.deepcopy(LLAMA).train()
    model.model.layers[0].eval()  # as a frozen layer may be
    made, random = engine(model, whole=whole), torch.get_rng_state()
    before = [part.training for part in model.modules()], model.config._attn_implementation, model.generation_config
    answers(made, [Request("a", PROMPT, 4, 0), Request("b", [7, 8], 4, 1)])
    made._end.reached = lambda _: 1 / 0
    made.submit(Request("c", PROMPT, 4, 0))
    with pytest.raises(ZeroDivisionError):
        made.collect()
    after = [part.training for part in model.modules()], model.config._attn_implementation, model.generation_config
    assert after == before
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_samples_follow_the_models_distribution(temperature, whole):
    asked = [Request(str(seed), [7, 9], 1, seed) for seed in range(2000)]
    found = answers(engine(sampling={"temperature": temperature}, whole=whole), asked)
    counts = torch.zeros(VOCABULARY)
    for one in found.values():
        counts[one.ids[0]] += 1
    with torch.no_grad():
        expected = (LLAMA(torch.tensor([[7, 9]])).logits[0, -1] / temperature).softmax(-1) * 2000
    # Pearson's statistic of 96 degrees of freedom: 153 is beyond its 99.98th percentile.
    often = expected > 1
    assert ((counts - expected)[often] ** 2 / expected[often]).sum() < 153
    assert max(off_by(LLAMA, request, found[request.id], temperature) for request in asked[:20]) < 1e-4


def test_top_k_renormalises_and_greedy_takes_the_likeliest():
    asked = [Request(str(seed), [7], 1, seed) for seed in range(200)]
    found = answers(engine(sampling={"top_k": 3}), asked)
    probabilities = {one.ids[0]: np.exp(one.logprobs[0]) for one in found.values()}
    assert len(probabilities) == 3
    assert sum(probabilities.values()) == pytest.approx(1.0)
    best = LLAMA(torch.tensor([[7]])).logits[0, -1].argmax().item()
    for sampling in ({"temperature": 0}, {"do_sample": False}):
        assert answers(engine(sampling=sampling), asked[:1])["0"].ids == [best]


@pytest.mark.parametrize("whole", [False, True])
def test_a_response_ends_at_its_end_id_or_its_own_number_of_tokens(whole):
    asked = [Request(str(tokens), [7, 9], tokens, tokens) for tokens in (1, 3, 60)]
    found = answers(engine(whole=whole, eos_ids=range(0, VOCABULARY, 8)), asked)
    for name, one in found.items():
        stops = [id_ % 8 == 0 for id_ in one.ids]
        assert not any(stops[:-1])
        assert one.finish is (FinishReason.STOP if stops[-1] else FinishReason.LENGTH)
        assert len(one.ids) == len(one.logprobs) == int(name) or stops[-1]
    assert found["60"].finish is FinishReason.STOP


@cache
def decoders():
    """Byte-level BPE whose characters are cut, and one id a character."""
    tokenizer = tiny_tokenizer()
    return [tokenizer.decode, lambda ids: bytes(ids).decode(errors="replace"), lambda ids: "".join(map(chr, ids))]


@examples(100)
@given(
    st.integers(0, 2), st.lists(st.integers(5, 100), min_size=1, max_size=160), st.integers(0, 150), st.integers(1, 6)
)
def test_a_stop_string_ends_a_response_where_its_whole_text_shows_it(kind, ids, place, size):
    decode = decoders()[kind]
    text = decode(ids)
    stops = [text[place : place + size] or "x", "END"]
    end = End([], stops, decode)
    for number in range(1, len(ids) + 1):
        shown = any(stop in decode(ids[:number]) for stop in stops)
        assert end.reached(ids[:number]) == shown
        if shown:
            break


def test_a_token_of_a_long_response_decodes_only_the_end_of_its_text():
    decoded: list[int] = []

    def decode(ids):
        decoded.append(len(ids))
        return "x" * len(ids)

    end = End([], ["END"], decode)
    assert not end.reached(list(range(4_000)))
    assert max(decoded) < 100


def test_a_model_that_has_diverged_is_named_and_not_sampled():
    broken = tiny_model(tiny_tokenizer())
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    made = engine(broken)
    made.submit(Request("a", [7], 3, 0))
    with pytest.raises(EngineError, match="diverged"):
        made.collect()


REFUSED = [
    *({"stop_strings": ["x"]}, {"sampling": {"eos_token_id": 4}}),
    *(
        {"sampling": {name: 4}}
        for name in ("num_beams", "num_return_sequences", "top_kk", "max_new_tokens", "cache_implementation")
    ),
]


@pytest.mark.parametrize("options", REFUSED, ids=str)
def test_options_that_cannot_be_sampled_are_refused(options):
    """Law 22."""
    with pytest.raises(ConfigError):
        engine(**options)


def test_a_model_that_reads_from_both_sides_is_refused():
    with pytest.raises(ConfigError, match="Bert"):
        engine(model_of("bert"))


def test_no_kernel_of_cudnn_computes_a_turn_or_a_training_step(tmp_path):
    """Nor a layer that a backward pass repeats; the choice before is restored."""
    chosen = torch.backends.cuda.cudnn_sdp_enabled
    choices: list[bool] = []
    spec = GymSpec("TrlEnv/GuessNumber-v0", env_kwargs={"high": 4}, turn_limit=2, max_tokens_per_turn=2)
    grpo = {"max_steps": 1, "per_device_train_batch_size": 4, "gradient_checkpointing": True}
    trainer = tiny_trainer.make(tmp_path, spec, grpo=grpo)
    trainer.model.model.layers[0].register_forward_pre_hook(lambda *_: choices.append(chosen()))
    before = chosen()
    with pytest.raises(ZeroDivisionError), no_cudnn_attention():
        choices.append(chosen() or bool(1 / 0))
    trainer.train()
    assert len(choices) > 3
    assert not any(choices)
    assert chosen() is before
