"""The laws of a batch: order and company do not matter (5), a group plays one task (6), nothing is lost (8), and what
has ended generates nothing more (12).
"""

import asyncio
import gc
import random
from collections import Counter
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.engines.protocol import Engine
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError
from gym_trl.executors import InlinePool, ThreadPool
from gym_trl.rollout import Limits, rollout, run
from gym_trl.testing import ByteChat
from gym_trl.types import Completion, FinishReason, StopReason, Task

CHAT = ByteChat()
CLOCKS = {"model_seconds": 0.0, "env_seconds": 0.0}


def make(env_id: str) -> gym.Env[Any, Any]:
    return gym.make("TrlEnv/GuessNumber-v0", low=1, high=20, turns=5)


def guess(request: Any) -> Any:
    """A player that depends on nothing but the request, as a seeded engine does."""
    return CHAT.say(random.Random(request.seed).choice(["7", "13", "19", "many", ""]))


def play(
    numbers: Any, *, engine: Any = None, pool: Any = InlinePool, make: Any = make, group: int = 1, **options: Any
) -> list[Any]:
    engine = engine or ScriptedEngine(guess)
    tasks = [Task("GuessNumber", number // group) for number in numbers]
    options = {"limits": Limits(tokens_per_turn=8, tokens=400), "seeds": list(numbers), **options}
    with pool(make) as envs:
        played = run(rollout(tasks, pool=envs, engine=engine, chat=CHAT, **options))
    return [vars(episode) | CLOCKS for [episode] in played]


@given(
    st.integers(1, 12), st.randoms(use_true_random=False), st.none() | st.integers(1, 4), st.none() | st.integers(1, 5)
)
@examples(60)
def test_episodes_together_equal_episodes_alone_in_any_order(
    count: int, chance: random.Random, slots: int | None, alive: int | None
) -> None:
    engine = ScriptedEngine(guess, delay=lambda _: chance.randint(1, 9), slots=slots)
    together = play(range(count), engine=engine, max_alive=alive)
    assert together == [play([number])[0] for number in range(count)]
    # Law 12: what has ended generates nothing more.
    asked = Counter(int(request.episode_id) for request in engine.requests)
    assert [asked[number] for number in range(count)] == [len(one["turns"]) for one in together]
    assert not engine._running


class Raising(gym.Wrapper[Any, Any, Any, Any]):
    def step(self, action: Any) -> Any:
        if action == "raise":
            raise RuntimeError("the game broke")
        return self.env.step(action)


@given(st.integers(1, 10), st.data())
@examples(60)
def test_every_episode_comes_out_once_with_its_reason(count: int, data: st.DataObject) -> None:
    faults = st.sampled_from(["play", "play", "error", "empty", "raise"])
    plan, last = data.draw(st.lists(faults, min_size=1, max_size=20)), dict[int, str]()

    def answer(request: Any) -> Any:
        last[int(request.episode_id)] = what = plan[request.seed % len(plan)]
        if what in ("error", "empty"):
            return Completion(request.id, [], [], FinishReason.ERROR if what == "error" else FinishReason.STOP)
        return CHAT.say("raise" if what == "raise" else "7")

    played = play(range(count), engine=ScriptedEngine(answer), make=lambda env_id: Raising(make(env_id)))
    assert [one["task"].seed for one in played] == list(range(count))
    reasons = {"play": StopReason.ENDED, "raise": StopReason.CRASHED}
    for number, one in enumerate(played):
        assert one["stop_reason"] is reasons.get(last[number], StopReason.CANCELLED)


def test_no_episode_waits_for_the_slowest() -> None:
    """The loop takes as many engine steps as its longest episode alone."""
    engine = ScriptedEngine(guess, delay=lambda request: 1 + request.seed % 20)
    play(range(16), engine=engine)
    spent: Counter[str] = Counter()
    for request in engine.requests:
        spent[request.episode_id] += 1 + request.seed % 20
    assert engine.steps == max(spent.values())


def test_threads_play_the_same_games_as_the_caller_itself() -> None:
    engine = ScriptedEngine(guess, delay=lambda request: 1 + request.seed % 3)
    assert play(range(40), engine=engine, pool=ThreadPool, max_alive=20) == play(range(40))


def test_members_of_a_group_play_one_game_and_only_the_sampling_differs() -> None:
    played = play(range(32), group=8)
    for group in (played[start : start + 8] for start in range(0, 32, 8)):
        assert len({tuple(one["segments"][0].prompt_ids) for one in group}) == 1
        assert len({tuple(one["segments"][0].completion_ids) for one in group}) > 1


@pytest.mark.parametrize("alive", [3, None])
def test_as_many_environments_are_open_as_may_be_alive(alive: int | None) -> None:
    made: list[str] = []

    def counted(env_id: str) -> Any:
        made.append(env_id)
        return make(env_id)

    play(range(20), make=counted, max_alive=alive)
    assert len(made) == (alive or 20)


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("place", ["answer", "text"])
def test_an_interrupted_rollout_leaves_nothing_running(failure: type[BaseException], place: str) -> None:
    calls: list[object] = []

    def count(value: Any) -> Any:
        calls.append(value)
        if len(calls) == 5:
            raise failure
        return value

    class Broken(ByteChat):
        def text(self, ids: Any) -> Any:
            return count(super().text(ids)) if place == "text" else super().text(ids)

    engine = ScriptedEngine(
        lambda request: count(guess(request)) if place == "answer" else guess(request),
        delay=lambda request: 1 + request.seed % 7,
    )
    tasks = [Task("GuessNumber", number) for number in range(10)]
    limits = Limits(tokens_per_turn=8)
    with InlinePool(make) as pool:
        with pytest.raises(failure):
            run(rollout(tasks, pool=pool, engine=engine, chat=Broken(), limits=limits))
        assert not engine._running
        assert not pool._host.playing  # every environment is free again


def test_what_takes_too_long_frees_its_slot_for_those_who_wait() -> None:
    """Law 12: one slot, and the first episode would hold it for ever."""
    engine = ScriptedEngine(guess, delay=lambda request: 10**9 if request.id.startswith("0-") else 1, slots=1)
    played = play(range(3), engine=engine, max_alive=1, timeout=0.2)
    assert [one["stop_reason"] is StopReason.CANCELLED for one in played] == [True, False, False]
    assert played[1:] == play(range(3))[1:]
    assert len(engine.cancelled) == 1


def test_pythons_search_for_cycles_is_as_before_after_a_rollout() -> None:
    before, during = gc.get_threshold(), list[Any]()

    def look(request: Any) -> Any:
        during.append(gc.get_threshold())
        if len(during) > 5:
            raise KeyboardInterrupt
        return guess(request)

    with pytest.raises(KeyboardInterrupt):
        play(range(4), engine=ScriptedEngine(look))
    assert gc.get_threshold() == before
    assert min(found[2] for found in during) >= 100


def test_an_engine_of_three_methods_and_one_that_is_awaited_play() -> None:
    class Plain(Engine):
        def __init__(self) -> None:
            self.asked: list[Any] = []

        def submit(self, request: Any) -> None:
            self.asked.append(request)

        def collect(self) -> list[Completion]:
            asked, self.asked = self.asked, []
            return [Completion(request.id, ids := guess(request), [-1.0] * len(ids)) for request in asked]

        def cancel(self, request_id: str) -> None:
            pass

    class Awaited:
        async def __aenter__(self) -> Any:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def sample(self, request: Any) -> Completion:
            await asyncio.sleep(0)
            return Completion(request.id, ids := guess(request), [-1.0] * len(ids))

    assert play(range(5), engine=Plain()) == play(range(5), engine=Awaited()) == play(range(5))


def test_what_is_no_number_of_episodes_is_refused() -> None:
    with pytest.raises(ConfigError, match="max_alive"):
        play(range(1), max_alive=0)


def test_a_rollout_runs_where_a_loop_is_running_as_in_a_notebook() -> None:
    async def notebook() -> Any:
        return play(range(3))

    assert asyncio.run(notebook()) == play(range(3))
