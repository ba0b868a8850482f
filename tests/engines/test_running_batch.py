"""What is kept of earlier turns changes no response: every family of models, beside whole prompts."""

import re
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from support.lanes import in_full
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from gym_trl.engines import kv_support
from gym_trl.engines.kv_support import FAMILIES, WINDOWED, support
from gym_trl.engines.transformers import TransformersEngine
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
    "sliding_window": None,
    "attn_logit_softcapping": 2.0,
    "initializer_range": 0.3,  # so that the tokens before decide the next
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes by all their names, of which each configuration takes its own."""
USUAL = {"llama", "mistral", "qwen2", "qwen3", "phi3", "gpt2", "gemma2", "gemma3_text", "gpt_oss"}
LAYERS = {"gemma3": 6, "gemma3_text": 6, "cohere2": 4, "exaone4": 4, "olmo3": 4}
"""Layers of the models in which the first that attends to everything comes after several with a window."""
VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
PICTURES = {
    "gemma3": {
        "vision_config": VISION | {"image_size": 28, "patch_size": 14},
        "mm_tokens_per_image": 4,
        "image_token_index": VOCABULARY - 1,
    }
}
"""The rest of models that read images, too."""


def family(kind, **options):
    """A small model with random weights, in double precision: rounding changes no id."""
    known = AutoConfig.for_model(kind).get_text_config()
    sizes: dict = {name: value for name, value in SIZES.items() if hasattr(known, name)}
    sizes |= {"num_hidden_layers": LAYERS.get(kind, SIZES["num_hidden_layers"])} | options
    if kind in PICTURES:
        sizes = {"text_config": sizes, **PICTURES[kind]}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes)).eval()
    return model if hasattr(known, "num_experts_per_tok") else model.double()  # experts have no kernel for it


@cache
def windowed(kind, window, attention=None):
    """A model with layers that attend to ``window`` tokens."""
    options = {"use_sliding_window": True, "max_window_layers": 1} if kind.startswith(("qwen", "smollm")) else {}
    model = family(kind, sliding_window=window, **options)
    if attention is not None:
        model.set_attn_implementation(attention)
    return model


LLAMA = family("llama")


def engine(model, **options):
    return TransformersEngine(model, **{"pad_id": 0, "eos_ids": [5], **options})


def decode(ids):
    return "".join(chr(97 + id_ % 26) for id_ in ids)


@dataclass
class Play:
    """Conversations of several episodes: what was asked and answered, and what was cancelled."""

    requests: dict[str, Request] = field(default_factory=dict)
    completions: dict[str, Completion] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)


def play(made, seed, *, episodes, turns, max_tokens=12, cancels=0.0, block=True, late=0.0, forgets=0.0):
    """Play episodes in groups of three; episodes of a group begin alike, and all have a part in common.

    A share of them begins ``late``, when others have gone on, and a share of turns ``forgets`` the end of the prompt.
    """
    rng, done = np.random.default_rng(seed), Play()
    common = rng.integers(0, VOCABULARY, rng.integers(0, 40)).tolist()
    openings = [common + rng.integers(0, VOCABULARY, rng.integers(1, 40)).tolist() for _ in range(episodes // 3 + 1)]
    attention = made.model.config._attn_implementation

    def ask(episode, turn, ids):
        request = Request(f"e{episode}", ids, int(rng.integers(1, max_tokens + 1)), int(rng.integers(2**31)), turn)
        done.requests[request.id] = request
        running[request.id] = (episode, turn)
        made.submit(request)

    running: dict[str, tuple[int, int]] = {}
    coming = list(range(episodes))
    while running or coming:
        while coming and not (running and rng.random() < late):
            ask(episode := coming.pop(0), 1, openings[episode // 3])
        for completion in made.collect(block=block):
            episode, turn = running.pop(completion.request_id)
            assert completion.request_id not in done.completions | dict.fromkeys(done.cancelled)
            done.completions[completion.request_id] = completion
            if turn < turns:
                heard = rng.integers(0, VOCABULARY, rng.integers(1, 25)).tolist()
                before = done.requests[completion.request_id].prompt_ids + completion.ids
                if rng.random() < forgets:
                    before = before[: int(rng.integers(len(before)))]
                ask(episode, turn + 1, before + heard)
        assert made.model.config._attn_implementation == attention
        if running and rng.random() < cancels:
            name = sorted(running)[int(rng.integers(len(running)))]
            made.cancel(name)
            done.cancelled.add(name)
            del running[name]
    return done


def whole(model, requests, **options):
    """Answers of ``model.generate`` to whole prompts, each alone."""
    sampling = options.pop("sampling", {}) | {"cache_implementation": "dynamic"}
    answers = {}
    for request in requests:
        made = engine(model, sampling=sampling, **options)
        made.submit(request)
        [answers[request.id]] = made.collect(block=True)
        assert made.lockstep == "only model.generate has cache_implementation"
    return answers


def check(model, played, **options):
    answered = [played.requests[name] for name in played.completions]
    expected = whole(model, answered, **options)
    for name, completion in played.completions.items():
        assert completion.ids == expected[name].ids
        assert completion.finish is expected[name].finish
        assert completion.logprobs == pytest.approx(expected[name].logprobs, abs=1e-4)


@pytest.mark.parametrize(
    ("kind", "window"),
    [
        pytest.param(kind, window, marks=[] if kind in USUAL else pytest.mark.full)
        for kind in sorted(FAMILIES)
        for window in ((8, 4096) if kind in WINDOWED else (None,))
    ],
)
def test_every_family_gives_the_ids_of_whole_prompts(kind, window):
    model = family(kind) if window is None else windowed(kind, window)
    made = engine(model)
    played = play(made, 1, episodes=5, turns=3)
    assert made.lockstep is None
    assert made.stats.reused > 100
    check(model, played)


@dataclass(frozen=True)
class Case:
    """Way of playing."""

    seed: int
    episodes: int
    sampling: dict
    max_batch: int | None
    cancels: float
    block: bool
    strings: bool
    tokens: int | None
    """Memory of the cache in tokens."""


CASES = st.builds(
    Case,
    seed=st.integers(0, 2**32),
    episodes=st.integers(1, 7),
    sampling=st.sampled_from([{}, {"temperature": 0}, {"temperature": 0.7, "top_p": 0.9}, {"repetition_penalty": 2.0}]),
    max_batch=st.sampled_from([None, 1, 3]),
    cancels=st.sampled_from([0.0, 0.2]),
    block=st.booleans(),
    strings=st.booleans(),
    tokens=st.sampled_from([256, 512, None]),
)


@settings(max_examples=in_full(20, fast=12))
@given(CASES)
def test_joins_cancels_and_evictions_change_no_response(case):
    """Law 5, law 8, and the limit of the memory."""
    options = {"sampling": case.sampling} | ({"stop_strings": ["a", "xy"], "decode": decode} if case.strings else {})
    limit = None if case.tokens is None else case.tokens * support(LLAMA).token_bytes
    made = engine(LLAMA, max_batch=case.max_batch, cache_bytes=limit, **options)
    played = play(made, case.seed, episodes=case.episodes, turns=3, cancels=case.cancels, block=case.block)
    assert played.completions.keys() | played.cancelled == played.requests.keys()
    assert made.stats.most_running <= (case.max_batch or case.episodes)
    assert limit is None or made.stats.most_bytes <= limit
    assert made.collect(block=True) == []
    check(LLAMA, played, **options)


@dataclass(frozen=True)
class Windowed:
    """Model with a window, and way of playing conversations that are longer."""

    kind: str
    window: int
    attention: str | None
    at_once: int
    seed: int
    episodes: int
    late: float
    forgets: float
    tokens: int | None


WINDOWS = st.builds(
    Windowed,
    kind=st.sampled_from(sorted(WINDOWED)),
    window=st.integers(4, 32),
    attention=st.sampled_from([None, "eager"]),
    at_once=st.sampled_from([3, 256]),
    seed=st.integers(0, 2**32),
    episodes=st.integers(1, 7),
    late=st.sampled_from([0.0, 0.8]),
    forgets=st.sampled_from([0.0, 0.3]),
    tokens=st.sampled_from([512, None]),
)


@settings(max_examples=in_full(16, fast=8))
@given(WINDOWS)
def test_windows_and_sinks_change_no_response(case):
    """Episodes that start and end at different times, longer than the window of some layers or of all."""
    model = windowed(case.kind, case.window, case.attention)
    limit = None if case.tokens is None else case.tokens * support(model).token_bytes
    made = engine(model, cache_bytes=limit)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gym_trl.engines.kv_attention._AT_ONCE", case.at_once)
        played = play(made, case.seed, episodes=case.episodes, turns=3, late=case.late, forgets=case.forgets)
    assert made.lockstep is None
    assert played.completions.keys() == played.requests.keys()
    check(model, played)


def test_in_single_precision_the_ids_are_the_same():
    model = family("qwen2").float()
    made = engine(model)
    check(model, play(made, 3, episodes=9, turns=4))
    assert made.stats.reused


def test_only_new_tokens_are_computed_and_a_group_shares_its_prompt():
    """Within the last sampled token of a turn, and one token per request that finds its whole prompt."""
    made = engine(LLAMA, eos_ids=[])
    played = play(made, 5, episodes=6, turns=4)
    ends = {name.split("-")[0]: name for name in played.requests}
    lengths = [len(played.requests[name].prompt_ids) + len(played.completions[name].ids) for name in ends.values()]
    assert made.stats.computed < sum(lengths)
    assert made.stats.sampled == sum(len(one.ids) for one in played.completions.values())
    # The others of a group wait until the first has computed what they share.
    longest = max(
        sum(len(one.ids) for name, one in played.completions.items() if name.startswith(f"{episode}-"))
        for episode in ends
    )
    assert made.stats.steps <= longest + 3


def test_memory_is_bounded_and_a_request_that_can_never_fit_is_answered():
    limit = 256 * support(LLAMA).token_bytes
    made = engine(LLAMA, cache_bytes=limit, eos_ids=[])
    asked = [Request(f"{i}", [i + 1] * (40 * i + 10), 60, i) for i in range(8)]
    for request in asked:
        made.submit(request)
    answers: dict[str, Completion] = {}
    while len(answers) < len(asked):
        answers |= {one.request_id: one for one in made.collect(block=True)}
    assert made.stats.evicted
    assert 0 < made.stats.most_bytes <= limit
    expected = whole(LLAMA, asked, eos_ids=[])
    assert {name: one.ids for name, one in answers.items()} == {name: one.ids for name, one in expected.items()}


@pytest.mark.parametrize("way", ["a compiled model", "in place"])
def test_a_model_is_sampled_without_its_compiler(way):
    """It would compile again for nearly every pass."""
    model = tiny_model(tiny_tokenizer()).eval()
    if way == "in place":
        model.compile()
    made = engine(torch.compile(model) if way == "a compiled model" else model)
    played = play(made, 1, episodes=3, turns=2)
    assert made.lockstep is None
    check(tiny_model(tiny_tokenizer()).eval(), played)


def test_a_long_prompt_is_computed_in_several_steps(monkeypatch):
    monkeypatch.setattr("gym_trl.engines.running_batch._STEP_TOKENS", 16)
    made = engine(LLAMA)
    check(LLAMA, play(made, 2, episodes=5, turns=3))


def test_a_cancelled_request_frees_its_place_at_once():
    """Law 12."""
    made = engine(LLAMA, eos_ids=[], max_batch=1)
    made.submit(Request("a", [7, 8, 9], 400, 0))
    made.submit(Request("b", [7, 8], 1, 0))
    assert made.collect(block=False) == []
    made.cancel("a")
    assert [one.request_id for one in made.collect(block=False)] == ["b"]
    assert made.stats.computed == 3 + 2
    assert made.collect(block=True) == []


ELSEWHERE = [
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}}, "dynamic"),
    ("qwen2_moe", {"sliding_window": 8, "use_sliding_window": True}, "sliding_window is 8"),
    *((kind, {}, f"'{kind}'") for kind in ("bloom", "lfm2", "opt", "stablelm")),
]


@pytest.mark.parametrize(("kind", "options", "why"), ELSEWHERE, ids=[f"{kind} {why}" for kind, _, why in ELSEWHERE])
def test_another_model_is_generated_in_lockstep(kind, options, why):
    model = family(kind, **options).float()
    made = engine(model)
    for request in (asked := [Request(f"{i}", [i + 1] * (9 * i + 12), 6, i) for i in range(3)]):
        made.submit(request)
    answers = {one.request_id: one for one in made.collect(block=True)}
    assert why in made.lockstep
    expected = whole(model, asked)
    assert {name: one.ids for name, one in answers.items()} == {name: one.ids for name, one in expected.items()}


@pytest.mark.parametrize(
    ("kind", "options", "why"),
    [
        ("qwen2_moe", {"sliding_window": 8, "use_sliding_window": True}, "logits"),
        ("gemma3_text", {"sliding_window": 8, "use_bidirectional_attention": True}, "logits"),
        ("granitemoe_swa", {"sliding_window": 8}, "depends on"),
        ("bloom", {}, "fails|layers"),
        ("lfm2", {"layer_types": ["conv", "full_attention"]}, "layers"),
        ("stablelm", {}, "arguments"),
    ],
)
def test_the_trial_finds_what_the_list_of_families_would_not(kind, options, why, monkeypatch):
    """Each of these would otherwise sample from other distributions without a word."""
    monkeypatch.setattr(kv_support, "_from_config", lambda _: None)
    assert re.search(why, support(family(kind, **options).float()).why_not or "")


def test_adapters_are_supported():
    import peft

    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    model = peft.get_peft_model(family("llama"), config).double().eval()
    made = engine(model)
    check(model, play(made, 1, episodes=4, turns=3))
    assert made.lockstep is None


def test_a_model_in_training_keeps_its_attention_and_its_gradients():
    model = tiny_model(tiny_tokenizer()).train()
    before = model.config._attn_implementation
    made = engine(model)
    made.submit(Request("a", [9] * 20, 4, 0))
    assert made.collect(block=False) == []
    assert model.config._attn_implementation == before
    assert model.training
    model(torch.tensor([[7, 8]])).logits.sum().backward()
    assert len(made.collect(block=True)) == 1


def test_a_failing_step_leaves_the_models_attention(monkeypatch):
    made = engine(LLAMA)
    monkeypatch.setattr(made._end, "reached", lambda _: 1 / 0)
    made.submit(Request("a", [9] * 20, 4, 0))
    before = LLAMA.config._attn_implementation
    with pytest.raises(ZeroDivisionError):
        made.collect(block=True)
    assert LLAMA.config._attn_implementation == before


def test_a_response_ends_for_the_reason_that_came_first():
    made = engine(LLAMA, eos_ids=range(VOCABULARY))
    made.submit(Request("a", [9], 5, 0))
    assert [(len(one.ids), one.finish) for one in made.collect(block=True)] == [(1, FinishReason.STOP)]


@pytest.mark.lm
def test_a_pretrained_model_computes_each_token_of_an_episode_once(pretrained):
    """Each token once, the steps of the longest episode, and the ids of whole prompts."""
    tokenizer = AutoTokenizer.from_pretrained(pretrained)
    model = AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32).eval()
    messages = [{"role": "user", "content": "Name a fish."}]
    opening = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    more = "<|im_end|>\n<|im_start|>user\nAnd another?<|im_end|>\n<|im_start|>assistant\n"
    heard = tokenizer.encode(more, add_special_tokens=False)
    made = engine(model, eos_ids=[])
    asked: dict[str, Request] = {}
    answers: dict[str, Completion] = {}
    for episode in range(3):
        asked[f"{episode}-1"] = Request(f"{episode}", opening, 3 + episode, episode, 1)
        made.submit(asked[f"{episode}-1"])
    while len(answers) < 9:
        for one in made.collect(block=True):
            answers[one.request_id] = one
            episode, turn = map(int, one.request_id.split("-"))
            if turn < 3:
                ids = asked[one.request_id].prompt_ids + one.ids + heard
                asked[f"{episode}-{turn + 1}"] = Request(f"{episode}", ids, 3 + episode, 10 * turn + episode, turn + 1)
                made.submit(asked[f"{episode}-{turn + 1}"])
    length = sum(len(asked[f"{episode}-3"].prompt_ids) + len(answers[f"{episode}-3"].ids) for episode in range(3))
    assert made.stats.computed <= 1.1 * length
    assert made.stats.steps <= 3 * 5 + 1
    assert {name: one.ids for name, one in answers.items()} == {
        name: one.ids for name, one in whole(model, asked.values(), eos_ids=[]).items()
    }
