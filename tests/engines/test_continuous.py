# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
"""Transformers' continuous batching, on a CPU with paged scaled-dot-product attention: exact ids, measured logprobs."""

import math
import threading
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch
from transformers.generation import ContinuousBatchingConfig

from gym_trl.chat.template import TemplateChat
from gym_trl.engines.continuous import ContinuousBatchingEngine
from gym_trl.engines.transformers import TransformersEngine
from gym_trl.errors import ConfigError, EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import FinishReason, Request, Task

TOKENIZER = tiny_tokenizer()
CHAT = TemplateChat(TOKENIZER)


def sizes(**options):
    """On a CPU nothing says how large the cache may be."""
    return ContinuousBatchingConfig(**{"block_size": 16, "num_blocks": 512, "max_batch_tokens": 1024, **options})


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) <= before


@pytest.fixture(scope="module")
def model():
    return tiny_model(TOKENIZER).eval()


def engine(model, **options):
    return ContinuousBatchingEngine(model, **{"eos_ids": CHAT.stop_ids, "batching": sizes(), **options})


def requests(count, *, max_tokens=12):
    return [Request(str(i), TOKENIZER.encode(f"guess {i}"), max_tokens, i, turn=1) for i in range(count)]


def sample(made, asked):
    with made:
        for request in asked:
            made.submit(request)
        completions = []
        while batch := made.collect(block=True):
            completions += batch
    return {completion.request_id: completion for completion in completions}


