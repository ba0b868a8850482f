import threading
import time
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.step import read_step
from gym_trl.executors.thread import GIVEN_UP_S, ThreadPool
from gym_trl.types import EnvFailure, StepResult, StopReason, Task


class Scripted(gym.Env):
    """Does at each step what the action says, so that every fault can be asked for."""

    made = closed = 0

    def __init__(self):
        type(self).made += 1
        self.observation_space = self.action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        if (options or {}).get("fail"):
            raise RuntimeError("no game today")
        return "begin", {}

    def step(self, action):
        if action == "raise":
            raise ValueError("illegal")
        answers: dict[str, Any] = {"nan": ("", float("nan"), False, False, {}), "bytes": (b"", 0.0, False, False, {})}
        answers |= {"none": ("", None, False, False, {}), "short": ("", 0.0, True)}
        return answers.get(action, ("on", 1, False, False, {}))

    def close(self):
        type(self).closed += 1


@pytest.fixture(params=["inline", "thread"])
def pool(request):
    Scripted.made = Scripted.closed = 0
    pool = {"inline": InlinePool, "thread": ThreadPool}[request.param](lambda env_id: Scripted())
    yield pool
    pool.close()


def begin(pool, key="a", **options):
    pool.reset(key, Task("Scripted", 0, options))
    return pool.collect(block=True)[0][1]


def step(pool, action, key="a"):
    pool.step(key, action)
    return pool.collect(block=True)[0][1]


def test_a_step_is_answered_with_text_and_a_float(pool):
    begin(pool)
    assert step(pool, "go") == StepResult("on", 1.0, False, False, {})


def test_an_instance_is_not_used_again_after_its_reset_raised(pool):
    failed = begin(pool, fail=True)
    assert isinstance(failed, EnvFailure)
    assert failed.error.startswith("reset raised RuntimeError: no game today (")
    assert isinstance(begin(pool, "b"), StepResult)
    assert (Scripted.made, Scripted.closed) == (2, 1)


def test_released_instances_are_used_again_and_closed_at_the_end():
    Scripted.made = Scripted.closed = 0
    with InlinePool(lambda env_id: Scripted()) as pool:
        for key in "abc":
            begin(pool, key)
            pool.release(key)
    assert (Scripted.made, Scripted.closed) == (1, 1)


def test_episodes_that_are_alive_together_have_instances_of_their_own(pool):
    begin(pool, "a")
    begin(pool, "b")
    assert Scripted.made == 2


class Slow(gym.Env):
    """Waits at every step until as many others wait as the test wants, and knows its thread."""

    barrier = threading.Barrier(1)
    steps: list[str] = []  # noqa: RUF012 -- emptied by the test that uses it

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(99)
        self.thread = threading.get_ident()

    def reset(self, *, seed=None, options=None):
        return self.here(), {}

    def step(self, action):
        self.steps.append(action)
        self.barrier.wait(timeout=10)
        return self.here(), 0.0, False, False, {}

    def here(self):
        assert threading.get_ident() == self.thread
        return str(self.thread)

    def close(self):
        self.here()


def collect_all(pool, number):
    replies: dict[str, Any] = {}
    while len(replies) < number:
        replies.update(pool.collect(block=True))
    return replies


def test_threads_wait_together_and_an_instance_stays_in_its_own():
    Slow.barrier = threading.Barrier(8)
    with ThreadPool(lambda env_id: Slow(), workers=8) as pool:
        for key in "abcdefgh":
            pool.reset(key, Task("Slow", 0))
        begun = collect_all(pool, 8)
        for key in begun:
            pool.step(key, "go")  # passes only if all eight are being stepped at once
        assert collect_all(pool, 8).keys() == begun.keys()
        assert len({reply.observation for reply in begun.values()}) == 8


def test_more_episodes_than_threads_share_them():
    Slow.barrier = threading.Barrier(1)
    with ThreadPool(lambda env_id: Slow(), workers=2) as pool:
        for key in "abcdef":
            pool.reset(key, Task("Slow", 0))
        assert len({reply.observation for reply in collect_all(pool, 6).values()}) == 2


def test_an_answer_that_comes_after_its_episode_was_given_up_is_dropped():
    Slow.barrier, Slow.steps = threading.Barrier(2), []
    with ThreadPool(lambda env_id: Slow(), workers=1) as pool:
        pool.reset("a", Task("Slow", 0))
        collect_all(pool, 1)
        pool.step("a", "wait")
        while not Slow.steps:
            time.sleep(0.001)
        pool.release("a")
        pool.reset("a", Task("Slow", 1))
        Slow.barrier.wait(timeout=10)
        assert len(collect_all(pool, 1)) == 1
        assert pool.collect(block=False) == []


def test_work_that_was_given_up_before_it_began_is_not_done():
    Slow.barrier, Slow.steps = threading.Barrier(2), []
    with ThreadPool(lambda env_id: Slow(), workers=1) as pool:
        for key in "ab":
            pool.reset(key, Task("Slow", 0))
        collect_all(pool, 2)
        pool.step("a", "first")
        pool.step("b", "second")
        while not Slow.steps:
            time.sleep(0.001)
        pool.release("b")
        Slow.barrier.wait(timeout=10)
        collect_all(pool, 1)
    assert Slow.steps == ["first"]


