"""A group of processes whose engines step alike: nothing is lost (8, 12), company does not matter (5), nobody hangs.

Here the processes are threads, but for the last tests; ``tests/grpo/test_trainer_vllm_ranks.py`` has the real engine.
"""

import ast
import os
import pickle
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError, Event

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.engines.collective import CollectiveEngine
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import EngineError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.thread import ThreadPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat
from gym_trl.types import Completion, FinishReason, Request, StopReason, Task

CHAT = ByteChat()
SCRIPT = Path(__file__).parent / "play_in_group.py"


class Group:
    """Threads that exchange as the processes of a group do: what is sent is pickled, and all wait for all."""

    def __init__(self, size):
        self.barrier = Barrier(size, timeout=120)
        self.said = [b""] * size
        self.members = {}

    def member(self, rank):
        self.members[rank] = Member(self, rank)
        return self.members[rank]

    def run(self, work):
        """``work(rank)`` on every rank at once: what it returned or raised."""
        with ThreadPoolExecutor(len(self.said)) as threads:
            futures = [threads.submit(work, rank) for rank in range(len(self.said))]
            return [future.exception() or future.result() for future in futures]


class Member:
    def __init__(self, group, rank):
        self.rank, self.rounds, self._group = rank, 0, group

    def __call__(self, said):
        self.rounds += 1
        group = self._group
        group.said[self.rank] = pickle.dumps(said)
        group.barrier.wait()
        heard = [pickle.loads(one) for one in group.said]
        group.barrier.wait()
        return heard


class LatePool(InlinePool):
    """Every reply comes back some collects later, in any order."""

    def __init__(self, make, chance):
        super().__init__(make)
        self.chance, self.late = chance, []

    def collect(self, *, block):
        self.late += super().collect(block=block)
        self.chance.shuffle(self.late)
        ready = self.chance.randint(1 if block else 0, len(self.late)) if self.late else 0
        out, self.late = self.late[:ready], self.late[ready:]
        return out


def make(env_id):
    return gym.make(env_id, low=1, high=20, turns=5)


def episodes(indices):
    return [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index),
            chat=CHAT,
            limits=Limits(tokens_per_turn=8, tokens=400),
            seed=derive_seed("sampling", index),
        )
        for index in indices
    ]


def guess(request):
    """A player that depends on nothing but the seed, as a seeded engine does."""
    return CHAT.say(random.Random(request.seed).choice(["7", "13", "19", "many", ""]))


def delay(request):
    return 1 + request.seed % 7


def alone(indices):
    with InlinePool(make) as pool:
        return [
            run_episodes(episodes([index]), pool=pool, engine=ScriptedEngine(guess, delay=delay))[0]
            for index in indices
        ]


def play(group, shares, engines, pool=lambda rank: InlinePool(make), **options):
    """Every rank plays its share: its trajectories, or what it raised."""

    def work(rank):
        with pool(rank) as games, CollectiveEngine(engines[rank], group.member(rank)) as engine:
            return run_episodes(episodes(shares[rank]), pool=games, engine=engine, **options)

    return group.run(work)


def scripted(size, answer=guess, **options):
    return [ScriptedEngine(answer, **{"delay": delay, **options}) for _ in range(size)]


def split(count, size, chance):
    """``count`` episodes on ``size`` ranks, unevenly: a rank may have none."""
    places = [chance.randrange(size) for _ in range(count)]
    return [[index for index, place in enumerate(places) if place == rank] for rank in range(size)]


def in_step(engines):
    """Every engine was asked for the same in the same order, took as many steps and has nothing left."""
    asked = [engine.requests for engine in engines]
    return (
        all(requests == asked[0] for requests in asked)
        and len({engine.steps for engine in engines}) == 1
        and all(engine.cancelled == engines[0].cancelled for engine in engines)
        and all(engine.pending == 0 for engine in engines)
    )


@given(
    st.integers(0, 12),
    st.integers(1, 4),
    st.integers(0, 2**32),
    st.none() | st.integers(1, 4),
    st.none() | st.integers(1, 3),
)
@examples(30)
def test_episodes_of_several_processes_equal_episodes_alone(count, size, seed, slots, alive):
    """Laws 5, 8 and 12."""
    shares = split(count, size, random.Random(seed))
    engines = scripted(size, slots=slots)
    played = play(
        Group(size),
        shares,
        engines,
        lambda rank: LatePool(make, random.Random(seed + rank)),
        max_alive=alive,
    )
    assert played == [alone(share) for share in shares]
    assert in_step(engines)
    assert len(engines[0].requests) == sum(len(game.turns) for games in played for game in games)


