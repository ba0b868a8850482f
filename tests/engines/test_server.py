"""The engine with servers that work and servers that do not, without vLLM: see ``vllm_double``.

Whatever a server does, every request comes back once, with its ids or with the reason why not; and it is the only
one that notices.
"""

import gc
import math
import os
import random
import sys
import threading
import time
import weakref
from collections import Counter
from contextlib import ExitStack

import gymnasium as gym
import pytest
from support.vllm_double import CHAT, LOGPROB, VLLMDouble, guess

from gym_trl.engines import server_client
from gym_trl.engines.server import ServerEngine, context_length
from gym_trl.errors import ConfigError, EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.thread import ThreadPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import FinishReason, Request, StopReason, Task

FAULTS = [500, 503, "close", "half", "junk", "abort"]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture(autouse=True)
def no_thread_is_left_behind():
    before = set(threading.enumerate())
    yield
    assert {thread for thread in set(threading.enumerate()) - before if "gym-trl" in thread.name} == set()


def double(stack, answer=guess, **options):
    return stack.enter_context(VLLMDouble(answer, **options))


def engine(stack, *doubles, **options):
    return stack.enter_context(ServerEngine([made.url for made in doubles], **{"eos_ids": CHAT.stop_ids, **options}))


def request(name="0-1", *, prompt=(1, 2, 3), seed=0, max_tokens=9):
    episode, _, turn = name.partition("-")
    return Request(episode, list(prompt), max_tokens, seed, int(turn))


def requests(number):
    return [request(f"{index}-1", seed=index) for index in range(number)]


def sample(made, asked):
    for one in asked:
        made.submit(one)
    completions = []
    while batch := made.collect(block=True):
        completions += batch
    return {completion.request_id: completion for completion in completions}


def make(env_id):
    return gym.make(env_id, low=1, high=20, turns=5)


def episodes(count):
    return [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index),
            chat=CHAT,
            limits=Limits(tokens_per_turn=8, context=4096),
            seed=derive_seed("sampling", index),
        )
        for index in range(count)
    ]


def seeds_of(index, *, turns):
    """Return the key that the requests of an episode share."""
    return {derive_seed(derive_seed("sampling", index), turn) for turn in range(turns)}


def different(number):
    """Return requests that the double tells apart without seeds: by their prompts."""
    return [request(f"{index}-1", prompt=(1, 2, index)) for index in range(number)]


def rollout(made, count, **options):
    with InlinePool(make) as pool:
        return run_episodes(episodes(count), pool=pool, engine=made, **options)


def until(condition):
    """Servers notice what clients do a moment later."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# What is asked and answered


def test_ids_and_logprobs_come_back_as_the_server_sampled_them(stack):
    vllm = double(stack, lambda body: [10, 11, 256])
    (completion,) = sample(engine(stack, vllm), [request()]).values()
    assert completion.ids == [10, 11, 256]
    assert completion.logprobs == [LOGPROB, LOGPROB - 1, LOGPROB - 2]
    assert completion.finish is FinishReason.STOP


def test_every_request_says_all_of_how_it_is_sampled(stack):
    """The server fills in what is left out from the model's own generation_config.json."""
    vllm = double(stack)
    made = engine(
        stack, vllm, sampling={"temperature": 0.5, "stop": "b", "min_p": None}, stop_strings=["a"], api_key="secret"
    )
    sample(made, [request(seed=2**62 + 1)])
    assert vllm.bodies[-1] == {
        "model": "tiny",
        "prompt": [1, 2, 3],
        "max_tokens": 9,
        "seed": 2**62 + 1,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "stop": ["a", "b"],
        "stop_token_ids": [256],
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "logprobs": 0,
    }
    assert vllm.headers[-1]["authorization"] == "Bearer secret"


def test_no_more_is_asked_for_than_the_context_holds(stack):
    vllm = double(stack, context=10)
    completion = sample(engine(stack, vllm), [request(max_tokens=100)])["0-1"]
    assert vllm.bodies[-1]["max_tokens"] == 7
    assert completion.finish is not FinishReason.ERROR


def test_a_logprob_that_is_no_number_is_none(stack, monkeypatch):
    monkeypatch.setattr("support.vllm_double.LOGPROB", math.nan)
    assert sample(engine(stack, double(stack)), [request()])["0-1"].logprobs[0] is None


