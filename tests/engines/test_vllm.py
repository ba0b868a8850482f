"""The real vLLM engine, on a CPU: exact tokens, measured logprobs, no slot left idle, nothing left behind.

What holds of two answers in one batch: every request is sampled from its own seed, so company changes an answer only
where the rounding of batched arithmetic moves a probability across a random number. Alone and together the logprobs
agree to 1e-5, and the ids are the same.
"""

import asyncio
import math
from collections import Counter
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch
from support import vllm_cpu

from engines.talk import Model, SlowPool, lockstep
from gym_trl.chat import Chat
from gym_trl.engines.vllm import VLLMEngine, context_length
from gym_trl.errors import ConfigError, EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout import Limits, asking, rollout as rollout_of, run
from gym_trl.seeding import derive_seed
from gym_trl.types import FinishReason, Request, Task
from gym_trl.wrappers import ParseAction

pytestmark = [
    pytest.mark.needs(package="vllm"),
    # What vLLM's own imports and its CPU backend say (swig types, torch's deprecations); none of it is about us.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning"),
]

BLOCK = vllm_cpu.BLOCK


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    model, tokenizer = vllm_cpu.save_model(folder)
    return SimpleNamespace(folder=folder, model=model, tokenizer=tokenizer, chat=Chat(tokenizer))


@pytest.fixture(scope="module")
def llm(tiny):
    with vllm_cpu.small_llm(tiny.folder, max_num_seqs=64) as made:
        yield made


@pytest.fixture(autouse=True)
def nothing_is_left_behind(llm):
    yield
    assert llm.llm_engine.get_num_unfinished_requests() == 0
    assert scheduler(llm).get_num_unfinished_requests() == 0


def scheduler(llm):
    return llm.llm_engine.engine_core.engine_core.scheduler


class Noting(VLLMEngine):
    """Keeps what was asked and answered."""

    def __init__(self, llm, **options):
        super().__init__(llm, **options)
        self.requests, self.completions = {}, {}

    def submit(self, request):
        self.requests[request.id] = request
        super().submit(request)

    def collect(self):
        finished = super().collect()
        self.completions |= {completion.request_id: completion for completion in finished}
        return finished


def ids(tiny, text):
    return tiny.tokenizer.encode(text, add_special_tokens=False)


def requests(tiny, texts, *, max_tokens=12, seed=0):
    return [Request(str(i), ids(tiny, text), max_tokens, seed + i) for i, text in enumerate(texts)]


def sample(llm, asked, **options):
    async def ask():
        async with asking(VLLMEngine(llm, **options)) as ask_one:
            return await asyncio.gather(*map(ask_one, asked))

    return {completion.request_id: completion for completion in asyncio.run(ask())}


def recomputed(tiny, prompt_ids, completion_ids, temperature=1.0):
    with torch.no_grad():
        logits = tiny.model(torch.tensor([prompt_ids + completion_ids])).logits[0, len(prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion_ids)[:, None])[:, 0].tolist()


def make(env_id):
    # A random model hardly ever ends its turn; rejected, its actions would be answered with a long sentence.
    return ParseAction(gym.make(env_id, high=100, turns=6), format="open")


