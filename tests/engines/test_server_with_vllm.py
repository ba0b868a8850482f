"""The engine against the real vLLM server, on a CPU: exact tokens, measured logprobs, and a server that is killed."""

import re
import sys
import threading
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import gymnasium as gym
import pytest
import torch
from support import vllm_cpu, vllm_run
from support.vllm_serve import CONTEXT, TRL, Server

from gym_trl.chat import Chat
from gym_trl.engines.server import ServerEngine
from gym_trl.errors import EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.grpo.generation_check import check_generation
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import FinishReason, Request, StopReason, Task
from gym_trl.wrappers import ParseAction

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed: make test-full does it on Linux"),
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
    made = [Server(tiny.folder, *TRL), Server(tiny.folder)]
    try:
        for server in made:
            server.start()
        for server in made:
            server.wait()
        yield made
    finally:
        for server in made:
            server.close()


@pytest.fixture(scope="module")
def server(servers):
    return servers[0]


@pytest.fixture
def raw(servers):
    return servers[1]


class Noting(ServerEngine):
    """Keeps what was asked and answered, and when something was answered last."""

    def __init__(self, *urls, **options):
        super().__init__(*urls, **options)
        self.requests, self.completions, self.answered_at = {}, {}, 0.0

    def submit(self, request):
        self.requests[request.id] = request
        super().submit(request)

    def collect(self, *, block):
        finished = super().collect(block=block)
        self.completions |= {completion.request_id: completion for completion in finished}
        if any(completion.ids for completion in finished):
            self.answered_at = time.monotonic()
        return finished


def ids(tiny, text):
    return tiny.tokenizer.encode(text, add_special_tokens=False)


def requests(tiny, texts, *, max_tokens=12, seed=0):
    return [Request(str(i), ids(tiny, text), max_tokens, seed + i, turn=1) for i, text in enumerate(texts)]


def sample(server, asked, **options):
    with ServerEngine(server.url, **options) as engine:
        for request in asked:
            engine.submit(request)
        completions = []
        while batch := engine.collect(block=True):
            completions += batch
    return {completion.request_id: completion for completion in completions}


def recomputed(tiny, prompt_ids, completion_ids, temperature=1.0):
    with torch.no_grad():
        logits = tiny.model(torch.tensor([prompt_ids + completion_ids])).logits[0, len(prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion_ids)[:, None])[:, 0].tolist()


def make(env_id):
    # A random model hardly ever ends its turn; rejected, its actions would be answered with a long sentence.
    return ParseAction(gym.make(env_id, high=100, turns=4), format=None, cut_actions="accept")


def games(tiny, count):
    return [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index // 4),
            chat=tiny.chat,
            limits=Limits(tokens_per_turn=12, context=CONTEXT),
            seed=derive_seed("sampling", index),
        )
        for index in range(count)
    ]


def play(tiny, engine, count):
    with InlinePool(make) as pool:
        return run_episodes(games(tiny, count), pool=pool, engine=engine)


@pytest.fixture(scope="module")
def rollout(server, tiny):
    """256 games at once, twice as many as the server has slots."""
    with Noting(server.url, eos_ids=tiny.chat.stop_ids, model="tiny") as engine:
        return SimpleNamespace(played=play(tiny, engine, 256), engine=engine)