def test_every_prompt_is_the_beginning_of_the_trained_tokens(stack):
    """Laws 1 and 2."""
    vllm = double(stack)
    played = rollout(engine(stack, vllm), 32)
    asked = {(tuple(body["prompt"]), body["seed"]) for body in vllm.bodies}
    for game in played:
        whole = game.prompt_ids + game.completion_ids
        for turn, span in enumerate(game.turns):
            prompt = whole[: len(game.prompt_ids) + span.start]
            assert (tuple(prompt), derive_seed(derive_seed("sampling", game.task.seed), turn)) in asked
            assert game.logprobs[span.start] == LOGPROB
        assert sum(game.mask) == sum(turn.stop - turn.start for turn in game.turns)


@pytest.mark.full
@pytest.mark.parametrize("pool", [InlinePool, ThreadPool])
def test_of_256_episodes_none_is_lost_and_none_generates_after_its_end(stack, pool):
    """Laws 8 and 12."""
    vllm = double(stack, delay=lambda body: body["seed"] % 7 / 1000)
    made = engine(stack, vllm)
    finished: Counter[int] = Counter()
    with pool(make) as games:
        played = run_episodes(
            episodes(256), pool=games, engine=made, on_finish=lambda index, _: finished.update([index])
        )
    assert finished == Counter(range(256))
    assert all(game.scored and game.task.seed == index for index, game in enumerate(played))
    assert len(vllm.bodies) - 2 == sum(len(game.turns) for game in played)  # two to check the server
    assert vllm.working == vllm.hung_up == 0
    assert made.collect(block=True) == []


def test_an_interrupted_rollout_leaves_nothing_running(stack):
    quick = seeds_of(0, turns=5)
    vllm = double(stack, delay=lambda body: 0.0 if body["seed"] in quick else 60.0)

    def interrupt(index, trajectory):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollout(engine(stack, vllm, check=False), 20, on_finish=interrupt)
    until(lambda: vllm.working == 0)


# Faults: every request comes back once, and only the faulty one fails

MOVED = "moved"
"""An answer to another prompt."""
LONG = "long"
"""A prompt that the server refuses."""
SAID = {
    "hang": "the server did not answer within",
    MOVED: "continued a prompt other than",
    LONG: "400: This model's maximum",
}


@pytest.mark.parametrize("stays", [False, True], ids=["passes", "stays"])
@pytest.mark.parametrize("fault", [*FAULTS, "hang", MOVED, LONG])
def test_every_request_comes_back_once_and_only_the_faulty_one_fails(stack, monkeypatch, fault, stays):
    faulty = (1, 2, 3) if fault != LONG else tuple(range(101))

    def misbehaves(body, attempt):
        return fault if tuple(body["prompt"]) == faulty and (stays or attempt < 2) else None

    vllm = double(stack, lambda body: [body["prompt"][-1], 256], fault=misbehaves, context=100)
    truth = vllm._completion
    monkeypatch.setattr(vllm, "_completion", lambda body, fault: truncated(truth(body, fault), fault))
    made = engine(stack, vllm, check=False, retries=2, deadline_s=1.0 if fault == "hang" else 30.0)
    others = [request(f"{index}-1", prompt=(1, 2, index)) for index in range(8) if index != 3]
    completions = sample(made, [request("3-1", prompt=faulty), *others])
    for index in (0, 1, 2, 4, 5, 6, 7):
        completion = completions[f"{index}-1"]
        assert (completion.ids, completion.finish) == ([index, 256], FinishReason.STOP)
    tries = sum(tuple(body["prompt"]) == faulty for body in vllm.bodies)
    once = fault in ("hang", MOVED, LONG)  # nothing that a second try could mend
    assert tries == (1 if once else 3)
    completion = completions["3-1"]
    if once or stays:
        assert completion.finish is (FinishReason.TIMEOUT if fault == "hang" else FinishReason.ERROR)
        assert (completion.ids, completion.logprobs) == ([], [])
        assert SAID.get(fault, vllm.url) in completion.error
    else:
        assert (completion.ids, completion.finish) == ([3, 256], FinishReason.STOP)
    until(lambda: vllm.working == 0)


