# mypy: allow-untyped-defs, allow-untyped-calls, allow-incomplete-defs
"""Environments that nobody has measured: they are stepped beside each other as soon as they make others wait."""

import logging
import threading
import time

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from lanes import examples

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
    """Numbers of instances in a step or a reset at the same time, and their threads."""

    def __init__(self):
        self.lock, self.now, self.most = threading.Lock(), 0, 0
        self.homes, self.steps, self.threads = [], [], set()

    @property
    def made(self):
        return len(self.homes)

    def __enter__(self):
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.threads.add(threading.get_ident())

    def __exit__(self, *error):
        with self.lock:
            self.now -= 1


class Shell(gym.Env):
    """Repeats what it is told, after a while, and draws a number each time; its home is the thread that made it."""

    def __init__(self, clock, *, reset=0.0, step=0.0, slow_from=0, turns=4, computes=0.0, draws=None, needs_main=()):
        self.observation_space = self.action_space = AnyText()
        self.clock, self.reset_s, self.step_s, self.slow_from = clock, reset, step, slow_from
        self.turns, self.computes, self.draws, self.needs_main = turns, computes, draws, needs_main
        self.home, self.turn, self.closed = threading.get_ident(), 0, False
        clock.homes.append(self.home)

    def _spend(self, what, seconds):
        assert threading.get_ident() == self.home, "an instance was used in another thread than its own"
        assert not self.closed
        if what in self.needs_main and threading.current_thread() is not threading.main_thread():
            raise ValueError("signal only works in main thread of the main interpreter")
        with self.clock:
            end = time.thread_time() + self.computes
            while time.thread_time() < end:
                pass
            time.sleep(seconds)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._spend("reset", self.reset_s)
        self.turn = 0
        return f"begin {self.draws() if self.draws else self.np_random.integers(1000)}", {}

    def step(self, action):
        self._spend("step", self.step_s if self.turn >= self.slow_from else 0.0)
        self.turn += 1
        self.clock.steps.append(action)
        if action == "crash":
            raise RuntimeError("that was no command")
        done = self.turn == self.turns
        return f"{action} {self.np_random.integers(1000)}", float(done), done, False, {"success": done}

    def close(self):
        self.closed = True


class Uneven(Shell):
    """Takes other times for other turns."""

    def __init__(self, clock, waits, **shell):
        super().__init__(clock, **shell)
        self.waits = waits

    def _spend(self, what, seconds):
        super()._spend(what, self.waits[self.turn % len(self.waits)])


def play(pool, episodes=8, says=lambda request: CHAT.say(f"go {request.seed % 7}")):
    made = [Episode(Task("Shell", seed), chat=CHAT, limits=LIMITS, seed=seed) for seed in range(episodes)]
    return run_episodes(made, pool=pool, engine=ScriptedEngine(says))


def texts(played):
    return [(one.stop_reason, [(turn.observation, turn.answer.text) for turn in one.turns]) for one in played]


def rollout(clock=None, *, make_pool=AdaptivePool, episodes=8, says=None, **shell):
    clock = Clock() if clock is None else clock
    with make_pool(lambda env_id: Shell(clock, **shell)) as pool:
        played = play(pool, episodes, **({"says": says} if says else {}))
        where = pool.executor("Shell") if isinstance(pool, AdaptivePool) else None
    return clock, texts(played), where


SLOW = {
    "steps": {"step": 0.05},
    "resets": {"reset": 0.05},
    "steps and resets": {"reset": 0.03, "step": 0.03},
    "later steps": {"step": 0.05, "slow_from": 2, "turns": 5},
}


@pytest.mark.full
@pytest.mark.parametrize("shell", SLOW.values(), ids=SLOW)
def test_slow_environments_wait_beside_each_other_without_options(shell, caplog):
    with caplog.at_level(logging.WARNING, "gym_trl.executors.adaptive"):
        clock, played, where = rollout(**shell)
    assert where == "thread"
    assert clock.most >= 6
    [record] = caplog.records
    assert "Shell is stepped in threads from now on, because a " in record.getMessage()
    _, alone, _ = rollout(make_pool=InlinePool, **shell)
    assert played == alone


def test_short_waits_are_believed_when_there_are_three_in_a_row(caplog):
    clock, _, where = rollout(step=0.006)
    assert (where, clock.most >= 3) == ("thread", True)
    assert len(caplog.records) == 1


def test_fast_environments_stay_in_the_calling_thread_but_the_first_one(caplog):
    clock, played, where = rollout(episodes=24)
    assert where == "inline"
    assert clock.homes.count(threading.get_ident()) == 23
    assert clock.most == 1
    assert clock.made == 24
    assert not caplog.records
    assert played == rollout(make_pool=InlinePool, episodes=24)[1]


def test_a_thread_that_quick_environments_do_not_need_ends_with_their_first_episode():
    before = threading.active_count()
    with AdaptivePool(lambda env_id: Shell(Clock())) as pool:
        play(pool)
        assert threading.active_count() == before


