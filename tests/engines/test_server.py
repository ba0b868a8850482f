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


def test_an_answer_that_is_cut_says_so(stack):
    vllm = double(stack, lambda body: [10, 11, 256])
    (completion,) = sample(engine(stack, vllm), [request(max_tokens=2)]).values()
    assert (completion.ids, completion.finish) == ([10, 11], FinishReason.LENGTH)


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


# Faults that pass


@pytest.mark.parametrize("fault", FAULTS)
def test_a_failed_request_is_repeated(stack, fault):
    vllm = double(
        stack,
        lambda body: [body["prompt"][2], 256],
        fault=lambda body, attempt: fault if body["prompt"][2] == 3 and attempt < 2 else None,
    )
    completions = sample(engine(stack, vllm, check=False), different(8))
    assert [completions[f"{index}-1"].ids for index in range(8)] == [[index, 256] for index in range(8)]
    asked = [body for body in vllm.bodies if body["prompt"][2] == 3]
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]


@pytest.mark.full
def test_a_server_with_every_fault_at_once_loses_no_episode(stack):
    chance = random.Random(0)
    vllm = double(stack, fault=lambda body, attempt: chance.choice([None, *FAULTS]) if attempt == 0 else None)
    played = rollout(engine(stack, vllm, check=False), 100)
    assert played == rollout(engine(stack, double(stack)), 100)


def test_a_server_that_is_killed_and_started_again_loses_no_episode(stack):
    vllm = double(stack, delay=lambda body: 0.02)
    made = engine(stack, vllm, retries=100)

    def restart():
        until(lambda: len(vllm.bodies) > 100)
        vllm.kill()
        time.sleep(0.3)
        vllm.start()

    thread = threading.Thread(target=restart)
    thread.start()
    played = rollout(made, 128)
    thread.join()
    assert all(game.scored for game in played)


def test_a_connection_that_the_server_has_closed_meanwhile_is_opened_again(stack):
    vllm = double(stack)
    made = engine(stack, vllm)
    sample(made, [request()])
    vllm.kill()
    vllm.start()
    assert sample(made, [request()])["0-1"].finish is FinishReason.STOP


# Faults that stay


@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_that_is_never_answered_fails_alone(stack, fault):
    vllm = double(stack, fault=lambda body, attempt: fault if body["prompt"][2] == 3 else None)
    completions = sample(engine(stack, vllm, check=False, retries=2), different(8))
    failed = completions.pop("3-1")
    assert failed.finish is FinishReason.ERROR
    assert vllm.url in failed.error
    assert (failed.ids, failed.logprobs) == ([], [])
    assert {completion.finish for completion in completions.values()} == {FinishReason.STOP}
    tries = sum(body["prompt"][2] == 3 for body in vllm.bodies)
    assert tries == 3


def test_a_hanging_server_costs_one_request_its_deadline(stack):
    vllm = double(stack, fault=lambda body, attempt: "hang" if body["prompt"][2] == 3 else None)
    completions = sample(engine(stack, vllm, check=False, deadline_s=2.0), different(8))
    hung = completions.pop("3-1")
    assert (hung.finish, hung.error) == (FinishReason.TIMEOUT, "the server did not answer within 2 s")
    assert {completion.finish for completion in completions.values()} == {FinishReason.STOP}
    until(lambda: vllm.working == 0)


def test_requests_that_wait_for_a_hanging_server_go_to_another(stack):
    pair = [double(stack, fault=lambda body, attempt: "hang"), double(stack)]
    made = engine(stack, *pair, check=False, concurrency=1, deadline_s=0.3)
    finishes = [completion.finish for completion in sample(made, requests(20)).values()]
    assert Counter(finishes) == {FinishReason.TIMEOUT: 1, FinishReason.STOP: 19}


def test_a_refused_request_is_not_repeated_and_costs_no_other(stack):
    vllm = double(stack, context=100)
    completions = sample(engine(stack, vllm), [request("long-1", prompt=range(101)), *different(3)])
    refused = completions.pop("long-1")
    assert refused.finish is FinishReason.ERROR
    assert "400: This model's maximum context length is 100 tokens." in refused.error
    assert sum(len(body["prompt"]) == 101 for body in vllm.bodies) == 1
    assert {completion.finish for completion in completions.values()} == {FinishReason.STOP}


