"""The engine against the real vLLM server, on a CPU: exact tokens, measured logprobs, and a server that is killed."""

import asyncio
import re
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch
from support import vllm_cpu, vllm_run

from engines.vllm_serve import CONTEXT, TRL, Server
from gym_trl.chat import Chat
from gym_trl.engines.server import ServerEngine
from gym_trl.errors import EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout import Limits, rollout, run
from gym_trl.types import FinishReason, Request, StopReason, Task
from gym_trl.wrappers import ParseAction

pytestmark = [
    pytest.mark.needs(package="vllm"),
]

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_vllm_server.py"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server") / "model"
    model, tokenizer = vllm_cpu.save_model(folder)
    return SimpleNamespace(folder=folder, model=model, tokenizer=tokenizer, chat=Chat(tokenizer))


@pytest.fixture(scope="module")
def servers(tiny):
    """One as it should be and one whose logprobs are raw, which start at the same time."""
    with ExitStack() as stack:
        made = [stack.enter_context(Server(tiny.folder, *flags)) for flags in (TRL, ())]
        for server in made:
            server.wait()
        yield made


@pytest.fixture
def server(servers):
    return servers[0]


def ids(tiny, text):
    return tiny.tokenizer.encode(text, add_special_tokens=False)


def requests(tiny, texts, *, max_tokens=12, seed=0):
    return [Request(str(i), ids(tiny, text), max_tokens, seed + i, number=1) for i, text in enumerate(texts)]


def sample(server, asked, **options):
    async def gather():
        async with ServerEngine(server.url, **options) as engine:
            return await asyncio.gather(*map(engine.sample, asked))

    return asyncio.run(gather())


def recomputed(tiny, prompt_ids, completion_ids, temperature=1.0):
    with torch.no_grad():
        logits = tiny.model(torch.tensor([prompt_ids + completion_ids])).logits[0, len(prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion_ids)[:, None])[:, 0].tolist()


class Noting(ServerEngine):
    """Keeps what was asked and answered."""

    def __init__(self, *urls, **options):
        super().__init__(*urls, **options)
        self.requests, self.completions = {}, {}

    async def sample(self, request):
        self.requests[request.id] = request
        self.completions[request.id] = completion = await super().sample(request)
        return completion


def make(env_id):
    # A random model hardly ever ends its turn; rejected, its actions would be answered with a long sentence.
    return ParseAction(gym.make(env_id, high=100, turns=4), format="open")


