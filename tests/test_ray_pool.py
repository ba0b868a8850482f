"""Actors that are lost or say nothing, and clusters that are started, found and left."""

import os
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import gymnasium as gym
import pytest
from test_executors import Obedient, begin, cluster, gone, step

from gym_trl.envspec import EnvSpec
from gym_trl.errors import MissingDependencyError
from gym_trl.executors import ray as ray_pool
from gym_trl.executors.make import make_pool
from gym_trl.executors.ray import RayPool
from gym_trl.executors.worker_pool import ProcessOptions
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

__all__ = ["cluster"]  # a fixture

on_ray = [
    pytest.mark.ray,
    pytest.mark.processes,
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed"),
]


class Hosted(Obedient):
    """Says which process started its own: the actor's."""

    def reset(self, *, seed=None, options=None):
        return str(os.getppid()), {}


@pytest.fixture
def pool(cluster):
    with RayPool(lambda env_id: Hosted(), workers=1) as pool:
        yield pool


class TestAnActor:
    pytestmark = on_ray

    def test_brings_the_keys_of_states(self, cluster):
        spec = EnvSpec("FrozenLake-v1", env_kwargs={"is_slippery": False}, state_key="auto", action_format=None)
        with RayPool(spec.make, workers=1) as pool:
            pool.reset("a", Task("FrozenLake-v1", 0))
            [(_, begun)] = pool.collect(block=True)
            assert isinstance(begun, StepResult)
            moved = step(pool, "Move down")
        assert (begun.state.key, begun.markov_keys, moved.state.key) == ("(0, 100)", True, "(4, 99)")


class TestAnActorThatIsLost:
    pytestmark = on_ray

    def test_fails_its_episodes_and_is_replaced(self, pool):
        actor = int(begin(pool, "a").observation)
        for key in "bc":
            begin(pool, key)
        pool.step("a", "hang")
        assert pool.collect(block=False) == []
        os.kill(actor, signal.SIGKILL)
        [(key, lost)] = pool.collect(block=True)
        assert (key, lost.reason) == ("a", StopReason.ENV_ERROR)
        assert lost.error.startswith("its actor was lost: The actor")
        assert step(pool, "go", "b") == lost  # it waited for its model
        pool.release("c")
        assert int(begin(pool, "c").observation) != actor

    def test_takes_its_processes_with_it(self, pool):
        actor = int(begin(pool).observation)
        mine = int(step(pool, "go").observation)
        os.kill(actor, signal.SIGKILL)
        assert gone(mine)

    def test_is_one_that_says_nothing(self, pool, monkeypatch):
        actor = int(begin(pool).observation)
        monkeypatch.setattr(ray_pool, "_SILENCE_S", 3.0)
        os.kill(actor, signal.SIGSTOP)
        assert step(pool, "go") == EnvFailure("its actor did not answer for 3 s", StopReason.TIMEOUT)
        assert gone(actor)
        pool.release("a")
        assert isinstance(begin(pool), StepResult)

    def test_can_be_one_that_no_machine_has_room_for(self, cluster, monkeypatch):
        monkeypatch.setattr(ray_pool, "_START_S", 1.0)
        with RayPool(gym.make, workers=1, actor_options={"resources": {"moon": 1}}) as pool:
            assert begin(pool) == EnvFailure("its actor did not start in 1 s", StopReason.TIMEOUT)


@pytest.mark.parametrize(("how", "status"), [("pool.close()", 0), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)])
class TestAClusterOfItsOwn:
    pytestmark = on_ray

    def test_is_quiet_and_ends_with_the_pool_or_the_program(self, how, status, tmp_path):
        program = f"""
import os, sys, psutil
sys.path.insert(0, {str(Path(__file__).parent)!r})
import ray
from gym_trl.executors.ray import RayPool
from test_executors import Obedient, begin

pool = RayPool(lambda env_id: Obedient(), workers=1)
begin(pool)
for child in psutil.Process().children(recursive=True):
    print(child.pid, *child.cmdline())
sys.stdout.flush()
{how}
assert not ray.is_initialized()
"""
        environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        ran = subprocess.run(
            [sys.executable, "-c", program],
            env={**environment, "HOME": str(tmp_path)},  # where Ray keeps the cluster's token
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert (ran.stderr, ran.returncode) == ("", status)
        started = dict(line.split(" ", 1) for line in ran.stdout.splitlines())
        ours = {pid: said for pid, said in started.items() if "_Agent" in said or "gym_trl.executors.worker" in said}
        assert len(ours) == 2
        # Ray's own helpers see after a minute only that nobody ended them.
        assert all(gone(int(pid)) for pid in (started if status == 0 else ours))


def test_without_ray_it_is_said_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingDependencyError, match=r"gym-trl\[ray\]"):
        make_pool(gym.make, executor="ray")


def test_what_several_calls_bring_is_done_in_the_order_of_the_calls():
    """Calls of an actor may overtake each other."""
    agent = ray_pool._Agent(ray_pool._Sent(gym.make), ProcessOptions(workers=1))
    done = []
    agent._do = lambda *question: done.append(question[0])  # type: ignore[method-assign]
    for number in (1, 2, 0):
        agent._take(number, [(number, "a", None)])
    assert done == [0, 1, 2]