@pytest.mark.parametrize("info", [None, [], {"action_valid": [1, 0]}, {"success": 1}])
def test_info_is_checked_where_it_comes_in(info):
    if isinstance(info, dict):
        name = next(iter(info))
        assert read_step("", 0.0, False, False, info).info[name] is True
    else:
        with pytest.raises(TypeError, match="info must be a mapping"):
            read_step("", 0.0, False, False, info)


def test_a_rollout_that_was_given_up_leaves_no_work_to_the_next():
    class Interrupting(Scripted):
        def reset(self, *, seed=None, options=None):
            if seed == 1:
                raise KeyboardInterrupt
            return str(seed), {}

    Scripted.made = Scripted.closed = 0
    with InlinePool(lambda env_id: Interrupting()) as pool:
        for seed in range(4):
            pool.reset(str(seed), Task("Interrupting", seed))
        with pytest.raises(KeyboardInterrupt):
            pool.collect(block=True)
        for seed in range(4):
            pool.release(str(seed))
        pool.reset("2", Task("Interrupting", 7))
        assert pool.collect(block=True) == [("2", StepResult("7"))]
        assert Interrupting.closed == 1


def test_closed_threads_end_and_the_pool_can_be_used_again():
    before = set(threading.enumerate())
    pool = ThreadPool(gym.make, workers=3)
    for _ in range(2):
        for key in "abc":
            pool.reset(key, Task("TrlEnv/Echo-v0", 0))
        collect_all(pool, 3)
        pool.close()
        assert set(threading.enumerate()) <= before  # others may have ended meanwhile


class Hanging(gym.Env):
    """Waits at a step until the test lets it go."""

    let_go = threading.Event()

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        return "begin", {}

    def step(self, action):
        if action == "hang":
            self.let_go.wait(timeout=30)
        return "on", 0.0, False, False, {}


class TestAThreadThatHangs:
    @pytest.fixture
    def pool(self):
        Hanging.let_go.clear()
        with ThreadPool(lambda env_id: Hanging(), workers=1, step_timeout=0.2) as pool:
            yield pool
        Hanging.let_go.set()

    def test_crashes_its_own_episode_and_the_others_there_go_on_in_another(self, pool):
        for key in "abc":
            begin(pool, key)
        pool.step("a", "hang")
        pool.step("b", "go")
        replies = collect_all(pool, 2)
        assert replies["a"] == EnvFailure("step did not answer within 0.2 s", StopReason.CRASHED)
        assert replies["b"] == step(pool, "go", "c") == StepResult("on")

    def test_is_replaced(self, pool):
        begin(pool)
        step(pool, "hang")
        pool.release("a")
        assert isinstance(begin(pool, "a"), StepResult)
        assert isinstance(step(pool, "go"), StepResult)

    def test_answers_nobody_when_it_wakes_up(self, pool):
        begin(pool)
        step(pool, "hang")
        begin(pool, "b")
        Hanging.let_go.set()
        assert step(pool, "go", "b") == StepResult("on")


@pytest.mark.parametrize("limit", [0.2, None])
def test_a_call_of_an_episode_that_was_given_up_fails_no_other_of_its_name(limit, monkeypatch):
    monkeypatch.setattr("gym_trl.executors.thread.GIVEN_UP_S", 0.2)
    Hanging.let_go.clear()
    with ThreadPool(lambda env_id: Hanging(), workers=1, step_timeout=limit) as pool:
        begin(pool)
        pool.step("a", "hang")
        time.sleep(0.1)  # until it does
        pool.release("a")  # as a Cutoff does
        assert isinstance(begin(pool, "a"), StepResult)  # of the next rollout, which begins before that is noticed
        Hanging.let_go.set()


def test_a_new_episode_does_not_wait_for_a_call_that_was_given_up():
    Hanging.let_go.clear()
    with ThreadPool(lambda env_id: Hanging(), workers=2) as pool:
        begin(pool)
        pool.step("a", "hang")
        time.sleep(0.1)  # until it does
        pool.release("a")
        began = time.monotonic()
        assert isinstance(begin(pool, "b"), StepResult)
        assert time.monotonic() - began < GIVEN_UP_S / 2
        Hanging.let_go.set()


def test_a_thread_that_hangs_after_its_episode_was_given_up_gets_no_more(monkeypatch):
    monkeypatch.setattr("gym_trl.executors.thread.GIVEN_UP_S", 0.2)
    Hanging.let_go.clear()
    with ThreadPool(lambda env_id: Hanging(), workers=1) as pool:
        begin(pool)
        pool.step("a", "hang")
        time.sleep(0.1)  # until it does
        pool.release("a")  # as a Cutoff does
        time.sleep(0.4)
        assert isinstance(begin(pool, "b"), StepResult)
        Hanging.let_go.set()


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"step_timeout": 0}, {"reset_timeout": -1.0}])
def test_threads_that_cannot_be_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        ThreadPool(gym.make, **wrong)