def test_of_256_episodes_none_is_lost(rollout):
    """Law 8, and law 12: every request belongs to a turn."""
    assert [game.task.seed for game in rollout.played] == [index // 4 for index in range(256)]
    assert {game.stop_reason for game in rollout.played} <= {StopReason.FAILURE, StopReason.SUCCESS}
    assert len(rollout.engine.requests) == sum(len(game.turns) for game in rollout.played)


def test_requests_and_completions_are_the_trained_tokens(rollout):
    """Laws 1 and 2."""
    turns: Counter[int] = Counter()
    for request in rollout.engine.requests.values():
        index = int(request.episode_id)
        game, answer = rollout.played[index], rollout.engine.completions[request.id]
        span = game.turns[turns[index]]
        turns[index] += 1
        assert request.prompt_ids == game.prompt_ids + game.completion_ids[: span.start]
        assert answer.ids == game.completion_ids[span.start : span.stop]
        assert answer.logprobs == game.logprobs[span.start : span.stop]
    for game in rollout.played:
        sampled = [place for turn in game.turns for place in range(turn.start, turn.stop)]
        assert [place for place, bit in enumerate(game.mask) if bit] == sampled


def test_logprobs_agree_with_the_training_model(rollout, tiny):
    """Law 4, on whole episodes."""
    differences = []
    for game in rollout.played[::4]:
        again = recomputed(tiny, game.prompt_ids, game.completion_ids)
        differences += [abs(a - b) for a, b, bit in zip(again, game.logprobs, game.mask, strict=True) if bit]
    assert len(differences) > 1000
    assert sum(differences) / len(differences) < 1e-5


def test_logprobs_are_those_of_the_distribution_that_was_sampled_from(server, tiny):
    asked = requests(tiny, ["a", "go on", "guess the number", "x" * 90])
    for request in asked:
        completion = sample(server, [request], sampling={"temperature": 0.5})[request.id]
        again = recomputed(tiny, request.prompt_ids, completion.ids, 0.5)
        assert completion.logprobs == pytest.approx(again, abs=1e-4)


def test_seeds_reproduce_and_differ(server, tiny):
    asked = requests(tiny, ["go"] * 8, seed=2**62)
    first, again = sample(server, asked), sample(server, asked)
    other = sample(server, requests(tiny, ["go"] * 8, seed=105))
    assert {key: one.ids for key, one in first.items()} == {key: one.ids for key, one in again.items()}
    assert len({tuple(one.ids) for one in (*first.values(), *other.values())}) == 16


def test_an_answer_ends_on_an_end_id_which_is_kept(server, tiny):
    ends = ids(tiny, "aeiou")
    completions = sample(server, requests(tiny, ["go"] * 30, max_tokens=60), eos_ids=ends).values()
    stopped = [one for one in completions if one.finish is FinishReason.STOP]
    known = {*ends, tiny.tokenizer.eos_token_id}  # vLLM knows the model's own
    assert {one.ids[-1] for one in stopped} > {tiny.tokenizer.eos_token_id}
    assert all(one.ids[-1] in known and not known & set(one.ids[:-1]) for one in stopped)
    assert all(len(one.ids) == len(one.logprobs) for one in completions)


@pytest.mark.parametrize("stop", ["7", "<|user|>"])
def test_a_stop_string_ends_an_answer_and_stays_in_it(server, tiny, stop):
    """Also a special token; and the ids before it are those that are sampled without it."""
    asked = requests(tiny, ["go"] * 30, max_tokens=60)
    completions, free = sample(server, asked, stop_strings=[stop]), sample(server, asked)
    stopped = [one for one in completions.values() if stop in tiny.tokenizer.decode(one.ids)]
    assert stopped
    for completion in stopped:
        text = tiny.tokenizer.decode(completion.ids)
        assert (completion.finish, text.count(stop), text.endswith(stop)) == (FinishReason.STOP, 1, True)
    for key, completion in completions.items():
        assert completion.ids == free[key].ids[: len(completion.ids)]


def tokens_until_cancelled(server, tiny, seed):
    """Return the number of ``CONTEXT`` tokens generated of an answer that is cancelled as soon as it has begun."""
    with ServerEngine(server.url, concurrency=1, sampling={"ignore_eos": True}, check=False) as engine:
        before = server.metric("generation_tokens_total")
        engine.submit(Request("slow", ids(tiny, "go"), CONTEXT - 8, seed, turn=1))
        while not (answered := engine.collect(block=False)) and not server.metric("num_requests_running"):
            pass
        engine.submit(Request("next", ids(tiny, "go"), 3, 0, turn=1))
        engine.cancel("slow-1")
        assert answered or [one.request_id for one in engine.collect(block=True)] == ["next-1"]
    while server.metric("num_requests_running"):
        pass
    return server.metric("generation_tokens_total") - before


def test_a_cancelled_request_is_not_generated_on(server, tiny):
    """The server aborts what nobody waits for, and the next request has the slot."""
    # On a busy machine an answer may be whole before anybody sees it being made, or hangs up.
    assert any(tokens_until_cancelled(server, tiny, seed) < CONTEXT / 2 for seed in range(50))


def test_a_server_without_weight_transfer_is_refused_at_once(server, raw):
    config = {"use_vllm": True, "vllm_mode": "server"}
    check_generation({**config, "vllm_server_base_url": server.url})
    with pytest.raises(EngineError, match=r"without VLLM_SERVER_DEV_MODE=1: start one with .*vllm serve MODEL"):
        check_generation({**config, "vllm_server_base_url": raw.url})


@pytest.mark.trl
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
    assert (tmp_path / "model.safetensors").exists()


# The last tests, for they kill the servers


def play_and_meanwhile(tiny, engine, act):
    """128 games, and ``act()`` in the middle of them."""
    over = threading.Event()

    def wait():
        while len(engine.completions) < 100 and not over.wait(0.01):
            pass
        act()

    thread = threading.Thread(target=wait)
    thread.start()
    try:
        return play(tiny, engine, 128)
    finally:
        over.set()
        thread.join()


def test_a_server_killed_and_started_again_costs_no_episode(server, tiny, capsys):
    """Every request that was on its way is asked again, 6.25 s after the last try at most."""
    late: list[float] = []

    def restart():
        server.kill()
        killed = time.monotonic()
        server.start()
        server.wait()
        back = time.monotonic()
        while engine.answered_at < back and time.monotonic() < back + 60:
            time.sleep(0.005)
        late.extend([back - killed, engine.answered_at - back])

    with Noting(server.url, eos_ids=tiny.chat.stop_ids, retries=100) as engine:  # it may start slowly
        played = play_and_meanwhile(tiny, engine, restart)
    assert all(game.scored for game in played)
    assert [game.task.seed for game in played] == [index // 4 for index in range(128)]
    with capsys.disabled():
        sys.stdout.write(f"\nvLLM was away for {late[0]:.1f} s; the first answer came {late[1]:.1f} s after that\n")
    assert 0 <= late[1] < 30  # which its first computation is a part of
