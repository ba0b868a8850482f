"""The loop's laws: what the engine saw is what is trained on (1), order and company do not matter (5), nothing is lost
(8), and what has ended generates nothing more (12).
"""

import gc
import itertools
import math
import random
import re
import threading
from collections import Counter
from time import sleep

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.engines.protocol import Engine
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.thread import ThreadPool
from gym_trl.options import Cutoff
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat
from gym_trl.types import Completion, FinishReason, StopReason, Task

CHAT = ByteChat()


def make(env_id):
    return gym.make(env_id, low=1, high=20, turns=5)


def episodes(count, *, tokens=400, group_size=1):
    return [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index // group_size),
            chat=CHAT,
            limits=Limits(tokens_per_turn=8, tokens=tokens),
            seed=derive_seed("sampling", index),
        )
        for index in range(count)
    ]


def guess(request):
    """A player that depends on nothing but the request, as a seeded engine does."""
    return CHAT.say(random.Random(request.seed).choice(["7", "13", "19", "many", ""]))


def rollout(games, *, answer=guess, delay=lambda _: 1, slots=None, **options):
    engine = ScriptedEngine(answer, delay=delay, slots=slots)
    with InlinePool(make) as pool:
        return run_episodes(games, pool=pool, engine=engine, **options), engine


@given(
    st.integers(1, 12), st.randoms(use_true_random=False), st.none() | st.integers(1, 4), st.none() | st.integers(1, 5)
)
@examples(60)
def test_episodes_together_equal_episodes_alone_in_any_order(count, chance, slots, alive):
    together, _ = rollout(episodes(count), delay=lambda _: chance.randint(1, 9), slots=slots, max_alive=alive)
    alone = [rollout([game])[0][0] for game in episodes(count)]
    assert together == alone


@given(st.integers(0, 12), st.randoms(use_true_random=False))
@examples(40)
def test_every_prompt_is_a_prefix_of_what_is_trained_on(count, chance):
    played, engine = rollout(episodes(count), delay=lambda _: chance.randint(1, 5))
    for request in engine.requests:
        trajectory = played[int(request.episode_id)]
        whole = trajectory.prompt_ids + trajectory.completion_ids
        assert whole[: len(request.prompt_ids)] == request.prompt_ids
    # Law 12: what has ended generates nothing more.
    asked = Counter(int(request.episode_id) for request in engine.requests)
    assert [asked[index] for index in range(count)] == [len(trajectory.turns) for trajectory in played]
    assert engine.pending == 0


@given(st.integers(1, 10), st.data())
@examples(60)
def test_every_episode_comes_out_once_with_its_reason(count, data):
    faults = st.sampled_from(["play", "play", "error", "timeout", "empty", "raise"])
    plan = data.draw(st.lists(faults, min_size=1, max_size=20))

    def answer(request):
        what = plan[request.seed % len(plan)]
        finish = {"error": FinishReason.ERROR, "timeout": FinishReason.TIMEOUT}.get(what, FinishReason.STOP)
        if what in ("error", "timeout", "empty"):
            return Completion(request.id, [], [], finish)
        return CHAT.say("raise" if what == "raise" else "7")

    finished: Counter[int] = Counter()
    with InlinePool(lambda env_id: Raising(make(env_id))) as pool:
        played = run_episodes(
            episodes(count),
            pool=pool,
            engine=ScriptedEngine(answer),
            on_finish=lambda index, _: finished.update([index]),
        )
    assert finished == Counter(range(count))
    assert [trajectory.task.seed for trajectory in played] == list(range(count))
    expected = {
        "error": {StopReason.CANCELLED},
        "empty": {StopReason.CANCELLED},
        "timeout": {StopReason.TIMEOUT},
        "raise": {StopReason.CRASHED},
        "play": {StopReason.SUCCESS, StopReason.FAILURE},
    }
    for index, trajectory in enumerate(played):
        last = plan[derive_seed(derive_seed("sampling", index), last_turn(trajectory)) % len(plan)]
        assert trajectory.stop_reason in expected[last]
        assert (trajectory.episode_return is None) == (not trajectory.scored)


