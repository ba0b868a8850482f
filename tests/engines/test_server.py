"""The engine with servers that work and servers that do not, without vLLM: see ``vllm_double``.

Whatever a server does, every request comes back once, with its ids or with the reason why not; and it is the only
one that notices.
"""

import asyncio
import math
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import gymnasium as gym
import pytest

from engines.vllm_double import CHAT, LOGPROB, VLLMDouble, guess
from gym_trl.engines import server
from gym_trl.engines.server import ServerEngine
from gym_trl.errors import ConfigError, EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout import Limits, rollout, run
from gym_trl.types import Completion, FinishReason, Request, StopReason, Task

AGAIN = [429, 500, 503, "close", "half", "junk", "abort"]
REFUSED = [400, "short", "other"]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_socket_is_left_behind(stack):
    files = open_files()
    yield
    stack.close()
    until(lambda: open_files() <= files)


def open_files():
    return len([*Path("/proc/self/fd").iterdir()])


def double(stack, answer=lambda body: [body["seed"] % 251, *body["prompt"], 256], **options):
    return stack.enter_context(VLLMDouble(answer, **options))


def engine(vllm, **options):
    return ServerEngine(vllm.url, **{"eos_ids": CHAT.stop_ids, "check": False, **options})


def request(name="0-1", *, prompt=(1, 2, 3), seed=0, max_tokens=9):
    episode, _, turn = name.partition("-")
    return Request(episode, list(prompt), max_tokens, seed, int(turn))


def requests(number):
    """Return requests that differ in all, of which the double can tell the number by the prompt."""
    return [request(f"{index}-1", prompt=(1, index), seed=2**62 + index) for index in range(number)]


def exact(asked):
    ids = [asked.seed % 251, *asked.prompt_ids, 256]
    return Completion(asked.id, ids, [LOGPROB - place for place in range(len(ids))], FinishReason.STOP)


def sample(made, asked):
    async def gather():
        async with made:
            return await asyncio.gather(*map(made.sample, asked))

    return asyncio.run(gather())


def play(made, count):
    tasks = [Task("TrlEnv/GuessNumber-v0", seed) for seed in range(count)]
    with InlinePool(lambda env_id: gym.make(env_id, low=1, high=20, turns=5)) as pool:
        limits = Limits(tokens_per_turn=8, context=4096)
        return [episode for [episode] in run(rollout(tasks, pool=pool, engine=made, chat=CHAT, limits=limits))]


def until(condition):
    """Servers notice what clients do a moment later."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize("fault", [*AGAIN, *REFUSED, "hang"])
def test_every_request_comes_back_once_and_only_the_faulty_one_fails(stack, monkeypatch, fault):
    """With exactly the ids and logprobs that were sent; the third request is faulty twice, the sixth always."""
    monkeypatch.setattr(server, "_FIRST_PAUSE_S", 0.01)
    times = {3: 2 if fault in AGAIN else 0, 6: math.inf}
    vllm = double(stack, fault=lambda body, attempt: fault if attempt < times.get(body["prompt"][1], 0) else None)
    asked = requests(8)
    made = ServerEngine(vllm.url, check=False, retries=5, deadline_s=1.0 if fault == "hang" else 600.0)
    completions = sample(made, asked)
    assert [completion.request_id for completion in completions] == [one.id for one in asked]
    (failed,) = [completion for completion in completions if completion.request_id == "6-1"]
    assert {one.request_id: one for one in completions if one is not failed} == {
        one.id: exact(one) for one in asked if one.id != "6-1"
    }
    assert (failed.ids, failed.logprobs) == ([], [])
    assert failed.finish is FinishReason.ERROR
    assert fault == "hang" or vllm.url in failed.error
    sent = {index: [body for body in vllm.bodies if body["prompt"][1] == index] for index in (3, 6)}
    assert (len(sent[3]), len(sent[6])) == (times[3] + 1, 6 if fault in AGAIN else 1)
    assert all(body == bodies[0] for bodies in sent.values() for body in bodies)
    until(lambda: vllm.working == 0)


def test_a_server_that_is_killed_and_started_again_loses_no_episode(stack):
    vllm = double(stack, guess, delay=lambda body: 0.02)
    made = engine(vllm, retries=100)

    def restart():
        until(lambda: len(vllm.bodies) > 100)
        vllm.kill()
        time.sleep(0.3)
        vllm.start()

    thread = threading.Thread(target=restart)
    thread.start()
    played = play(made, 64)
    thread.join()
    assert all(game.scored and game.task.seed == seed for seed, game in enumerate(played))


def test_a_server_that_stays_away_leaves_episodes_unscored(stack, monkeypatch):
    """Law 14; and when it is there again, requests are answered again."""
    monkeypatch.setattr(server, "_FIRST_PAUSE_S", 0.001)
    vllm = double(stack, delay=lambda body: 0.01)
    made = engine(vllm, retries=2, concurrency=1)
    sample(made, requests(1))
    vllm.kill()
    for game in play(made, 16):
        assert (game.stop_reason, game.scored, game.episode_return) == (StopReason.CANCELLED, False, None)
        assert f"no server answers at {vllm.url}" in game.error
    vllm.start()
    assert sample(made, requests(3)) == [exact(one) for one in requests(3)]


def test_every_request_says_all_of_how_it_is_sampled(stack):
    """The server fills in what is left out from the model's own generation_config.json."""
    vllm = double(stack, context=10)
    sampling = {"temperature": 0.5, "stop": "b", "min_p": None}
    made = engine(vllm, sampling=sampling, stop_strings=["a"], api_key="secret", check=True)
    assert sample(made, [request(seed=2**62 + 1, max_tokens=100)])[0].finish is FinishReason.STOP
    said = {"model": "tiny", "prompt": [1, 2, 3], "seed": 2**62 + 1, "stop": ["a", "b"], "stop_token_ids": [256]}
    said |= {"max_tokens": 7}  # no more than the context holds
    said |= {"temperature": 0.5, "top_p": 1.0, "top_k": 0, "min_p": 0.0}
    said |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    said |= {"include_stop_str_in_output": True, "skip_special_tokens": False, "logprobs": 0}
    assert vllm.bodies[-1] == said | {"return_token_ids": True, "return_tokens_as_token_ids": True}
    assert vllm.headers[-1]["authorization"] == "Bearer secret"
    sample(engine(vllm, seeded=False), requests(1))
    assert vllm.bodies[-1]["seed"] < 2**32  # which the double has drawn