def test_all_episodes_of_the_group_are_one_batch():
    """The group takes as many steps as its longest episode alone, and as many rounds and two to leave."""
    engines, group = scripted(3), Group(3)
    played = play(group, [range(20), range(20, 30), [30]], engines)
    spent = [
        sum(delay(request) for request in engines[0].requests if request.id.startswith(f"{rank}:{index}-"))
        for rank, games in enumerate(played)
        for index in range(len(games))
    ]
    assert engines[0].steps == max(spent)
    assert {member.rounds for member in group.members.values()} == {max(spent) + 2}


def test_a_slow_environment_keeps_no_other_process_waiting():
    """The environments of one process answer when the other has played all of its episodes, and not before."""
    others_are_done = Event()

    class Patient(gym.Wrapper):
        def step(self, action):
            assert others_are_done.wait(60)
            return self.env.step(action)

    pools = [
        lambda: InlinePool(make),
        lambda: ThreadPool(lambda env_id: Patient(make(env_id)), workers=2),
    ]
    shares = [list(range(10)), [10, 11]]
    engines, group = scripted(2), Group(2)

    def work(rank):
        with pools[rank]() as pool, CollectiveEngine(engines[rank], group.member(rank)) as engine:
            played = run_episodes(episodes(shares[rank]), pool=pool, engine=engine)
            if rank == 0:
                others_are_done.set()
            return played

    assert group.run(work) == [alone(share) for share in shares]
    assert in_step(engines)


def test_a_process_without_episodes_works_for_the_others():
    engines = scripted(2)
    assert play(Group(2), [[], [0, 1, 2]], engines) == [[], alone([0, 1, 2])]
    assert in_step(engines)


def test_a_process_may_play_alone():
    engines = scripted(1)
    assert play(Group(1), [[0, 1]], engines) == [alone([0, 1])]


def test_what_an_engine_refuses_comes_back_to_who_asked_for_it():
    def answer(request):
        if request.id.startswith("1:0-"):
            return Completion(request.id, [], [], FinishReason.ERROR, "too long")
        return guess(request)

    played = play(Group(2), [[0, 1], [2, 3]], scripted(2, answer))
    assert [[game.error for game in games] for games in played] == [[None, None], ["too long", None]]
    assert played[1][0].stop_reason is StopReason.CANCELLED


def request(name, seed=0):
    return Request(name, [1, 2, 3], 9, seed)


def test_a_cancelled_request_leaves_every_engine_before_the_next_step():
    engines, group = scripted(2, delay=lambda one: 9 if one.seed else 1), Group(2)

    def work(rank):
        with CollectiveEngine(engines[rank], group.member(rank)) as engine:
            engine.submit(request("slow", seed=5))
            engine.submit(request("quick"))
            first = engine.collect(block=True)
            engine.cancel("slow")
            engine.cancel("never seen")
            engine.submit(request("slow"))  # the id is free again
            return [one.request_id for one in (*first, *engine.collect(block=True))], engine.collect(block=True)

    assert group.run(work) == [(["quick", "slow"], [])] * 2
    assert [engine.cancelled for engine in engines] == [["0:slow", "1:slow"]] * 2
    assert engines[0].steps == engines[1].steps < 9


def test_a_closed_engine_is_not_used_again():
    with CollectiveEngine(scripted(1)[0], Group(1).member(0)) as engine:
        engine.submit(request("a"))
    with pytest.raises(EngineError, match="make a new"):
        engine.submit(request("a"))
    with pytest.raises(EngineError, match="make a new"):
        engine.collect(block=True)