def last_turn(trajectory):
    """The number of the turn that ended the episode, which is one of the turns only where it was played out."""
    ended = (StopReason.SUCCESS, StopReason.FAILURE, StopReason.CRASHED)
    return len(trajectory.turns) - (trajectory.stop_reason in ended)


class Raising(gym.Wrapper):
    def step(self, action):
        if action == "raise":
            raise RuntimeError("the game broke")
        return self.env.step(action)


def test_no_episode_waits_for_the_slowest():
    """The loop takes as many engine steps as its longest episode alone."""

    def delay(request):
        return 1 + request.seed % 20

    _, engine = rollout(episodes(16), delay=delay)
    spent: Counter[str] = Counter()
    for request in engine.requests:
        spent[request.episode_id] += delay(request)
    assert engine.steps == max(spent.values())


def test_threads_play_the_same_games_as_the_caller_itself():
    engine = ScriptedEngine(guess, delay=lambda request: 1 + request.seed % 3)
    with ThreadPool(make, workers=5) as pool:
        played = run_episodes(episodes(40), pool=pool, engine=engine, max_alive=20)
    assert played == rollout(episodes(40))[0]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_interrupted_rollout_leaves_nothing_running(failure):
    calls: Counter[str] = Counter()

    def answer(request):
        calls["answers"] += 1
        if calls["answers"] == 5:
            raise failure
        return guess(request)

    engine = ScriptedEngine(answer, delay=lambda request: 1 + request.seed % 7)
    with InlinePool(make) as pool:
        with pytest.raises(failure):
            run_episodes(episodes(10), pool=pool, engine=engine)
        assert engine.pending == 0
        assert not pool._playing  # every environment is free again
        assert run_episodes(episodes(3), pool=pool, engine=ScriptedEngine(guess)) == rollout(episodes(3))[0]


def test_as_many_environments_are_open_as_may_be_alive():
    made: Counter[str] = Counter()

    def counted(env_id):
        made["environments"] += 1
        return make(env_id)

    with InlinePool(counted) as pool:
        run_episodes(episodes(20), pool=pool, engine=ScriptedEngine(guess), max_alive=3)
    assert made["environments"] == 3


def test_max_alive_must_be_positive():
    with pytest.raises(ConfigError, match="max_alive"):
        rollout(episodes(1), max_alive=0)


def test_an_environment_that_answers_late_holds_nobody_up():
    """A pool may answer when it likes: here every reply comes back some collects later, in any order."""

    class LatePool(InlinePool):
        def __init__(self, make):
            super().__init__(make)
            self.chance, self.late = random.Random(0), []

        def collect(self, *, block):
            self.late += super().collect(block=block)
            self.chance.shuffle(self.late)
            ready = self.chance.randint(1 if block else 0, len(self.late)) if self.late else 0
            out, self.late = self.late[:ready], self.late[ready:]
            return out

    with LatePool(make) as pool:
        late = run_episodes(episodes(20), pool=pool, engine=ScriptedEngine(guess, delay=lambda r: 1 + r.seed % 3))
    assert late == rollout(episodes(20))[0]


def test_a_group_plays_the_same_game_and_only_the_sampling_differs():
    played, _ = rollout(episodes(32, group_size=8))
    for group in (played[start : start + 8] for start in range(0, 32, 8)):
        assert len({tuple(trajectory.prompt_ids) for trajectory in group}) == 1
        assert len({trajectory.task.seed for trajectory in group}) == 1
        assert len({tuple(trajectory.completion_ids) for trajectory in group}) > 1


def test_a_thousand_episodes_are_alive_at_once():
    made: Counter[str] = Counter()

    def counted(env_id):
        made["environments"] += 1
        return make(env_id)

    with InlinePool(counted) as pool:
        played = run_episodes(episodes(1024), pool=pool, engine=ScriptedEngine(guess))
    assert made["environments"] == 1024
    assert all(trajectory.scored for trajectory in played)


def test_time_is_split_between_engine_and_environment():
    class SlowEngine(ScriptedEngine):
        def collect(self, *, block):
            sleep(0.02)
            return super().collect(block=block)

    with InlinePool(make) as pool:
        [slow] = run_episodes(episodes(1), pool=pool, engine=SlowEngine(lambda request: CHAT.say("21")))
        [quick] = run_episodes(episodes(1), pool=pool, engine=ScriptedEngine(lambda request: CHAT.say("21")))
    assert len(slow.turns) == 5
    assert slow.model_seconds >= 5 * 0.02
    assert min(slow.env_seconds, quick.env_seconds, quick.model_seconds) > 0
    assert slow == quick  # the clock is no part of what was played