def play(tiny, engine, count, act=lambda: None):
    """Return the games, with ``act()`` in the middle of them."""
    over, tasks = threading.Event(), [Task("TrlEnv/GuessNumber-v0", index // 4) for index in range(count)]

    def meanwhile():
        while len(engine.completions) < count and not over.wait(0.01):
            pass
        act()

    thread = threading.Thread(target=meanwhile)
    thread.start()
    try:
        with InlinePool(make) as pool:
            limits = Limits(tokens_per_turn=12, context=CONTEXT)
            played = run(rollout(tasks, pool=pool, engine=engine, chat=tiny.chat, limits=limits))
            return [episode for [episode] in played]
    finally:
        over.set()
        thread.join()


def test_requests_and_completions_are_the_trained_tokens_with_the_models_logprobs(server, tiny):
    """Laws 1, 2, 4, 8 and 12: every request belongs to a turn; there are more games than the server has slots."""
    engine = Noting(server.url, eos_ids=tiny.chat.stop_ids, model="tiny")
    played = play(tiny, engine, 160)
    turns: Counter[int] = Counter()
    for request in engine.requests.values():
        index = int(request.episode_id)
        game, answer = played[index], engine.completions[request.id]
        [span] = game.turns[turns[index]].spans
        turns[index] += 1
        assert request.prompt_ids == game.row.prompt_ids + game.row.completion_ids[: span.start]
        assert answer.ids == game.row.completion_ids[span.start : span.stop]
        assert answer.logprobs == game.row.logprobs[span.start : span.stop]
    differences = []
    for index, game in enumerate(played):
        assert game.task.seed == index // 4
        assert game.stop_reason is StopReason.ENDED
        assert turns[index] == len(game.turns)
        sampled = [place for turn in game.turns for span in turn.spans for place in range(span.start, span.stop)]
        assert [place for place, bit in enumerate(game.row.mask) if bit] == sampled
        again = recomputed(tiny, game.row.prompt_ids, game.row.completion_ids) if index % 4 == 0 else []
        differences += [abs(again[place] - game.row.logprobs[place]) for place in sampled if again]
    assert len(differences) > 1000
    assert sum(differences) / len(differences) < 1e-5


def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(servers, tiny):
    asked = requests(tiny, ["a", "go on", "guess the number", "x" * 90])
    for request, completion in zip(asked, sample(servers[0], asked, sampling={"temperature": 0.5}), strict=True):
        again = recomputed(tiny, request.prompt_ids, completion.ids, 0.5)
        assert completion.logprobs == pytest.approx(again, abs=1e-4)
    with pytest.raises(EngineError, match="--logprobs-mode processed_logprobs"):
        sample(servers[1], asked)


def test_seeds_reproduce_and_differ(server, tiny):
    first, again, other = (sample(server, requests(tiny, ["go"] * 8, seed=seed)) for seed in (2**62, 2**62, 105))
    assert [one.ids for one in first] == [one.ids for one in again]
    assert len({tuple(one.ids) for one in (*first, *other)}) == 16


@pytest.mark.parametrize("stop", ["aeiou", "7", "<|user|>"])
def test_what_ends_an_answer_stays_in_it_and_changes_nothing_before(server, tiny, stop):
    """An id, a string, and a special token as a string; vLLM knows the model's own end."""
    asked = requests(tiny, ["go"] * 30, max_tokens=60)
    options = {"eos_ids": ids(tiny, stop)} if stop == "aeiou" else {"stop_strings": [stop]}
    ends = {*ids(tiny, stop), tiny.tokenizer.eos_token_id}
    completions = sample(server, asked, **options)
    for completion, free in zip(completions, sample(server, asked), strict=True):
        assert completion.ids == free.ids[: len(completion.ids)]
        assert (completion.finish is FinishReason.STOP) == (completion.ids[-1] in ends)
        assert not ends & set(completion.ids[:-1])
    assert {one.ids[-1] for one in completions} & set(ids(tiny, stop))


def tokens_until_cancelled(server, tiny, seed):
    """Return the number of ``CONTEXT`` tokens generated of an answer that is cancelled as soon as it has begun."""

    async def cancel():
        async with ServerEngine(server.url, concurrency=1, sampling={"ignore_eos": True}, check=False) as engine:
            slow = asyncio.create_task(engine.sample(Request("slow", ids(tiny, "go"), CONTEXT - 8, seed, number=1)))
            while not slow.done() and not await asyncio.to_thread(server.metric, "num_requests_running"):
                pass
            following = asyncio.create_task(engine.sample(Request("next", ids(tiny, "go"), 3, 0, number=1)))
            slow.cancel()
            assert len((await following).ids) == 3

    before = server.metric("generation_tokens_total")
    asyncio.run(cancel())
    while server.metric("num_requests_running"):
        pass
    return server.metric("generation_tokens_total") - before


def test_a_cancelled_request_is_not_generated_on(server, tiny):
    """The server aborts what nobody waits for, and the next request has the slot."""
    # On a busy machine an answer may be whole before anybody sees it being made, or hangs up.
    assert any(tokens_until_cancelled(server, tiny, seed) < CONTEXT / 2 for seed in range(50))


def test_the_example_runs_with_it(server, tiny, tmp_path):
    """All but the way of the weights: TRL sends them over NCCL, for which both sides need a GPU."""
    printed = vllm_run.run(
        *(EXAMPLE, f"--vllm_server_base_url={server.url}", f"--model={tiny.folder}", f"--output_dir={tmp_path}"),
        *("--max_steps=2", "--learning_rate=0", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2"),
        *("--num_generations=4", "--max_completion_length=64", "--use_cpu=true", "--bf16=false", "--disable_tqdm=true"),
    )
    for name, expected in (("env/unscored", 0), ("sampling/importance_sampling_ratio/mean", 1)):
        logged = [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", printed)]
        assert logged == pytest.approx([expected] * 2, abs=1e-3)


# The last test, for it kills the server


def test_a_server_killed_and_started_again_costs_no_episode_and_one_that_stays_away_all_that_are_left(server, tiny):
    def restart():
        server.kill()
        server.start()
        server.wait()

    engine = Noting(server.url, eos_ids=tiny.chat.stop_ids, retries=100)  # it may start slowly
    assert all(game.scored for game in play(tiny, engine, 64, restart))
    played = play(tiny, Noting(server.url, eos_ids=tiny.chat.stop_ids, retries=2), 64, server.kill)
    lost = [game for game in played if not game.scored]
    assert {game.stop_reason for game in lost} == {StopReason.CANCELLED}
    assert all(server.url in game.error and game.episode_return is None for game in lost)
