"""Episodes whose worker was lost by no fault of their own go on in another one, as if nothing had happened."""

import logging
import os
import random
import signal
import time
from pathlib import Path
from select import select

import gymnasium as gym
import pytest

from gym_trl.errors import PoolError
from gym_trl.executors.guards import GuardedPool
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.process import ProcessPool
from gym_trl.executors.thread import ThreadPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

CHAT = ByteChat()


class Walk(gym.Env):
    """Walk over places that the seed and the actions draw; options name the turn in which it fails."""

    def __init__(self):
        self.observation_space = self.action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.options = 0, options or {}
        if "pid" in self.options:
            return str(os.getpid()), {}
        return self.place(), {}

    def place(self):
        return f"place {self.np_random.integers(10**6)}"

    def step(self, action):
        self.turn += 1
        if self.turn == self.options.get("exits"):
            os._exit(3)
        if self.turn == self.options.get("hangs"):
            time.sleep(20)
        if action == "pid":
            return str(os.getpid()), 0.0, False, False, {}
        if "once" in self.options and action == "once":
            if Path(self.options["once"]).exists():
                os._exit(4)
            Path(self.options["once"]).touch()
        return self.place() + f" after {action}", 0.125, self.turn == 6, False, {"seconds": time.time()}


def played(pool, tasks, alive):
    engine = ScriptedEngine(lambda request: CHAT.say(f"go {request.seed % 9}"))
    episodes = [Episode(task, chat=CHAT, limits=Limits(tokens_per_turn=99)) for task in tasks]
    return run_episodes(episodes, pool=pool, engine=engine, max_alive=alive)


def collect(pool, number):
    results: dict[str, StepResult | EnvFailure] = {}
    while len(results) < number:
        results.update(pool.collect(block=True))
    return results


def step(pool, key, action):
    pool.step(key, action)
    return collect(pool, 1)[key]


@pytest.mark.processes
@pytest.mark.parametrize(("kind", "way"), [(ProcessPool, "exits"), (ProcessPool, "hangs"), (ThreadPool, "hangs")])
def test_episodes_of_a_lost_worker_equal_episodes_alone(kind, way, caplog):
    chance = random.Random(way)
    fails = {number: chance.randrange(1, 7) for number in chance.sample(range(32), 2)}
    tasks = [Task("Walk", number, {way: fails[number]} if number in fails else {}) for number in range(32)]
    with InlinePool(lambda _: Walk()) as pool:
        alone = played(pool, [Task("Walk", number) for number in range(32)], 1)
    with kind(lambda _: Walk(), workers=2, step_timeout=0.8) as pool:
        together = played(pool, tasks, 24)
    for number, (one, other) in enumerate(zip(together, alone, strict=True)):
        if number in fails:
            assert (one.stop_reason, one.episode_return) == (StopReason.CRASHED, 0.125 * (fails[number] - 1))
        else:
            assert one.stop_reason is other.stop_reason is StopReason.TERMINATED
            assert (one.prompt_ids, one.completion_ids, one.mask) == (
                other.prompt_ids,
                other.completion_ids,
                other.mask,
            )
            assert [turn.reward for turn in one.turns] == [turn.reward for turn in other.turns]
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 1
    assert "go on in other workers, where their actions are repeated" in said[0]


@pytest.mark.processes
def test_a_process_that_is_killed_between_two_steps_costs_no_episode():
    with ProcessPool(lambda _: Walk(), workers=1) as pool:
        for key in "abc":
            pool.reset(key, Task("Walk", ord(key)))
        collect(pool, 3)
        pid = int(step(pool, "a", "pid").observation)  # not the same in another process
        before = step(pool, "b", "on")
        os.kill(pid, signal.SIGKILL)
        assert select([pool.fileno()], [], [], 20)[0]  # it has ended
        time.sleep(0.3)  # and closed its end of the other pipe as well
        after = [step(pool, key, "on") for key in "abc"]
    with InlinePool(lambda _: Walk()) as pool:
        for key in "abc":
            pool.reset(key, Task("Walk", ord(key)))
        collect(pool, 3)
        assert step(pool, "b", "on").observation == before.observation
        alone = [step(pool, key, "on") for key in "bc"]
    assert [one.observation for one in after[1:]] == [one.observation for one in alone]
    assert (after[0].reason, after[0].error.endswith("step 1 of a new instance differs")) == (
        StopReason.ENV_ERROR,
        True,
    )


@pytest.mark.processes
def test_a_failure_of_a_repeated_call_is_not_scored(tmp_path):
    with ProcessPool(lambda _: Walk(), workers=1) as pool:
        pool.reset("a", Task("Walk", 0, {"exits": 1}))
        pool.reset("b", Task("Walk", 0, {"once": str(tmp_path / "file")}))
        collect(pool, 2)
        assert isinstance(step(pool, "b", "once"), StepResult)
        assert step(pool, "a", "on").reason is StopReason.CRASHED
        after = step(pool, "b", "on")
    assert after.reason is StopReason.ENV_ERROR
    assert "step 1 of a new instance failed" in after.error
    assert "with status 4" in after.error


@pytest.mark.processes
def test_an_episode_that_was_given_up_is_not_repeated():
    with ProcessPool(lambda _: Walk(), workers=1) as pool:
        for key in "ab":
            pool.reset(key, Task("Walk", 0, {"exits": 1} if key == "a" else {}))
        collect(pool, 2)
        assert isinstance(step(pool, "a", "on"), EnvFailure)
        pool.release("b")
        pool.reset("b", Task("Walk", 5))
        begun = collect(pool, 1)["b"]
    assert begun.observation == Walk().reset(seed=5)[0]


@pytest.mark.processes
def test_environments_that_never_start_are_given_up_after_three_processes():
    class Ends(Walk):
        def __init__(self):
            os._exit(5)

    began = time.monotonic()
    with GuardedPool(ProcessPool(lambda _: Ends(), workers=1)) as pool:
        for number in range(200):
            pool.reset(str(number), Task("Walk", number))
        with pytest.raises(PoolError, match="no environment starts any more"):
            collect(pool, 200)
    assert time.monotonic() - began < 40