@pytest.mark.parametrize("failure", [RuntimeError("no disk"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", [0, 1, 3, 9])
@pytest.mark.parametrize("late", [False, True])
def test_where_one_process_fails_all_do_and_nothing_is_left_running(failure, when, late):
    """Also when the others have finished already, and only work for the one that fails."""
    finished = []

    def fail(index, _):
        finished.append(index)
        if len(finished) > when:
            raise failure

    shares = [[], [0]] if late else [list(range(6)), list(range(6, 12))]
    shares[1] += range(20, 30)
    engines, group = scripted(2), Group(2)

    def work(rank):
        with InlinePool(make) as pool, CollectiveEngine(engines[rank], group.member(rank)) as engine:
            on_finish = fail if rank == 1 else None
            return run_episodes(episodes(shares[rank]), pool=pool, engine=engine, on_finish=on_finish)

    other, failed = group.run(work)
    assert failed is failure
    assert isinstance(other, EngineError)
    assert str(other) == f"process 1 of the group ended its rollout: {type(failure).__name__}: {failure}"
    assert [engine.pending for engine in engines] == [0, 0]
    # And whoever survives that can go on.
    assert play(Group(2), [[0], [1]], scripted(2)) == [alone([0]), alone([1])]


def test_an_engine_that_fails_everywhere_says_so_everywhere():
    """Also where it only works for the others."""

    def answer(request):
        raise RuntimeError("out of memory")

    for error in play(Group(3), [[0], [1], []], scripted(3, answer)):
        assert type(error) is RuntimeError


def test_an_engine_that_fails_on_one_process_ends_the_others():
    def answer(request):
        raise RuntimeError("out of memory")

    engines = [*scripted(1), *scripted(1, answer)]
    first, second = play(Group(2), [[0], [1]], engines)
    assert type(second) is RuntimeError
    assert str(first) == "process 1 of the group ended its rollout: RuntimeError: out of memory"


def test_engines_that_sample_apart_are_noticed_by_all():
    engines = [*scripted(1), *scripted(1, lambda request: CHAT.say("1"))]
    for error in play(Group(2), [[0], [1]], engines):
        assert isinstance(error, EngineError)
        assert "sampled different answers" in str(error)
    assert [engine.pending for engine in engines] == [0, 0]


def test_a_process_that_is_gone_is_an_error_and_not_a_wait():
    group = Group(2)
    engines = scripted(2)

    def work(rank):
        with InlinePool(make) as pool, CollectiveEngine(engines[rank], group.member(rank)) as engine:
            if rank == 1:
                group.barrier.abort()  # as the connections of a process that is killed
                engine._over = True
                return None
            return run_episodes(episodes([0, 1]), pool=pool, engine=engine)

    error, _ = group.run(work)
    assert isinstance(error, EngineError)
    assert "the group lost a process" in str(error)
    assert isinstance(error.__cause__, BrokenBarrierError)
    assert engines[0].pending == 0


def test_an_interrupt_in_an_exchange_leaves_nothing_running():
    class Interrupted:
        rank = 0

        def __init__(self):
            self.rounds = 0

        def __call__(self, said):
            self.rounds += 1
            if self.rounds > 2:
                raise KeyboardInterrupt
            return [said, None]

    (engine,) = scripted(1, delay=lambda request: 9)
    exchange = Interrupted()
    with (
        InlinePool(make) as pool,
        pytest.raises(KeyboardInterrupt),
        CollectiveEngine(engine, exchange) as collective,
    ):
        run_episodes(episodes([0]), pool=pool, engine=collective)
    assert engine.pending == 0
    assert exchange.rounds == 3  # nothing is said after that: nobody knows who would hear it


real_processes = [
    pytest.mark.full,
    pytest.mark.processes,
]


class TestRealProcesses:
    pytestmark = real_processes

    def start(self, meeting, size, *dies):
        """As many processes; those whose ranks are in ``dies`` do in mid-rollout."""
        return [
            subprocess.Popen(
                [sys.executable, str(SCRIPT), str(meeting), str(rank), str(size), *(["dies"] if rank in dies else [])],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]

    def test_three_processes_play_as_one_engine_would(self, tmp_path):
        reports = []
        for process in self.start(tmp_path / "meeting", 3):
            out, err = process.communicate(timeout=200)
            assert process.returncode == 0, err[-2000:]
            reports.append(ast.literal_eval(out))
        with InlinePool(gym.make) as pool:
            games = episodes(range(18))
            played = run_episodes(games, pool=pool, engine=ScriptedEngine(guess))
        assert [ids for report in reports for ids in report["played"]] == [game.completion_ids for game in played]
        assert reports[0]["asked"] == reports[1]["asked"] == reports[2]["asked"]
        assert len({report["steps"] for report in reports}) == 1

    def test_a_process_that_is_killed_is_an_error_to_the_others(self, tmp_path):
        survivor, victim = self.start(tmp_path / "meeting", 2, 1)
        victim.communicate(timeout=200)
        _, err = survivor.communicate(timeout=200)
        assert (survivor.returncode, victim.returncode) == (1, 9)
        assert "EngineError: the group lost a process" in err


@given(st.integers(1, 4), st.integers(0, 2**32))
@examples(15)
def test_all_processes_meet_between_two_rollouts_of_one_engine(size, seed):
    """As for replacing dead groups: the second shares depend on something that all exchange in between."""
    chance = random.Random(seed)
    first, second = split(8, size, chance), split(8, size, chance)
    engines, group, waiting = scripted(size), Group(size), Barrier(size, timeout=120)

    def work(rank):
        with InlinePool(make) as games, CollectiveEngine(engines[rank], group.member(rank)) as engine:
            before = run_episodes(episodes(first[rank]), pool=games, engine=engine)
            engine.meet()
            waiting.wait()
            return before, run_episodes(episodes(second[rank]), pool=games, engine=engine)

    assert group.run(work) == [(alone(first[rank]), alone(second[rank])) for rank in range(size)]
    assert in_step(engines)