def truncated(answer, fault):
    if fault == MOVED:
        answer["choices"][0]["prompt_token_ids"] = answer["choices"][0]["prompt_token_ids"][1:]
    return answer


@pytest.mark.full
def test_a_server_with_every_fault_at_once_loses_no_episode(stack):
    chance = random.Random(0)
    vllm = double(stack, fault=lambda body, attempt: chance.choice([None, *FAULTS]) if attempt == 0 else None)
    played = rollout(engine(stack, vllm, check=False), 100)
    assert played == rollout(engine(stack, double(stack)), 100)


@pytest.mark.parametrize("way", ["restarts", "dies beside another", "dies alone"])
def test_a_server_that_is_killed_costs_an_episode_only_where_no_server_is_left(stack, way):
    doubles = [double(stack, delay=lambda body: 0.02) for _ in range(2 if way == "dies beside another" else 1)]
    made = engine(stack, *doubles, retries=100 if way == "restarts" else 2)

    def kill():
        until(lambda: len(doubles[0].bodies) > 50)
        doubles[0].kill()
        if way == "restarts":
            time.sleep(0.3)
            doubles[0].start()

    thread = threading.Thread(target=kill)
    thread.start()
    played = rollout(made, 128)
    thread.join()
    lost = [game for game in played if not game.scored]
    assert len(played) == 128
    assert bool(lost) is (way == "dies alone")
    assert all(game.stop_reason is StopReason.CANCELLED and game.episode_return is None for game in lost)
    assert all(f"no vLLM server answers at {doubles[0].url}" in game.error for game in lost)


def test_requests_that_wait_for_a_hanging_server_go_to_another(stack):
    pair = [double(stack, fault=lambda body, attempt: "hang"), double(stack)]
    made = engine(stack, *pair, check=False, concurrency=1, deadline_s=2.0)
    finishes = [completion.finish for completion in sample(made, requests(20)).values()]
    assert Counter(finishes) == {FinishReason.TIMEOUT: 1, FinishReason.STOP: 19}


# Before the first request


def test_a_missing_server_is_named_with_the_command_that_starts_one(stack):
    vllm = double(stack)
    vllm.kill()
    with pytest.raises(EngineError, match=f"no vLLM server answers at {vllm.url}.*vllm serve") as caught:
        engine(stack, vllm).submit(request())
    assert "--logprobs-mode processed_logprobs" in str(caught.value)
    assert context_length(vllm.url) is None


def test_what_is_no_server_of_this_model_is_refused(stack, monkeypatch):
    with pytest.raises(EngineError, match="serves 'tiny' and not 'huge'"):
        engine(stack, double(stack), model="huge").check()
    other = double(stack)
    monkeypatch.setattr(other, "model", ["not", "a", "name"])
    with pytest.raises(EngineError, match="is not a vLLM server"):
        engine(stack, other).check()
    locked = double(stack)
    write = locked._write
    monkeypatch.setattr(locked, "_write", lambda writer, status, content: write(writer, 401, {"error": "Unauthorized"}))
    with pytest.raises(EngineError, match="rejects the api_key"):
        engine(stack, locked).check()
    assert (context_length(locked.url), context_length(double(stack, context=77).url)) == (None, 77)


def test_raw_logprobs_of_a_shaped_distribution_are_refused(stack):
    vllm = double(stack, mode="raw_logprobs")
    with pytest.raises(EngineError, match=r"before temperature, top_p, .*--logprobs-mode processed_logprobs"):
        engine(stack, vllm, sampling={"temperature": 0.5, "top_p": 0.9}).check()


@pytest.mark.parametrize(("option", "said"), [("top_p", "top_p must be in"), ("top_kk", "does not know the sampling")])
def test_a_sampling_option_that_the_server_refuses_or_ignores_is_refused_at_once(stack, option, said):
    with pytest.raises(ConfigError, match=said):
        engine(stack, double(stack), sampling={option: 4}).check()


@pytest.mark.parametrize(
    "options",
    [
        {"base_urls": []},
        {"concurrency": 0},
        {"deadline_s": 0},
        {"retries": -1},
        *({"sampling": {name: 4}} for name in ("n", "seed", "prompt_logprobs", "stream", "prompt")),
    ],
)
def test_invalid_arguments_are_refused(options):
    with pytest.raises(ConfigError):
        ServerEngine(**{"base_urls": "http://127.0.0.1:1", **options})