def test_an_answer_that_is_cut_says_so_and_a_logprob_that_is_no_number_is_none(stack, monkeypatch):
    monkeypatch.setattr("engines.vllm_double.LOGPROB", math.nan)
    (completion,) = sample(engine(double(stack)), [request(max_tokens=2)])
    assert completion == Completion("0-1", [0, 1], [None, None], FinishReason.LENGTH)


def test_a_server_that_is_not_as_it_should_be_is_refused_before_the_first_request(stack, monkeypatch):
    vllm = double(stack)

    def refused(error, match, **options):
        with pytest.raises(error, match=match):
            sample(ServerEngine(vllm.url, **options), requests(1))
        with pytest.raises(error, match=match):
            ServerEngine(vllm.url, **options).check()

    refused(EngineError, "'tiny' and not 'huge'", model="huge")
    refused(ConfigError, "top_p must be in", sampling={"top_p": 4})
    refused(ConfigError, "does not know the sampling option 'top_kk'", sampling={"top_kk": 4})
    vllm.mode = "raw_logprobs"
    refused(EngineError, "--logprobs-mode processed_logprobs")
    monkeypatch.setattr(vllm, "model", ["not", "a", "name"])
    refused(EngineError, "answered 200")
    write = vllm._write
    said = {"error": "wrong key: secret-key"}
    monkeypatch.setattr(vllm, "_write", lambda writer, status, content: write(writer, 401, said))
    refused(EngineError, r"answered 401.*\*\*\*", api_key="secret-key")
    vllm.kill()
    refused(EngineError, f"no server answers at {vllm.url}.*vllm serve")
    assert all(body["prompt"] == [0] for body in vllm.bodies)
    asked = ServerEngine(double(stack, context=77).url)
    asked.check()
    assert asked.context == 77


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"retries": -1},
        *({"sampling": {name: 4}} for name in ("n", "seed", "prompt_logprobs", "max_tokens")),
    ],
)
def test_invalid_arguments_are_refused(options):
    with pytest.raises(ConfigError):
        ServerEngine("http://127.0.0.1:1", **options)


def test_no_more_requests_are_on_a_server_than_allowed_and_connections_are_kept(stack):
    vllm = double(stack, delay=lambda body: 0.01)
    assert len(sample(engine(vllm, concurrency=4), requests(40))) == 40
    assert (vllm.peak, vllm.connections) == (4, 4)


def test_cancelling_hangs_up_and_frees_the_slot(stack):
    """Law 12."""
    vllm = double(stack, delay=lambda body: 60.0 if body["seed"] == 1 else 0.0)

    async def cancel():
        async with engine(vllm, concurrency=1) as made:
            slow = asyncio.create_task(made.sample(request("slow-1", seed=1)))
            while not vllm.working:
                await asyncio.sleep(0.005)
            fast = asyncio.create_task(made.sample(request("fast-1", seed=2)))
            slow.cancel()
            return await fast

    assert asyncio.run(cancel()) == exact(request("fast-1", seed=2))
    until(lambda: vllm.hung_up == 1)


def test_an_engine_is_entered_again_in_other_event_loops(stack):
    """Each rollout of a training has its own; and a check runs while a notebook's loop does."""
    made = engine(double(stack), concurrency=2)

    async def check():
        made.check()

    for number in (5, 3):
        assert sample(made, requests(number)) == [exact(one) for one in requests(number)]
        asyncio.run(check())