def play(tiny, indices, *, tokens_per_turn=12, **options):
    tasks = [Task("TrlEnv/GuessNumber-v0", index // 4) for index in indices]
    seeds = [derive_seed("sampling", index) for index in indices]
    limits = Limits(tokens_per_turn=tokens_per_turn, context=512)
    return [episode for [episode] in run(rollout_of(tasks, chat=tiny.chat, seeds=seeds, limits=limits, **options))]


@pytest.fixture(scope="module")
def rollout(llm, tiny):
    """24 games: what was played, and what the engine was asked and answered."""
    engine = Noting(llm, eos_ids=tiny.chat.stop_ids)
    with InlinePool(make) as pool:
        played = play(tiny, range(24), pool=pool, engine=engine)
    return SimpleNamespace(played=played, engine=engine)


def test_requests_and_completions_are_the_trained_tokens(rollout):
    """Law 1 and law 2."""
    turns: Counter[int] = Counter()
    for request in rollout.engine.requests.values():
        index = int(request.episode_id)
        game, answer = rollout.played[index], rollout.engine.completions[request.id]
        [span] = game.turns[turns[index]].spans
        turns[index] += 1
        assert request.prompt_ids == game.row.prompt_ids + game.row.completion_ids[: span.start]
        assert answer.ids == game.row.completion_ids[span.start : span.stop]
        assert answer.logprobs == game.row.logprobs[span.start : span.stop]
    for index, game in enumerate(rollout.played):
        sampled = [place for turn in game.turns for span in turn.spans for place in range(span.start, span.stop)]
        assert turns[index] == len(game.turns) == 6
        assert [place for place, bit in enumerate(game.row.mask) if bit] == sampled
        assert all(
            (logprob == 0.0) == (bit == 0) for bit, logprob in zip(game.row.mask, game.row.logprobs, strict=True)
        )


def test_logprobs_agree_with_the_training_model(rollout, tiny):
    """Law 4, on whole episodes."""
    differences = []
    for game in rollout.played:
        again = recomputed(tiny, game.row.prompt_ids, game.row.completion_ids)
        differences += [abs(a - b) for a, b, bit in zip(again, game.row.logprobs, game.row.mask, strict=True) if bit]
    assert len(differences) > 1000
    assert sum(differences) / len(differences) < 1e-5


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(llm, tiny, temperature):
    asked = requests(tiny, ["a", "go on", "guess the number", "x" * 90])
    for key, completion in sample(llm, asked, sampling={"temperature": temperature}).items():
        again = recomputed(tiny, asked[int(key)].prompt_ids, completion.ids, temperature)
        assert completion.logprobs == pytest.approx(again, abs=1e-4)


def test_seeds_reproduce_and_differ(llm, tiny):
    asked = requests(tiny, ["go"] * 8, seed=5)
    first, again = sample(llm, asked), sample(llm, asked)
    other = sample(llm, requests(tiny, ["go"] * 8, seed=105))
    assert first == again
    assert len({tuple(completion.ids) for completion in (*first.values(), *other.values())}) == 16


@pytest.mark.parametrize("seeded", [True, False])
def test_sampling_follows_the_models_distribution(llm, tiny, seeded):
    asked = [Request(str(i), ids(tiny, "a"), 1, i) for i in range(2000)]
    counts = torch.zeros(len(tiny.tokenizer))
    torch.manual_seed(7)
    for completion in sample(llm, asked, seeded=seeded).values():
        counts[completion.ids[0]] += 1
    with torch.no_grad():
        expected = tiny.model(torch.tensor([ids(tiny, "a")])).logits[0, -1].softmax(-1)
    # Pearson's statistic of 101 degrees of freedom: 160 is beyond its 99.98th percentile.
    assert ((counts / 2000 - expected) ** 2 / expected).sum() * 2000 < 160


def test_an_episode_alone_is_the_episode_together(rollout, llm, tiny):
    for index in (0, 7, 23):
        with InlinePool(make) as pool:
            engine = VLLMEngine(llm, eos_ids=tiny.chat.stop_ids)
            (alone,) = play(tiny, [index], pool=pool, engine=engine)
        together = rollout.played[index]
        assert alone.row.completion_ids == together.row.completion_ids
        assert alone.row.logprobs == pytest.approx(together.row.logprobs, abs=1e-5)


def test_an_answer_ends_on_an_end_id_which_is_kept(llm, tiny):
    ends = ids(tiny, "aeiou")
    completions = sample(llm, requests(tiny, ["go"] * 30, max_tokens=60), eos_ids=ends).values()
    stopped = [c for c in completions if c.finish is FinishReason.STOP]
    known = {*ends, tiny.tokenizer.eos_token_id}  # vLLM knows the model's own
    assert stopped
    assert all(c.ids[-1] in known and not known & set(c.ids[:-1]) for c in stopped)


@pytest.mark.parametrize("stop", ["7", "<|user|>"])
def test_a_stop_string_ends_an_answer_and_stays_in_it(llm, tiny, stop):
    """Also a special token; and the ids before it are those that are sampled without it."""
    asked = requests(tiny, ["go"] * 30, max_tokens=60)
    completions = sample(llm, asked, stop_strings=[stop])
    free = sample(llm, asked)
    stopped = [c for c in completions.values() if stop in tiny.tokenizer.decode(c.ids)]
    assert stopped
    for completion in stopped:
        text = tiny.tokenizer.decode(completion.ids)
        assert (completion.finish, text.count(stop), text.endswith(stop)) == (FinishReason.STOP, 1, True)
    for key, completion in completions.items():
        assert completion.ids == free[key].ids[: len(completion.ids)]


def test_options_shape_the_sampling(llm, tiny):
    asked = [Request(str(i), ids(tiny, "go"), 1, i) for i in range(200)]
    with torch.no_grad():
        best = tiny.model(torch.tensor([ids(tiny, "go")])).logits[0, -1].topk(3).indices.tolist()
    three = sample(llm, asked, sampling={"top_k": 3, "min_p": None}).values()
    assert {c.ids[0] for c in three} == set(best)
    assert sum({c.ids[0]: math.exp(c.logprobs[0]) for c in three}.values()) == pytest.approx(1.0)
    assert {c.ids[0] for c in sample(llm, asked[:9], sampling={"temperature": 0}).values()} == {best[0]}
    digits = sample(llm, asked[:9], sampling={"structured_outputs": {"regex": "[0-9]"}}).values()
    assert all(tiny.tokenizer.decode(c.ids).isdigit() for c in digits)


@pytest.mark.parametrize(
    "sampling",
    [
        {"n": 4},
        {"seed": 1},
        {"min_tokens": 8},
        {"temperature": 9.0},
        {"top_kk": 3},
        {"structured_outputs": {"regex": "[0-9"}},
        {"logit_bias": {10**6: 1.0}},
    ],
)
def test_options_that_vllm_rejects_are_refused_before_any_request(llm, sampling):
    with pytest.raises(ConfigError):
        VLLMEngine(llm, sampling=sampling)


def test_raw_logprobs_are_refused(llm, monkeypatch):
    monkeypatch.setattr(llm.llm_engine.model_config, "logprobs_mode", "raw_logprobs")
    with pytest.raises(ConfigError, match="processed_logprobs"):
        VLLMEngine(llm)


def test_an_engine_that_sleeps_is_refused(llm):
    llm.sleep(level=2)
    try:
        with pytest.raises(EngineError, match="sleep mode"):
            VLLMEngine(llm)
    finally:
        llm.wake_up()


def test_requests_that_do_not_fit_are_data(llm, tiny):
    assert context_length(llm) == 512
    asked = [
        Request("fits", ids(tiny, "go"), 5, 0),
        Request("too long", [7] * 512, 5, 0),
        Request("no such id", [10**6], 5, 0),
        Request("nothing", [], 5, 0),
        Request("to the end", [7] * 500, 50, 0),
    ]
    completions = sample(llm, asked, sampling={"ignore_eos": True})
    assert {key: (c.finish, len(c.ids)) for key, c in completions.items()} == {
        "fits": (FinishReason.LENGTH, 5),
        "too long": (FinishReason.ERROR, 0),
        "no such id": (FinishReason.ERROR, 0),
        "nothing": (FinishReason.ERROR, 0),
        "to the end": (FinishReason.LENGTH, 12),
    }
    assert "512" in (completions["too long"].error or "")


def test_logprobs_that_are_not_numbers_become_none(llm, tiny, monkeypatch):
    step = llm.llm_engine.step

    def spoil():
        outputs = step()
        for output in outputs:
            output.outputs[0].logprobs.logprobs[1] = math.nan
        return outputs

    monkeypatch.setattr(llm.llm_engine, "step", spoil)
    (completion,) = sample(llm, requests(tiny, ["go"], max_tokens=3), sampling={"ignore_eos": True}).values()
    assert [logprob is None for logprob in completion.logprobs] == [False, True, False]


def test_a_cancelled_request_frees_its_slot(llm):
    """Law 12: the next step computes nothing of it."""
    engine = VLLMEngine(llm, sampling={"ignore_eos": True})
    for i in range(3):
        engine.submit(Request(str(i), [7] * 40, 30, i))
    assert engine.collect() == []
    before = scheduler(llm).kv_cache_manager.usage
    engine.cancel("1")
    engine.cancel("unknown")
    assert len(scheduler(llm).running) == 2
    assert scheduler(llm).kv_cache_manager.usage < before
    assert sorted(c.request_id for _ in range(40) for c in engine.collect()) == ["0", "2"]
    assert engine.steps == 30


def test_an_idle_engine_takes_no_step(llm):
    engine = VLLMEngine(llm)
    assert engine.collect() == []
    assert engine.steps == 0


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_rollout_leaves_nothing_running(llm, tiny, failure):
    finished = []

    class Interrupted(InlinePool):
        def release(self, key):
            super().release(key)
            finished.append(key)
            if len(finished) == 3:
                raise failure

    engine = VLLMEngine(llm, eos_ids=tiny.chat.stop_ids)
    with Interrupted(make) as pool, pytest.raises(failure):
        play(tiny, range(16), pool=pool, engine=engine)
    assert llm.llm_engine.get_num_unfinished_requests() == 0


def test_requests_of_another_engine_in_the_llm_are_left_alone(llm):
    left, ours = VLLMEngine(llm), VLLMEngine(llm)
    left.submit(Request("0", [8] * 40, 3, 0, number=1))
    ours.submit(Request("0", [7], 6, 0, number=1))
    assert [c.request_id for _ in range(9) for c in ours.collect()] == ["0-1"]
    left.cancel("0-1")  # it had finished, and is ignored


# ---------------------------------------------------------------------------------------------------------------------
# The schedule, in engine steps: a step is one pass of the model over all that is running
# ---------------------------------------------------------------------------------------------------------------------


def test_the_loop_takes_the_steps_of_its_longest_episode(llm, tiny):
    model = Model.tiny(llm, tiny.tokenizer)
    played, _, steps = model.play(SlowPool(0.0))
    waited, _, waiting_steps = model.play(SlowPool(0.0), lockstep)
    assert [game.row.completion_ids for game in waited] == [game.row.completion_ids for game in played]  # the same work
    floor = max(sum(game.row.mask) for game in played)  # a token a step
    assert floor <= steps <= 1.05 * floor
    assert waiting_steps > 1.5 * floor


def test_more_episodes_than_slots_fill_every_slot(llm, tiny):
    """Graham's bound for a schedule that leaves no slot idle: the work through all slots, then the longest episode."""
    played, _, steps = Model.tiny(llm, tiny.tokenizer).play(SlowPool(0.0), indices=range(160))
    tokens = [sum(game.row.mask) for game in played]
    assert steps <= sum(tokens) / 64 + max(tokens)


def test_slow_environments_do_not_stop_the_others(llm, tiny):
    """Whoever waits for an environment takes no part in a step, and the steps go on."""
    model = Model.tiny(llm, tiny.tokenizer)
    slow, fast = (model.play(SlowPool(latency_s), indices=range(32))[0] for latency_s in (0.01, 0.0))
    assert [game.row.completion_ids for game in slow] == [game.row.completion_ids for game in fast]