# Where requests go, and how many


def test_no_more_requests_are_on_a_server_than_allowed(stack):
    vllm = double(stack, delay=lambda body: 0.01)
    assert len(sample(engine(stack, vllm, concurrency=4, check=False), requests(40))) == 40
    assert vllm.peak == 4
    assert vllm.connections == 4  # which are kept


def test_an_episode_stays_on_its_server_and_new_ones_are_spread(stack):
    pair = [double(stack, delay=lambda body: 0.01), double(stack, delay=lambda body: 0.01)]
    made = engine(stack, *pair, check=False)
    played = rollout(made, 64)
    assert all(game.scored for game in played)
    seen = [{body["seed"] for body in vllm.bodies} for vllm in pair]
    places = [
        [bool(seeds_of(index, turns=len(game.turns)) & seeds) for seeds in seen] for index, game in enumerate(played)
    ]
    assert Counter(map(tuple, places)) == {(True, False): 32, (False, True): 32}


def test_a_server_that_was_down_is_used_again_by_the_next_rollout(stack, monkeypatch):
    monkeypatch.setattr(server_client, "_REST_S", 0.2)
    pair = [double(stack), double(stack)]
    made = engine(stack, *pair, retries=1)
    made.check()
    pair[0].kill()
    assert {one.finish for one in sample(made, requests(8)).values()} == {FinishReason.STOP}
    pair[0].start()
    time.sleep(0.3)
    asked = len(pair[0].bodies)
    sample(made, requests(8))
    assert len(pair[0].bodies) > asked


# Cancelling and closing


def test_cancelling_hangs_up_and_frees_the_slot(stack):
    vllm = double(stack, delay=lambda body: 60.0 if body["seed"] == 1 else 0.0)
    made = engine(stack, vllm, concurrency=1, check=False)
    made.submit(request("slow-1", seed=1))
    until(lambda: vllm.working == 1)
    made.submit(request("fast-1", seed=2))
    assert made.collect(block=False) == []
    made.cancel("slow-1")
    assert [completion.request_id for completion in made.collect(block=True)] == ["fast-1"]
    until(lambda: vllm.hung_up == 1)
    assert made.collect(block=True) == []


def test_a_cancelled_id_can_be_used_again_and_only_the_new_answer_comes(stack):
    vllm = double(stack, lambda body: [body["seed"], 256])
    made = engine(stack, vllm, check=False)
    for seed in range(20):
        made.submit(request("0-1", seed=seed))
        time.sleep(0.003 * (seed % 3))
        if seed < 19:
            made.cancel("0-1")
    assert [completion.ids for completion in made.collect(block=True)] == [[19, 256]]
    assert made.collect(block=True) == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_dies_is_an_error_and_not_a_wait(stack):
    vllm = double(stack, delay=lambda body: 60.0)
    made = engine(stack, vllm, check=False)
    made.submit(request())
    until(lambda: vllm.working == 1)
    made._sender._loop.call_soon_threadsafe(sys.exit)
    with pytest.raises(EngineError, match="before all requests were answered"):
        made.collect(block=True)
    with pytest.raises(EngineError, match="make a new one"):
        made.submit(request("1-1"))
    until(lambda: vllm.hung_up == 1)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_engine_does_not_work_in_a_forked_process_and_says_so(stack):
    made = engine(stack, double(stack), check=False)
    child = os.fork()
    if not child:
        try:
            made.submit(request())
        except EngineError:
            made.close()
            os._exit(3)
        finally:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert sample(made, [request()])["0-1"].finish is FinishReason.STOP


def test_closing_hangs_up(stack):
    vllm = double(stack, delay=lambda body: 60.0)
    made = engine(stack, vllm, check=False)
    for one in different(8):
        made.submit(one)
    until(lambda: vllm.working == 8)
    made.close()
    made.close()
    until(lambda: vllm.hung_up == 8)
    assert made.collect(block=True) == []
    with pytest.raises(EngineError, match="closed"):
        made.submit(request())


def test_an_engine_that_nobody_holds_ends_its_thread(stack):
    vllm = double(stack)
    made = ServerEngine(vllm.url)
    sample(made, requests(3))
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    until(lambda: not vllm._writers)
