"""Real generation with a tiny model: what is sampled, what its logprobs are, and what is left as it was."""

import pytest
import torch
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.engines.transformers import TransformersEngine
from gym_trl.errors import ConfigError, EngineError
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import FinishReason, Request

TOKENIZER = tiny_tokenizer()
MODEL = tiny_model(TOKENIZER, seed=1)
EOS = TOKENIZER.eos_token_id
WORDS = ["a", "go on", "guess the number", "x" * 30]


def ids(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def engine(**options):
    return TransformersEngine(MODEL, **{"pad_id": TOKENIZER.pad_token_id, "eos_ids": [EOS], **options})


def requests(texts, *, max_tokens=12, seed=0):
    return [Request(str(i), ids(text), max_tokens, seed + i) for i, text in enumerate(texts)]


def sample(asked, **options):
    made = engine(**options)
    for request in asked:
        made.submit(request)
    completions = []
    while batch := made.collect(block=True):
        completions += batch
    return {completion.request_id: completion for completion in completions}


def recomputed(request, completion, temperature=1.0):
    """The logprobs that the training model gives the sampled ids, in one forward pass without padding."""
    whole = torch.tensor([request.prompt_ids + completion.ids])
    with torch.no_grad():
        logprobs = (MODEL(whole).logits[0] / temperature).log_softmax(-1)
    start = len(request.prompt_ids) - 1
    return [logprobs[start + i, id_].item() for i, id_ in enumerate(completion.ids)]


@pytest.mark.parametrize("whole", [{}, {"cache_implementation": "dynamic"}])
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_logprobs_agree_with_the_training_model(temperature, whole):
    """Law 4 with prompts of unlike lengths in one batch."""
    asked = requests(WORDS * 4)
    completions = sample(asked, sampling={"temperature": temperature} | whole)
    for request in asked:
        completion = completions[request.id]
        assert completion.logprobs == pytest.approx(recomputed(request, completion, temperature), abs=1e-4)


@examples(10)
@given(st.lists(st.sampled_from(WORDS), min_size=1, max_size=8), st.integers(0, 2**40))
def test_an_answer_does_not_depend_on_what_else_is_in_the_batch(texts, seed):
    asked = requests(texts, seed=seed)
    together = sample(asked, sampling={"cache_implementation": "dynamic"})
    alone = {request.id: sample([request])[request.id] for request in asked}
    assert {key: c.ids for key, c in together.items()} == {key: c.ids for key, c in alone.items()}


def test_the_global_generators_are_left_alone():
    before = torch.get_rng_state()
    sample(requests(WORDS))
    assert torch.equal(before, torch.get_rng_state())


def test_sampling_follows_the_models_distribution():
    asked = [Request(str(i), ids("a"), 1, i) for i in range(4000)]
    completions = sample(asked)
    counts = torch.zeros(len(TOKENIZER))
    for completion in completions.values():
        counts[completion.ids[0]] += 1
    with torch.no_grad():
        expected = MODEL(torch.tensor([ids("a")])).logits[0, -1].softmax(-1)
    # Pearson's statistic of 101 degrees of freedom: 160 is beyond its 99.98th percentile.
    assert ((counts / 4000 - expected) ** 2 / expected).sum() * 4000 < 160


def test_top_k_renormalises_the_logprobs_of_the_likeliest_tokens():
    asked = [Request(str(i), ids("go"), 1, i) for i in range(200)]
    completions = sample(asked, sampling={"top_k": 3})
    probabilities = {c.ids[0]: torch.tensor(c.logprobs[0]).exp().item() for c in completions.values()}
    assert len(probabilities) == 3
    assert sum(probabilities.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"do_sample": False}])
def test_greedy_takes_the_likeliest_token(sampling):
    asked = requests(["go"], max_tokens=1)
    with torch.no_grad():
        best = MODEL(torch.tensor([ids("go")])).logits[0, -1].argmax().item()
    assert sample(asked, sampling=sampling)["0"].ids == [best]


def test_each_request_keeps_to_its_own_number_of_tokens():
    asked = [Request(str(n), ids("go"), n, 0) for n in (1, 3, 9)]
    completions = sample(asked, eos_ids=[])
    assert {key: len(c.ids) for key, c in completions.items()} == {"1": 1, "3": 3, "9": 9}
    assert {c.finish for c in completions.values()} == {FinishReason.LENGTH}


def test_an_answer_ends_on_its_end_token_which_is_kept():
    asked = requests(["go"] * 40, max_tokens=100)
    stopped = [c for c in sample(asked).values() if c.finish is FinishReason.STOP]
    assert stopped
    assert all(c.ids[-1] == EOS and EOS not in c.ids[:-1] for c in stopped)
    assert all(len(c.ids) == len(c.logprobs) for c in stopped)


