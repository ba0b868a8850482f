import logging
import random
import threading
import time
from functools import partial

import gymnasium as gym
import numpy as np
import pytest

import gym_trl
from gym_trl.errors import ConfigError
from gym_trl.executors.probe import choose_executor
from gym_trl.executors.thread import ThreadPool
from gym_trl.grpo.spec import GymSpec


class Spends(gym.Env):
    """Takes its time as it is told."""

    def __init__(self, computes=0.0, waits=0.0, **faults):
        self.observation_space = gym.spaces.Text(9)
        self.action_space = gym.spaces.Discrete(3)
        self.computes, self.waits, self.faults = computes, waits, faults

    def reset(self, *, seed=None, options=None):
        if self.faults.get("raises"):
            raise RuntimeError("not today")
        if self.faults.get("main_thread_only") and threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signal only works in main thread")
        if self.faults.get("draws"):
            random.random()
            np.random.rand()
        return str(threading.get_ident()) if self.faults.get("differs") else "begin", {}

    def step(self, action):
        end = time.thread_time() + self.computes
        while time.thread_time() < end:
            pass
        if self.waits:
            time.sleep(self.waits)
        return "on", 0.0, False, False, {}


def chosen(**spent):
    return choose_executor("Spends", Spends(**spent), lambda env_id: Spends(**spent))


@pytest.mark.parametrize(
    ("spent", "executor", "reason"),
    [
        ({}, "inline", "a step takes 0"),
        ({"waits": 0.01}, "thread", "a step waits 1"),
        ({"computes": 0.02}, "process", "a step computes for 2"),
        ({"waits": 0.01, "main_thread_only": True}, "process", "in a thread it raises RuntimeError: signal only"),
        ({"waits": 0.01, "differs": True}, "process", "in a thread it begins otherwise"),
        ({"raises": True}, "auto", "a look at it raised RuntimeError: not today"),
    ],
)
def test_the_executor_follows_from_computing_and_waiting_times(spent, executor, reason, caplog):
    with caplog.at_level(logging.INFO, "gym_trl.executors.probe"):
        choice = chosen(**spent)
    assert choice.executor == executor
    assert reason in choice.reason
    [record] = caplog.records
    assert record.getMessage() == f"Spends is stepped with executor={executor!r}: {choice.reason}"


class Shell(Spends):
    """Takes commands."""

    def __init__(self, **spent):
        super().__init__(**spent)
        self.action_space = gym.spaces.Text(99)

    def reset(self, *, seed=None, options=None):
        if self.waits:
            time.sleep(self.waits)
        return "$", {}

    def step(self, action):
        raise AssertionError("nobody meant this command")


@pytest.mark.parametrize(("spent", "executor"), [({}, "auto"), ({"waits": 0.01}, "thread")])
def test_an_environment_with_text_actions_is_not_stepped(spent, executor):
    choice = choose_executor("Shell", Shell(**spent), lambda env_id: Shell(**spent))
    assert choice.executor == executor
    assert choice.reason.startswith("a reset ")


def test_an_environment_that_cannot_be_pickled_stays_inline():
    lock = threading.Lock()
    choice = choose_executor("Spends", Spends(computes=0.02), lambda env_id: Spends(computes=0.02, lock=lock))
    assert choice.executor == "inline"
    assert "cannot be sent to another process: TypeError" in choice.reason


def test_a_declared_executor_is_used_without_a_measurement():
    env = Spends(raises=True)
    env.preferred_executor = "ray"  # type: ignore[attr-defined]
    assert choose_executor("Spends", env, gym.make) == ("ray", "it says so")


def test_every_game_of_this_library_declares_its_executor(monkeypatch):
    monkeypatch.setattr("gym_trl.executors.probe.measure", None)
    for env_id in gym_trl.GAMES:
        env = gym.make(env_id)
        assert choose_executor(env_id, env, gym.make).executor in ("inline", "thread")
        env.close()


def test_the_global_generators_stay_as_they_are():
    random.seed(5)
    np.random.seed(5)
    expected = random.Random(5).random(), np.random.RandomState(5).rand()
    chosen(waits=0.01, draws=True)
    assert (random.random(), np.random.rand()) == expected


class TestAGymSpec:
    @pytest.fixture(autouse=True)
    def registered(self):
        gym.register("Tests/Spends-v0", entry_point=Spends)
        yield
        del gym.registry["Tests/Spends-v0"]

    def spec(self, *, ids="Tests/Spends-v0", **given):
        return GymSpec(ids, num_tasks=1, num_eval_tasks=0, **given)

    def test_looks_at_what_says_nothing(self):
        assert self.spec().executor == "inline"
        assert self.spec(env_kwargs={"waits": 0.01}).executor == "thread"
        assert self.spec(env_kwargs={"computes": 0.02}).executor == "process"

    def test_does_not_look_where_it_is_told(self, monkeypatch):
        monkeypatch.setattr("gym_trl.envspec.choose_executor", None)
        assert self.spec(env_kwargs={"waits": 0.01}, executor="inline").executor == "inline"

    def test_of_several_environments_takes_what_does_for_all(self):
        assert self.spec(ids=["TrlEnv/Echo-v0", "TrlEnv/CodeAgent-v0"]).executor == "thread"
        kwargs = {"Tests/Spends-v0": {"computes": 0.02}}
        assert self.spec(ids=["TrlEnv/CodeAgent-v0", "Tests/Spends-v0"], env_kwargs=kwargs).executor == "process"

    @pytest.mark.parametrize("given", [{"workers": 2}, {"step_timeout": 9.0}, {"reset_timeout": 9.0}])
    def test_takes_processes_where_inline_has_not_what_is_asked_for(self, given):
        assert self.spec(**given).executor == "process"
        assert self.spec(env_kwargs={"waits": 0.01}, **given).executor == "thread"
        with pytest.raises(ConfigError, match="inline"):
            self.spec(executor="inline", **given)

    def test_keeps_a_pool_that_is_made_otherwise(self):
        make = partial(ThreadPool, workers=3)
        assert self.spec(executor=make).executor is make