def test_the_first_slow_step_is_found_to_wait_while_it_waits():
    clock = Clock()
    with AdaptivePool(lambda env_id: Shell(clock, step=0.5)) as pool:
        for key in "abc":
            pool.reset(key, Task("Shell", 0))
        pool.collect(block=True)
        for key in "abc":
            pool.step(key, "go")
        assert pool.collect(block=False) == []
        assert pool.executor("Shell") == "thread"
        assert clock.steps == []
        answers: list[tuple[str, object]] = []
        while len(answers) < 3:
            answers += pool.collect(block=True)
    assert clock.most == 3
    assert clock.homes.count(threading.get_ident()) == 2  # those that had begun before
    assert all(isinstance(result, StepResult) and result.observation == "go 636" for _, result in answers)


def test_one_that_computes_stays_and_the_log_says_what_would_help(caplog):
    clock, _, where = rollout(computes=0.006, episodes=2)
    assert (where, clock.most) == ("inline", 1)
    [record] = caplog.records
    assert "executor='process' steps them beside each other" in record.getMessage()


def test_what_was_found_out_is_used_from_the_start_of_the_next_rollout():
    clock = Clock()
    with AdaptivePool(lambda env_id: Shell(clock, step=0.03)) as pool:
        first = texts(play(pool))
        made, clock.most, clock.threads = clock.made, 0, set()
        assert texts(play(pool)) == first
        assert clock.most >= 6
        assert threading.get_ident() not in clock.threads
        assert clock.made == made


def test_an_episode_whose_game_cannot_be_begun_again_stays_where_it_is():
    numbers = iter(range(10_000))
    _, played, where = rollout(step=0.03, draws=lambda: next(numbers), episodes=4)
    assert where == "thread"  # for those that come
    begun = [turns[0][0] for _, turns in played]
    assert begun == [f"begin {number}" for number in range(4)]
    assert all(reason is StopReason.SUCCESS for reason, _ in played)


@pytest.mark.full
@pytest.mark.parametrize("needs_main", [("reset",), ("step",), ("reset", "step")], ids=str)
@pytest.mark.parametrize("slow", ["reset", "step"])
def test_one_that_cannot_live_in_a_thread_goes_on_without(slow, needs_main, caplog):
    shell = {slow: 0.03, "needs_main": needs_main}
    _, played, where = rollout(episodes=4, **shell)
    assert where == "inline"
    assert played == rollout(make_pool=InlinePool, episodes=4, **shell)[1]
    assert [record.getMessage().partition(":")[0] for record in caplog.records][-1] == (
        "Shell cannot be stepped in threads, and goes on without"
    )


@pytest.mark.parametrize("place", [1, 3])
def test_what_an_action_breaks_ends_its_episode_and_says_nothing_of_threads(place):
    def says(request):
        turn = request.turn
        return CHAT.say("crash" if turn == place else "go")

    _, played, where = rollout(step=0.03, says=says, episodes=4)
    assert where == "thread"
    assert [(reason, len(turns)) for reason, turns in played] == [(StopReason.CRASHED, place)] * 4


def test_an_episode_that_is_given_up_while_it_moves_leaves_nothing_behind():
    clock = Clock()
    with AdaptivePool(lambda env_id: Shell(clock, step=0.3)) as pool:
        for key in "abc":
            pool.reset(key, Task("Shell", 0))
        assert len(pool.collect(block=True)) == 3
        for key in "abc":
            pool.step(key, "go")
        assert pool.collect(block=False) == []  # the first one waits, the others have begun to move
        for key in "bc":
            pool.release(key)
        pool.reset("b", Task("Shell", 1))
        answers: dict[str, object] = {}
        while len(answers) < 2:
            answers.update(pool.collect(block=True))
        assert {key: type(answer) for key, answer in answers.items()} == {"a": StepResult, "b": StepResult}
        for key in "ab":
            pool.release(key)
        assert pool.collect(block=True) == []


def test_the_order_of_questions_is_kept_where_it_is_asked_for():
    clock = Clock()
    with OrderedPool(AdaptivePool(lambda env_id: Shell(clock, step=0.03))) as pool:
        assert texts(play(pool)) == rollout(make_pool=InlinePool, step=0.03)[1]
    assert clock.most >= 6


@given(st.lists(st.sampled_from([0.0, 0.004, 0.025]), min_size=1, max_size=4), st.integers(1, 5), st.integers(1, 6))
@examples(12)
def test_n_episodes_together_equal_n_episodes_alone_wherever_they_are_stepped(waits, turns, episodes):
    def make(env_id, clock=Clock()):  # noqa: B008 -- one for all
        return Uneven(clock, waits, turns=turns)

    with AdaptivePool(make) as pool:
        together = texts(play(pool, episodes))
    with InlinePool(make) as alone:
        assert together == texts(play(alone, episodes))


def test_a_pool_that_adapts_is_made_by_its_name_and_has_no_workers():
    assert isinstance(make_pool(gym.make, executor="auto")._pool, AdaptivePool)
    with pytest.raises(ValueError, match="workers needs executor 'thread', 'process' or 'ray'"):
        make_pool(gym.make, executor="auto", workers=2)