def recomputed(model, prompt_ids, completion_ids, temperature=1.0):
    with torch.no_grad():
        logits = model(torch.tensor([prompt_ids + completion_ids])).logits[0, len(prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(model, temperature):
    """Law 4."""
    asked = requests(40)
    completions = sample(engine(model, sampling={"temperature": temperature, "min_p": None}), asked)
    assert len(completions) == 40
    for request in asked:
        one = completions[request.id]
        assert one.logprobs == pytest.approx(recomputed(model, request.prompt_ids, one.ids, temperature), abs=1e-4)


@pytest.mark.full
@pytest.mark.parametrize(
    "sampling", [{"top_k": 5}, {"top_p": 0.3}, {"min_p": 0.5}, {"top_k": 5, "top_p": 0.9, "temperature": 0.7}]
)
def test_options_cut_the_distribution_as_in_the_static_engine(model, sampling):
    """Both sample from the same tokens with the same probabilities, which add up to one."""
    asked = [Request(str(i), TOKENIZER.encode("go"), 1, i, turn=1) for i in range(400)]
    static = TransformersEngine(model, pad_id=TOKENIZER.pad_token_id, eos_ids=[], sampling=sampling)
    for request in asked:
        static.submit(request)
    expected = {one.ids[0]: one.logprobs[0] for one in static.collect(block=True)}
    found = {one.ids[0]: one.logprobs[0] for one in sample(engine(model, sampling=sampling), asked).values()}
    common = expected.keys() & found.keys()
    assert len(common) > 0.8 * len(expected)
    assert [found[id_] for id_ in common] == pytest.approx([expected[id_] for id_ in common], abs=1e-4)
    assert sum(math.exp(logprob) for logprob in found.values()) < 1.001


@pytest.mark.full
def test_the_most_probable_token_can_be_taken(model):
    asked = requests(8)
    for sampling in ({"temperature": 0}, {"do_sample": False, "top_k": 3}):
        completions = sample(engine(model, sampling=sampling), asked)
        for request in asked:
            one = completions[request.id]
            with torch.no_grad():
                logits = model(torch.tensor([request.prompt_ids + one.ids])).logits[0]
            assert logits[len(request.prompt_ids) - 1 : -1].argmax(-1).tolist() == one.ids


def test_an_answer_ends_on_an_end_id_which_is_kept(model):
    ends = TOKENIZER.encode("aeiou")
    completions = sample(engine(model, eos_ids=ends), requests(40, max_tokens=60)).values()
    stopped = [one for one in completions if one.finish is FinishReason.STOP]
    assert len(stopped) > 20
    assert all(one.ids[-1] in ends and not set(ends) & set(one.ids[:-1]) for one in stopped)
    assert all(len(one.ids) == len(one.logprobs) for one in completions)
    assert all(len(one.ids) == 60 for one in completions if one.finish is FinishReason.LENGTH)


class Noting(ContinuousBatchingEngine):
    """Keeps what was asked and answered."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.requests, self.completions = {}, {}

    def submit(self, request):
        self.requests[request.id] = request
        super().submit(request)

    def collect(self, *, block):
        finished = super().collect(block=block)
        self.completions |= {completion.request_id: completion for completion in finished}
        return finished


@pytest.mark.full
def test_whole_episodes_are_what_was_asked_and_answered(model):
    """Laws 1, 2, 4, 8 and 12."""
    episodes = [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index),
            chat=CHAT,
            limits=Limits(tokens_per_turn=6, context=1024),
            seed=derive_seed("sampling", index),
        )
        for index in range(24)
    ]
    made = Noting(model, eos_ids=CHAT.stop_ids, batching=sizes())
    with made, InlinePool(lambda env_id: gym.make(env_id, high=100, turns=4)) as pool:
        played = run_episodes(episodes, pool=pool, engine=made)
    assert [game.task.seed for game in played] == list(range(24))
    assert all(game.scored for game in played)
    assert len(made.requests) == len(made.completions) == sum(len(game.turns) for game in played)
    for name, request in made.requests.items():
        index, turn = map(int, name.split("-"))
        game = played[index]
        whole = game.prompt_ids + game.completion_ids
        assert whole[: len(request.prompt_ids)] == request.prompt_ids
        span = slice(len(request.prompt_ids), len(request.prompt_ids) + len(made.completions[name].ids))
        assert whole[span] == made.completions[name].ids
        assert turn >= 1
    for game in played[::4]:
        again = recomputed(model, game.prompt_ids, game.completion_ids)
        assert all(abs(a - b) < 1e-4 for a, b, bit in zip(again, game.logprobs, game.mask, strict=True) if bit)


@pytest.mark.full
def test_each_engine_samples_from_the_weights_that_there_are():
    model = tiny_model(TOKENIZER).eval()
    asked = requests(4)
    sample(engine(model), asked)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    for name, one in sample(engine(model), asked).items():
        prompt = asked[int(name[0])].prompt_ids
        assert one.logprobs == pytest.approx(recomputed(model, prompt, one.ids), abs=1e-4)


def test_the_model_and_the_global_generators_are_left_as_they_were():
    model = tiny_model(TOKENIZER).train()
    model.model.layers[0].eval()
    modes = [module.training for module in model.modules()]
    torch.manual_seed(3)
    state, attention = torch.random.get_rng_state(), model.config._attn_implementation
    sample(engine(model), requests(3))
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.config._attn_implementation == attention
    model(torch.tensor([[1, 2]])).logits.sum().backward()


def test_a_cancelled_request_does_not_come_back_and_its_id_is_free(model):
    with engine(model, sampling={"temperature": 1.0}, eos_ids=[]) as made:
        made.submit(Request("a", [7], 1000, 0))
        with pytest.raises(ValueError, match="already running"):
            made.submit(Request("a", [7], 1000, 0))
        assert made.collect(block=False) == []
        made.cancel("a")
        made.cancel("never seen")
        made.submit(Request("a", [7], 2, 0))
        assert [len(one.ids) for one in made.collect(block=True)] == [2]
        assert made.collect(block=True) == []


def test_an_engine_that_is_closed_takes_nothing_and_one_without_requests_starts_nothing(model):
    with engine(model) as made:
        assert made.collect(block=True) == []
        assert made.collect(block=False) == []
    with pytest.raises(EngineError, match="closed"):
        made.submit(requests(1)[0])


def test_closing_ends_what_is_running(model):
    with engine(model, eos_ids=[]) as made:
        made.submit(Request("a", [7], 5000, 0))


def test_a_batch_that_fails_is_an_error_and_not_a_wait(model):
    """A prompt that no cache can hold ends Transformers' thread."""
    with engine(model, batching=sizes(num_blocks=4)) as made:
        made.submit(Request("a", [7] * 500, 4, 0))
        with pytest.raises(EngineError, match="continuous batching failed: No requests can be scheduled"):
            made.collect(block=True)
        with pytest.raises(EngineError, match="continuous batching has stopped"):
            made.submit(Request("b", [7], 4, 0))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stop_strings": ["7"]}, "'7'"),
        ({"sampling": {"repetition_penalty": 1.2}}, "repetition_penalty=1.2"),
        ({"sampling": {"no_repeat_ngram_size": 2}}, "no_repeat_ngram_size"),
        ({"sampling": {"num_return_sequences": 4}}, "num_return_sequences"),
        ({"sampling": {"max_new_tokens": 4}}, "max_new_tokens"),
    ],
)
def test_what_continuous_batching_would_silently_leave_out_is_refused(model, options, named):
    with pytest.raises(ConfigError, match=f"{named}.*use_transformers_continuous_batching=False"):
        engine(model, **options)


def test_options_that_change_nothing_are_taken(model):
    neutral = {"repetition_penalty": 1.0, "num_return_sequences": 1, "top_k": -1, "top_p": None}
    assert sample(engine(model, sampling=neutral), requests(2)).keys() == {"0-1", "1-1"}


@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 16), (torch.bfloat16, 256)])
def test_without_a_configuration_blocks_are_small_enough_to_be_shared(dtype, size):
    """In half precision flash attention may run, which is not known to have blocks of that size."""
    made = ContinuousBatchingEngine(tiny_model(TOKENIZER).to(dtype), eos_ids=CHAT.stop_ids)
    assert made._batching.block_size == size


@pytest.mark.full
def test_a_configuration_stays_the_users(model):
    batching = sizes()
    sample(engine(model, batching=batching), requests(1))
    assert (batching.return_logprobs, batching.seed) == (False, None)
    assert SimpleNamespace(**vars(sizes())) == SimpleNamespace(**vars(batching))