def test_a_stop_string_ends_an_answer_and_stays_in_it():
    asked = requests(["go"] * 30, max_tokens=60)
    completions = sample(asked, eos_ids=[], stop_strings=["7"], decode=TOKENIZER.decode).values()
    texts = [TOKENIZER.decode(c.ids) for c in completions if c.finish is FinishReason.STOP]
    assert texts
    assert all(text.endswith("7") and text.count("7") == 1 for text in texts)


def test_a_model_in_training_is_in_training_again_afterwards():
    MODEL.train()
    MODEL.model.layers[0].eval()  # as a frozen layer may be
    before = [module.training for module in MODEL.modules()]
    config = MODEL.generation_config
    sample(requests(WORDS))
    assert [module.training for module in MODEL.modules()] == before
    assert MODEL.generation_config is config
    assert all(parameter.grad is None for parameter in MODEL.parameters())


WHOLE = {"cache_implementation": "dynamic"}
"""Makes the engine use ``model.generate``."""


@pytest.mark.parametrize("sampling", [{}, WHOLE])
def test_a_cancelled_request_is_not_generated(sampling):
    made = engine(sampling=sampling)
    for request in requests(WORDS):
        made.submit(request)
    made.cancel("1")
    answered = [*made.collect(block=True), *made.collect(block=True), *made.collect(block=True)]
    assert sorted(c.request_id for c in answered) == ["0", "2", "3"]


def test_batches_are_no_larger_than_allowed():
    made = engine(max_batch=3, sampling=WHOLE)
    for request in requests(WORDS * 2):
        made.submit(request)
    assert [len(made.collect(block=True)) for _ in range(4)] == [3, 3, 2, 0]


@pytest.mark.parametrize("whole", [{}, WHOLE])
def test_a_repetition_penalty_does_not_count_the_padding(whole):
    asked = requests(WORDS, max_tokens=8)
    options = {"sampling": {"repetition_penalty": 5.0} | whole, "pad_id": EOS}
    together = sample(asked, **options)
    for request in asked:
        alone = sample([request], **options)[request.id]
        assert together[request.id].ids == alone.ids
        assert together[request.id].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_greedy_answer_is_penalised_for_repetition_too():
    plain, penalised = (
        sample(requests(["go"], max_tokens=30), eos_ids=[], sampling={"temperature": 0, "repetition_penalty": penalty})
        for penalty in (1.0, 100.0)
    )
    assert len(set(penalised["0"].ids)) > len(set(plain["0"].ids))


def test_a_model_that_has_diverged_is_named_and_not_sampled():
    broken = tiny_model(TOKENIZER)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    made = TransformersEngine(broken, pad_id=TOKENIZER.pad_token_id, eos_ids=[EOS])
    made.submit(requests(["go"])[0])
    with pytest.raises(EngineError, match="diverged"):
        made.collect(block=True)


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch": 0},
        {"cache_bytes": -1},
        {"stop_strings": ["x"]},
        *(
            {"sampling": {name: 4}}
            for name in ("num_beams", "num_return_sequences", "top_kk", "max_new_tokens", "min_new_tokens")
        ),
        {"sampling": {"eos_token_id": 4}},
    ],
)
def test_options_that_cannot_be_sampled_are_refused(options):
    with pytest.raises(ConfigError):
        engine(**options)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_another_cache_says_the_same(cache):
    asked = requests(WORDS * 2)
    asked += [Request(f"again {one.id}", one.prompt_ids, one.max_tokens, one.seed) for one in asked]
    usual, other = sample(asked), sample(asked, sampling={"cache_implementation": cache})
    for request in asked:
        assert other[request.id].ids == usual[request.id].ids
        assert other[request.id].logprobs == pytest.approx(usual[request.id].logprobs, abs=1e-4)


def test_the_cache_that_was_asked_for_is_the_one_that_generates(monkeypatch):
    made, generate = [], MODEL.generate

    def spied(*args, **options):
        made.append(options["generation_config"].cache_implementation)
        return generate(*args, **options)

    monkeypatch.setattr(MODEL, "generate", spied)
    sample(requests(["a"] * 4), sampling={"cache_implementation": "static"})
    assert made == ["static"]


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        ("paged", "no seed per request"),
        ("quantized", "in training"),
        ("offloaded", "on the CPU"),
        ("ox", "Invalid"),
    ],
)
def test_a_cache_that_cannot_be_used_is_refused_with_the_reason(cache, why):
    with pytest.raises(ConfigError, match=f"cache_implementation='{cache}'.*{why}"):
        engine(sampling={"cache_implementation": cache})