def test_a_server_that_stays_away_ends_its_episodes_and_counts_them(stack):
    vllm = double(stack, delay=lambda body: 0.02)
    made = engine(stack, vllm, retries=2)

    def kill():
        until(lambda: len(vllm.bodies) > 100)
        vllm.kill()

    thread = threading.Thread(target=kill)
    thread.start()
    played = rollout(made, 256)
    thread.join()
    lost = [game for game in played if not game.scored]
    assert len(played) == 256
    assert lost
    assert {game.stop_reason for game in lost} == {StopReason.CANCELLED}
    assert all(f"no vLLM server answers at {vllm.url}" in game.error for game in lost)
    assert all(game.episode_return is None for game in lost)


def test_an_answer_to_another_prompt_is_refused(stack, monkeypatch):
    vllm = double(stack)
    truth = vllm._completion

    def truncated(body, fault):
        answer = truth(body, fault)
        if body["prompt"][2] == 3:
            answer["choices"][0]["prompt_token_ids"] = body["prompt"][1:]
        return answer

    monkeypatch.setattr(vllm, "_completion", truncated)
    completions = sample(engine(stack, vllm, check=False), different(8))
    assert "continued a prompt other than" in completions.pop("3-1").error
    assert {completion.finish for completion in completions.values()} == {FinishReason.STOP}


# Before the first request


def test_a_missing_server_is_named_with_the_command_that_starts_one(stack):
    vllm = double(stack)
    vllm.kill()
    with pytest.raises(EngineError, match=f"no vLLM server answers at {vllm.url}.*vllm serve") as caught:
        engine(stack, vllm).submit(request())
    assert "--logprobs-mode processed_logprobs" in str(caught.value)
    assert context_length(vllm.url) is None


def test_another_model_is_named_with_the_one_that_was_asked_for(stack):
    with pytest.raises(EngineError, match="serves 'tiny' and not 'huge'"):
        engine(stack, double(stack), model="huge").check()


def test_a_server_that_is_no_vllm_is_refused(stack, monkeypatch):
    vllm = double(stack)
    monkeypatch.setattr(vllm, "model", ["not", "a", "name"])
    with pytest.raises(EngineError, match="is not a vLLM server"):
        engine(stack, vllm).check()


def test_a_server_that_wants_a_key_says_so(stack, monkeypatch):
    vllm = double(stack)
    write = vllm._write
    monkeypatch.setattr(vllm, "_write", lambda writer, status, content: write(writer, 401, {"error": "Unauthorized"}))
    with pytest.raises(EngineError, match="rejects the api_key"):
        engine(stack, vllm).check()
    assert context_length(vllm.url) is None


def test_raw_logprobs_of_a_shaped_distribution_are_refused(stack):
    vllm = double(stack, mode="raw_logprobs")
    with pytest.raises(EngineError, match=r"before temperature, top_p, .*--logprobs-mode processed_logprobs"):
        engine(stack, vllm, sampling={"temperature": 0.5, "top_p": 0.9}).check()


def test_refused_options_are_reported_before_the_first_request(stack):
    with pytest.raises(ConfigError, match="top_p must be in"):
        engine(stack, double(stack), sampling={"top_p": 4}).check()


def test_an_option_that_the_server_would_ignore_is_refused(stack):
    with pytest.raises(ConfigError, match="does not know the sampling option 'top_kk'"):
        engine(stack, double(stack), sampling={"top_kk": 4}).check()


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


def test_the_episodes_of_a_server_that_dies_move_on(stack):
    pair = [double(stack, delay=lambda body: 0.02), double(stack, delay=lambda body: 0.02)]
    made = engine(stack, *pair, retries=2)

    def kill():
        until(lambda: len(pair[0].bodies) > 50)
        pair[0].kill()

    thread = threading.Thread(target=kill)
    thread.start()
    played = rollout(made, 128)
    thread.join()
    assert all(game.scored for game in played)
    assert len(pair[1].bodies) > len(pair[0].bodies)


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


def test_a_context_is_as_long_as_the_server_says(stack):
    assert context_length(double(stack, context=77).url) == 77
