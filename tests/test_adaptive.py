"""Environments of unknown speed: those that wait are stepped in threads, the others in the calling thread."""

import threading
import time

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.executors.adaptive import AdaptivePool
from gym_trl.executors.guards import OrderedPool
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.make import make_pool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import StepResult, StopReason, Task

LIMITS = Limits(tokens_per_turn=9)
CHAT = ByteChat()


class Clock:
    """Number of instances in a call at the same time, and the threads of all."""

    def __init__(self):
        self.lock, self.now, self.most, self.homes = threading.Lock(), 0, 0, []

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)

    def __exit__(self, *error):
        with self.lock:
            self.now -= 1

    @property
    def in_threads(self):
        return sum(home != threading.get_ident() for home in self.homes)


class Shell(gym.Env):
    """Repeats its action after a while, with a random number."""

    def __init__(self, clock, *, reset=0.0, waits=(0.0,), turns=4, computes=0.0, needs_main=()):
        self.observation_space = self.action_space = AnyText()
        self.clock, self.reset_s, self.waits, self.turns = clock, reset, waits, turns
        self.computes, self.needs_main = computes, needs_main
        self.home, self.turn = threading.get_ident(), 0
        clock.homes.append(self.home)

    def _spend(self, call, seconds):
        assert threading.get_ident() == self.home, "an instance was used in another thread than its own"
        if call in self.needs_main and threading.current_thread() is not threading.main_thread():
            raise ValueError("signal only works in main thread of the main interpreter")
        with self.clock:
            end = time.thread_time() + self.computes
            while time.thread_time() < end:
                pass
            if seconds:
                time.sleep(seconds)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._spend("reset", self.reset_s)
        self.turn = 0
        return f"begin {self.np_random.integers(1000)}", {}

    def step(self, action):
        self._spend("step", self.waits[self.turn % len(self.waits)])
        self.turn += 1
        if action == "crash":
            raise RuntimeError("not a command")
        done = self.turn == self.turns
        return f"{action} {self.np_random.integers(1000)}", float(done), done, False, {"success": done}


def rollout(pool, episodes=8, says=lambda request: CHAT.say(f"go {request.seed % 7}")):
    made = [Episode(Task("Shell", seed), chat=CHAT, limits=LIMITS, seed=seed) for seed in range(episodes)]
    played = run_episodes(made, pool=pool, engine=ScriptedEngine(says))
    return [(one.stop_reason, [(turn.observation, turn.answer.text) for turn in one.turns]) for one in played]


def alone(*, episodes=8, turns=4, **waits):
    """Return the episodes of a rollout in the calling thread, without the waits, on which no observation depends."""
    with InlinePool(lambda env_id: Shell(Clock(), turns=turns)) as pool:
        return rollout(pool, episodes)


@pytest.mark.parametrize(
    ("shell", "call"),
    [
        ({"waits": [0.05]}, "step"),
        ({"reset": 0.05}, "reset"),
        ({"waits": [0.006]}, "step"),  # shorter waits must be seen three times
        ({"waits": [0.0, 0.05]}, "step"),
    ],
    ids=str,
)
def test_environments_that_wait_are_stepped_at_the_same_time(shell, call, caplog):
    clock = Clock()
    with AdaptivePool(lambda env_id: Shell(clock, **shell)) as pool:
        played = rollout(pool)
        assert pool.executor("Shell") == "thread"
    assert clock.most >= 3
    assert clock.in_threads == 8  # all but the first one, and the trial of its calls
    [record] = caplog.records
    assert f"a {call} of Shell waits" in record.getMessage()
    assert played == alone(**shell)


def test_fast_environments_are_stepped_in_the_calling_thread(caplog):
    clock, before = Clock(), set(threading.enumerate())
    with AdaptivePool(lambda env_id: Shell(clock)) as pool:
        assert rollout(pool, 24) == alone(episodes=24)
        assert pool.executor("Shell") == "inline"
        assert set(threading.enumerate()) <= before
    assert (clock.most, clock.in_threads, len(clock.homes)) == (1, 0, 24)
    assert not caplog.records