def cut_rollout(count, chance, cutoff, **options):
    """A rollout with a cutoff in which every turn takes some ticks; what each episode gave back is kept."""
    engine = ScriptedEngine(guess, delay=lambda _: chance.randint(1, 9))
    finished: Counter[int] = Counter()
    with Watched(make) as pool:
        played = run_episodes(
            episodes(count, group_size=2),
            pool=pool,
            engine=engine,
            cutoff=cutoff,
            on_finish=lambda index, _: finished.update([index]),
            **options,
        )
        assert not pool._playing  # every environment is free again
    assert engine.pending == 0  # and so is every slot
    assert finished == Counter(range(count))
    assert [one.task.seed for one in played] == [index // 2 for index in range(count)]
    return played, pool


class Watched(InlinePool):
    """Counts what is waiting for an answer; raises if more is than episodes are alive, or an episode asks twice."""

    def __init__(self, make):
        super().__init__(make)
        self.asked, self.most = set(), 0

    def reset(self, key, task):
        self.note(key)
        super().reset(key, task)

    def step(self, key, action):
        self.note(key)
        super().step(key, action)

    def note(self, key):
        assert key not in self.asked
        self.asked.add(key)
        self.most = max(self.most, len(self.asked))

    def collect(self, *, block):
        replies = super().collect(block=block)
        self.asked -= {key for key, _ in replies}
        return replies

    def release(self, key):
        self.asked.discard(key)
        super().release(key)


alives = st.none() | st.integers(1, 5)


@given(
    st.integers(1, 14),
    st.randoms(use_true_random=False),
    st.floats(0.01, 0.99),
    st.sampled_from(["unscored", "truncated"]),
    alives,
)
@examples(25)
def test_stragglers_are_cut_off_and_nothing_is_lost_or_doubled(count, chance, share, late, alive):
    played, pool = cut_rollout(count, chance, Cutoff(stragglers=share, on_cutoff=late), max_alive=alive)
    whole, _ = rollout(episodes(count, group_size=2))
    reason = StopReason.STRAGGLER if late == "unscored" else StopReason.TIME_LIMIT
    cut = [index for index, one in enumerate(played) if one.stop_reason is reason]
    assert len(cut) <= count - max(1, math.ceil(share * count))
    assert pool.most <= (alive or count)
    for index, (one, complete) in enumerate(zip(played, whole, strict=True)):
        if index in cut:  # the beginning of what it would have been
            assert (one.prompt_ids + one.completion_ids) == (complete.prompt_ids + complete.completion_ids)[
                : len(one.prompt_ids) + len(one.completion_ids)
            ]
            assert one.scored == (late == "truncated" and bool(one.turns))
            assert "episodes had finished before it" in one.error
        else:
            assert one == complete


@given(
    st.integers(1, 14),
    st.randoms(use_true_random=False),
    st.builds(
        Cutoff, st.floats(0.001, 60), st.floats(0.001, 200), on_cutoff=st.sampled_from(["unscored", "truncated"])
    ),
    alives,
)
@examples(25)
def test_a_time_is_kept_whatever_it_is(count, chance, cutoff, alive):
    """On a clock that goes on by a second with every look at it."""
    clock = itertools.count()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gym_trl.rollout.loop.perf_counter", lambda: float(next(clock)))
        patch.setattr("gym_trl.rollout.loop.sleep", lambda _: None)
        played, _ = cut_rollout(count, chance, cutoff, max_alive=alive)
    whole, _ = rollout(episodes(count, group_size=2))
    for one, complete in zip(played, whole, strict=True):
        if one.stop_reason in (StopReason.TIMEOUT, StopReason.TIME_LIMIT):
            assert one.stop_reason is (StopReason.TIMEOUT if cutoff.on_cutoff == "unscored" else StopReason.TIME_LIMIT)
            assert re.fullmatch(r"the (episode|rollout) took longer than \S+ s", one.error)
            assert one.completion_ids == complete.completion_ids[: len(one.completion_ids)]
        else:
            assert one == complete


@pytest.mark.parametrize("cutoff", [Cutoff(episode_s=0.3), Cutoff(rollout_s=0.3), Cutoff(stragglers=0.5)])
def test_an_environment_that_does_not_answer_is_left_and_the_others_are_complete(cutoff):
    stuck = threading.Event()

    class Stuck(gym.Wrapper):
        def reset(self, *, seed=None, options=None):
            self.seed = seed
            return super().reset(seed=seed, options=options)

        def step(self, action):
            if self.seed % 2:
                assert stuck.wait(60)
            return super().step(action)

    try:
        with ThreadPool(lambda env_id: Stuck(make(env_id))) as pool:
            played = run_episodes(episodes(8), pool=pool, engine=ScriptedEngine(guess), cutoff=cutoff)
            stuck.set()
    finally:
        stuck.set()
    late = StopReason.STRAGGLER if cutoff.stragglers else StopReason.TIMEOUT
    assert [one.stop_reason is late for one in played] == [False, True] * 4
    assert played[::2] == rollout(episodes(8))[0][::2]


def test_what_is_cut_off_frees_its_slot_for_those_who_wait():
    """Law 12: one slot, and the first episode would hold it for ever."""
    engine = ScriptedEngine(guess, delay=lambda request: 10**9 if request.id.startswith("0-") else 1, slots=1)
    with InlinePool(make) as pool:
        played = run_episodes(episodes(3), pool=pool, engine=engine, max_alive=1, cutoff=Cutoff(episode_s=0.2))
    assert [one.stop_reason is StopReason.TIMEOUT for one in played] == [True, False, False]
    assert played[1:] == rollout(episodes(3))[0][1:]


def test_pythons_search_for_cycles_is_as_before_after_rollouts_that_end_or_raise_inside_of_each_other():
    before, during = gc.get_threshold(), []

    def look(request):
        during.append(gc.get_threshold())
        if request.id == "0-1":
            rollout(episodes(1))
            during.append(gc.get_threshold())
        if len(during) > 5:
            raise KeyboardInterrupt
        return guess(request)

    with pytest.raises(KeyboardInterrupt), InlinePool(make) as pool:
        run_episodes(episodes(4), pool=pool, engine=ScriptedEngine(look))
    assert gc.get_threshold() == before
    assert {found[:2] for found in during} == {before[:2]}
    assert min(found[2] for found in during) >= 100


def test_an_interruption_in_the_middle_of_an_episodes_turn_gives_its_environment_back_too():
    class Interrupted(ByteChat):
        def reply(self, text, *, role="user", closed):
            raise KeyboardInterrupt

    released = []

    class Noting(InlinePool):
        def release(self, key):
            released.append(key)
            super().release(key)

    chat = Interrupted()
    playing = [
        Episode(Task("TrlEnv/GuessNumber-v0", seed), chat=chat, limits=Limits(tokens_per_turn=9)) for seed in (1, 2)
    ]
    engine = ScriptedEngine(lambda request: chat.say("1"))
    with pytest.raises(KeyboardInterrupt), Noting(gym.make) as pool:
        run_episodes(playing, pool=pool, engine=engine)
    assert sorted(released) == ["0", "1"]


def test_what_is_no_engine_is_refused_before_an_environment_is_reset():
    class Duck:
        submit = collect = cancel = None

    with (
        InlinePool(make) as pool,
        pytest.raises(ConfigError, match="engine must be an Engine, got Duck: let its class"),
    ):
        run_episodes(episodes(1), pool=pool, engine=Duck())  # type: ignore[arg-type]


def test_an_engine_of_three_methods_plays():
    class Plain(Engine):
        def __init__(self):
            self.asked = []

        def submit(self, request):
            self.asked.append(request)

        def collect(self, *, block):
            asked, self.asked = self.asked, []
            return [Completion(request.id, ids := guess(request), [-1.0] * len(ids)) for request in asked]

        def cancel(self, request_id):
            pass

    with InlinePool(make) as pool, Plain() as engine:
        assert run_episodes(episodes(5), pool=pool, engine=engine) == rollout(episodes(5))[0]