def test_waits_of_later_steps_count_from_the_next_rollout_on():
    clock, shell = Clock(), {"waits": [0.0] * 4 + [0.03], "turns": 5}
    with AdaptivePool(lambda env_id: Shell(clock, **shell)) as pool:
        first = rollout(pool)
        assert (pool.executor("Shell"), clock.most) == ("thread", 1)
        assert rollout(pool) == first == alone(**shell)
    assert clock.most >= 6


def test_environments_that_compute_stay_and_the_log_advises_processes(caplog):
    clock = Clock()
    with AdaptivePool(lambda env_id: Shell(clock, computes=0.006)) as pool:
        rollout(pool, 2)
        assert (pool.executor("Shell"), clock.most) == ("inline", 1)
    [record] = caplog.records
    assert "executor='process' steps them beside each other" in record.getMessage()


@pytest.mark.parametrize("needs_main", ["reset", "step"])
def test_environments_that_fail_in_a_thread_stay_in_the_calling_thread(needs_main, caplog):
    shell = {"waits": [0.03], "needs_main": (needs_main,)}
    with AdaptivePool(lambda env_id: Shell(Clock(), **shell)) as pool:
        assert rollout(pool, 4) == alone(episodes=4, **shell)
        assert pool.executor("Shell") == "inline"
    [record] = caplog.records
    assert "it cannot be stepped in threads: " in record.getMessage()


@pytest.mark.parametrize("place", [1, 3])
def test_an_action_that_crashes_its_episode_is_no_objection_to_threads(place):
    def says(request):
        return CHAT.say("crash" if request.turn == place else "go")

    with AdaptivePool(lambda env_id: Shell(Clock(), waits=[0.03])) as pool:
        played = rollout(pool, 4, says)
        assert pool.executor("Shell") == "thread"
    assert [(reason, len(turns)) for reason, turns in played] == [(StopReason.CRASHED, place)] * 4


def test_a_caller_that_waits_for_all_resets_gets_them():
    with AdaptivePool(lambda env_id: Shell(Clock())) as pool:
        for key in "abc":
            pool.reset(key, Task("Shell", 0))
        results: dict[str, object] = {}
        while len(results) < 3:
            results.update(pool.collect(block=True))
        assert {type(result) for result in results.values()} == {StepResult}


def test_a_first_episode_given_up_before_its_first_step_is_replaced():
    clock = Clock()
    with AdaptivePool(lambda env_id: Shell(clock, waits=[0.03])) as pool:
        for key in "abc":
            pool.reset(key, Task("Shell", 0))
        pool.release("b")
        assert [key for key, _ in pool.collect(block=False)] == ["a"]
        pool.release("a")
        assert [key for key, _ in pool.collect(block=False)] == ["c"]
        pool.step("c", "go")
        assert [key for key, _ in pool.collect(block=True)] == ["c"]
        assert pool.executor("Shell") == "thread"
        pool.release("c")
        assert pool.collect(block=True) == []


def test_results_come_in_the_order_of_the_calls_where_that_is_asked_for():
    with OrderedPool(AdaptivePool(lambda env_id: Shell(Clock(), waits=[0.03]))) as pool:
        assert [rollout(pool), rollout(pool)] == [alone(waits=[0.03])] * 2


@given(st.lists(st.sampled_from([0.0, 0.004, 0.025]), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 6))
@examples(12)
def test_n_episodes_together_equal_n_episodes_alone(waits, turns, episodes):
    with AdaptivePool(lambda env_id: Shell(Clock(), waits=waits, turns=turns)) as pool:
        assert rollout(pool, episodes) == alone(episodes=episodes, waits=waits, turns=turns)


def test_a_pool_that_adapts_is_made_by_its_name_and_has_no_workers():
    assert isinstance(make_pool(gym.make, executor="auto")._pool, AdaptivePool)
    with pytest.raises(ValueError, match="workers needs executor 'thread', 'process' or 'ray'"):
        make_pool(gym.make, executor="auto", workers=2)
