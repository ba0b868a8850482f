"""Vectors keep Gymnasium's contract, in every mode and wherever the environments live."""

import os
import sys
import threading
from contextlib import closing
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ActionTypeError, ConfigError
from gym_trl.executors.worker import Worker, WorkerError
from gym_trl.spaces import AnyText
from gym_trl.vector import TextVectorEnv

GUESS = "TrlEnv/GuessNumber-v0"
MODES = ["NextStep", "SameStep"]


def make():
    return gym.make(GUESS, high=8, turns=3)


class Fragile(GuessNumber):
    """Raises at 7, and ends the whole process at 8."""

    def _act(self, action):
        if action == "7":
            raise RuntimeError("broken")
        if action == "8":
            os._exit(3)
        return super()._act(action)


class Nested(GuessNumber):
    def step(self, action):
        *step, info = super().step(action)
        return *step, {
            **info,
            "where": {"low": self.low},
            "cells": np.arange(3),
            **({"odd": 1} if action == "1" else {}),
        }


def same(one, other):
    assert one.keys() == other.keys()
    for key, value in one.items():
        if isinstance(value, dict):
            same(value, other[key])
        else:
            assert value.dtype == other[key].dtype, key
            assert value.tolist() == other[key].tolist(), key


def steps_equal(ours, theirs):
    assert list(ours[0]) == list(theirs[0])
    for place in (1, 2, 3):
        assert ours[place].dtype == theirs[place].dtype
        assert ours[place].tolist() == theirs[place].tolist()
    same(ours[4], theirs[4])


@pytest.fixture(params=["inline", "thread", "process"])
def executor(request):
    return request.param


def vector(maker=make, count=3, **options):
    return TextVectorEnv([maker] * count, **options)


@examples(20)
@given(
    mode=st.sampled_from(MODES),
    kind=st.sampled_from([make, Nested]),
    seed=st.integers(0, 2**31),
    actions=st.lists(st.lists(st.sampled_from("12345x"), min_size=3, max_size=3), max_size=12),
)
def test_it_is_gymnasiums_own_vector_step_by_step(mode, kind, seed, actions):
    ours, theirs = vector(kind, autoreset_mode=mode), SyncVectorEnv([kind] * 3, autoreset_mode=mode)
    first, again = ours.reset(seed=seed), theirs.reset(seed=seed)
    assert list(first[0]) == list(again[0])
    same(first[1], again[1])
    for action in actions:
        steps_equal(ours.step(action), theirs.step(tuple(action)))
    ours.close()
    theirs.close()


@pytest.mark.parametrize("mode", MODES)
def test_it_plays_the_same_wherever_the_environments_live(executor, mode):
    envs, alone = vector(autoreset_mode=mode, executor=executor, workers=2), vector(autoreset_mode=mode)
    assert envs.reset(seed=5)[0] == alone.reset(seed=5)[0]
    for turn in range(10):
        actions = [str(1 + (turn + place) % 8) for place in range(3)]
        steps_equal(envs.step(actions), alone.step(actions))
    envs.close()


def test_groups_get_the_same_seeds():
    envs = vector(lambda: gym.make("TrlEnv/Echo-v0"), 6)
    words = envs.reset(seed=9, group_size=3)[0]
    assert words == (words[0],) * 3 + (words[3],) * 3
    assert words[0] != words[3]
    assert words[3] == gym.make("TrlEnv/Echo-v0").reset(seed=10)[0]


def test_some_are_stepped_and_the_others_stay(executor):
    envs = vector(executor=executor)
    envs.reset(seed=1)
    alone = make()
    alone.reset(seed=2)
    assert envs.step_some({1: "4"}) == {1: alone.step("4")}
    assert envs.step_some({}) == {}
    assert envs.step(["4"] * 3)[0][1] == alone.step("4")[0]
    envs.close()


def test_with_autoreset_disabled_ended_episodes_are_reset_by_mask():
    envs = vector(autoreset_mode=AutoresetMode.DISABLED)
    envs.reset(seed=1, options={"instance": 3})
    assert envs.step(["4", "1", "2"])[2].tolist() == [True, False, False]
    with pytest.raises(ConfigError, match="environment 0 is over"):
        envs.step(["1"] * 3)
    observations, _ = envs.reset(seed=4, options={"reset_mask": np.array([True, False, False])})
    assert observations[0] == make().reset(seed=4)[0]
    assert envs.step(["8", "4", "x"])[2].tolist() == [False, True, False]


@pytest.mark.parametrize("mask", [np.array([True]), np.array([1, 0, 0]), np.array([False] * 3), "all"])
def test_a_mask_that_cannot_work_is_refused(mask):
    with pytest.raises(ConfigError, match="reset_mask must be an array of 3 bools"):
        vector().reset(options={"reset_mask": mask})


def test_an_environment_that_raises_is_reported_and_the_others_go_on(executor):
    envs = vector(Fragile, executor=executor, workers=2)
    envs.reset(seed=0, options={"instance": 30})
    observations, rewards, terminated, truncated, infos = envs.step(["3", "7", "3"])
    assert observations == ("Higher.", "", "Higher.")
    assert (rewards.tolist(), terminated.tolist(), truncated.tolist()) == ([0] * 3, [False] * 3, [False, True, False])
    assert infos["error"].tolist() == [None, "RuntimeError: broken", None]
    observations, _, _, truncated, _ = envs.step(["3"] * 3)
    assert observations == ("Higher.", "Guess 1 to 50 in 6 tries.", "Higher.")
    assert not truncated.any()
    envs.close()


def test_a_failed_autoreset_leaves_the_result_of_the_step_as_it_is(executor):
    class Once(GuessNumber):
        resets = 0

        def reset(self, **how):
            self.resets += 1
            if self.resets == 2:
                raise RuntimeError("no next game")
            return super().reset(**how)

    envs = vector(Once, executor=executor, workers=2, autoreset_mode="SameStep")
    envs.reset(seed=0, options={"instance": 2})
    _, rewards, terminated, _, infos = envs.step(["3", "1", "3"])
    assert (rewards.tolist(), terminated.tolist()) == ([1, 0, 1], [True, False, True])
    assert infos["final_obs"].tolist() == ["Correct.", None, "Correct."]
    assert infos["final_info"]["success"].tolist() == [True, False, True]
    assert infos["error"][0] == "RuntimeError: no next game"
    observations, rewards, _, truncated, _ = envs.step(["1"] * 3)
    assert observations[0].startswith("Guess 1 to")
    assert (rewards.tolist(), truncated.any()) == ([0, 0, 0], False)
    envs.close()


def test_a_mistake_in_a_question_costs_no_process_its_episodes():
    envs = vector(executor="process", workers=2)
    envs.reset(seed=0)
    with pytest.raises(WorkerError, match="AttributeError"):
        envs.get_attr("hihg")
    with pytest.raises(Exception, match=r"pickle|local object"):
        envs.set_attr("given", [1, lambda: 2, 3])
    assert envs.get_attr("high") == (8, 8, 8)
    assert not envs.step(["1"] * 3)[3].any()  # they play on
    envs.close()


def test_a_result_that_cannot_be_pickled_fails_its_episode():
    class Unsendable(GuessNumber):
        def step(self, action):
            *step, info = super().step(action)
            return *step, {**info, "held": threading.Lock()} if action == "7" else info

    envs = vector(Unsendable, executor="process", workers=3)
    envs.reset(seed=0, options={"instance": 30})
    observations, _, _, truncated, infos = envs.step(["3", "7", "3"])
    assert (observations[0], truncated.tolist()) == ("Higher.", [False, True, False])
    assert "cannot be sent" in infos["error"][1]
    assert envs.step(["3"] * 3)[0] == ("Higher.", "Guess 1 to 50 in 6 tries.", "Higher.")
    envs.close()


def test_a_process_that_ends_takes_only_its_own_episodes_with_it():
    envs = vector(Fragile, executor="process", workers=3)
    envs.reset(seed=0, options={"instance": 30})
    observations, _, _, truncated, infos = envs.step(["3", "8", "3"])
    assert observations == ("Higher.", "", "Higher.")
    assert truncated.tolist() == [False, True, False]
    assert "has ended with status 3" in infos["error"][1]
    assert envs.step(["3"] * 3)[0][1] == "Guess 1 to 50 in 6 tries."
    envs.close()


def test_attributes_and_methods_are_reached(executor):
    envs = vector(executor=executor, workers=2)
    envs.reset(seed=0)
    assert envs.get_attr("high") == (8, 8, 8)
    envs.set_attr("marked", [1, 2, 3])
    assert envs.get_attr("marked") == (1, 2, 3)
    assert envs.call("has_wrapper_attr", "nothing") == (False,) * 3
    envs.close()


def test_gymnasium_makes_it_of_our_ids():
    envs = gym.make_vec(GUESS, 2, high=8, turns=3, executor="process", workers=1)
    assert isinstance(envs.unwrapped, TextVectorEnv)
    assert envs.reset(seed=3)[0] == tuple(make().reset(seed=seed)[0] for seed in (3, 4))
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.reset()[0] in envs.observation_space
    envs.close()


def test_misuse_is_named():
    envs = vector()
    with pytest.raises(ResetNeeded, match="call reset"):
        envs.step(["1"] * 3)
    envs.reset()
    with pytest.raises(ConfigError, match="needs one action for each of 3 environments, got 2"):
        envs.step(["1"] * 2)
    with pytest.raises(ConfigError, match="seed must be one number or 3, got 2"):
        envs.reset(seed=[1, 2])


def test_a_worker_says_what_was_raised_and_goes_on():
    worker = Worker(lambda: [3])
    worker.ask("index", 4)
    worker.ask("append", 4)
    worker.ask("index", 4)
    with pytest.raises(WorkerError, match="ValueError"):
        worker.answer()
    assert worker.answer() is None
    assert worker.answer() == 1
    worker.close()


def test_a_worker_runs_no_module_of_the_working_directory(tmp_path, monkeypatch):
    for name in (*sys.stdlib_module_names, "cloudpickle", "gym_trl", "gymnasium", "numpy", "theirs"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    worker = Worker(lambda: [3])
    worker.ask("index", 3)
    assert worker.answer() == 0
    worker.close()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("mode", MODES)
def test_gymnasiums_reward_wrappers_around_a_vector_are_those_around_each(mode):
    def scaled(env):
        return gym.wrappers.ClipReward(
            gym.wrappers.TransformReward(env, lambda reward: 2 * float(reward)), max_reward=1.5
        )

    each = TextVectorEnv([lambda: scaled(make())] * 3, autoreset_mode=mode)
    around = TextVectorEnv([make] * 3, autoreset_mode=mode)
    wrapped = gym.wrappers.vector.TransformReward(around, lambda rewards: 2 * rewards)
    wrapped = gym.wrappers.vector.ClipReward(wrapped, max_reward=1.5)  # type: ignore[assignment]
    assert each.reset(seed=1)[0] == wrapped.reset(seed=1)[0]
    paid = []
    for turn in range(16):
        actions = [str(1 + (turn + index) % 8) for index in range(3)]
        one, other = each.step(actions), wrapped.step(actions)
        assert one[0] == other[0]
        assert one[1].tolist() == other[1].tolist()
        paid += one[1].tolist()
    assert 1.5 in paid


USES = {
    "reset": lambda envs: envs.reset(seed=0),
    "step": lambda envs: envs.step(["1"] * envs.num_envs),
    "step_some": lambda envs: envs.step_some({0: "1"}),
    "call": lambda envs: envs.call("answer"),
    "get_attr": lambda envs: envs.get_attr("turns"),
    "set_attr": lambda envs: envs.set_attr("turns", 3),
    "render": lambda envs: envs.render(),
    "np_random": lambda envs: envs.np_random,
    "np_random_seed": lambda envs: envs.np_random_seed,
}


def test_every_use_after_close_is_refused_and_reads_nobody_elses_pipe(executor):
    envs = vector(executor=executor, count=2)
    envs.reset(seed=0)
    envs.close()
    pipes = [os.pipe() for _ in range(16)]  # they get the numbers that the workers' pipes had
    try:
        for _, end in pipes:
            os.write(end, b"the caller's own")
        for use in USES.values():
            with pytest.raises(ClosedEnvironmentError, match=r"after close\(\)"):
                use(envs)
        envs.close()  # closing twice is allowed, as in Gymnasium
        assert [os.read(start, 100) for start, _ in pipes] == [b"the caller's own"] * len(pipes)
    finally:
        for start, end in pipes:
            os.close(start)
            os.close(end)


def test_the_generators_and_their_seeds_are_those_of_every_environment(executor):
    envs = vector(executor=executor, count=3)
    theirs = SyncVectorEnv([make] * 3)
    for each in (envs, theirs):
        each.reset(seed=7)
    assert envs.np_random_seed == theirs.np_random_seed == (7, 8, 9)
    assert [rng.integers(1000) for rng in envs.np_random] == [rng.integers(1000) for rng in theirs.np_random]
    envs.close()


@pytest.mark.parametrize("differing", ["observation_space", "action_space"])
def test_environments_with_different_spaces_are_refused_by_name(executor, differing):
    def odd():
        env = make()
        setattr(env, differing, AnyText(7))
        return env

    with pytest.raises(ConfigError, match=f"one {differing}: .* environment 2 is AnyText"):
        TextVectorEnv([make, make, odd], executor=executor, workers=2)


@pytest.mark.parametrize("executor", ["inline", "thread", "process"])
def test_actions_other_than_text_raise_before_any_step(executor):
    mistakes: list[Any] = [[1, 2, 3], ["1", None, "3"], "123", b"123", None, 5, {0: "1", 1: "2", 2: "3"}]
    with closing(vector(executor=executor)) as envs:
        envs.reset(seed=0)
        for actions in mistakes:
            with pytest.raises((ActionTypeError, ConfigError), match=r"takes text, got|needs a list of 3 actions, got"):
                envs.step(actions)
        with pytest.raises(ActionTypeError, match="environment 1 takes text, got int: 5"):
            envs.step_some({1: 5})
        assert [bool(text) for text in envs.step(["9"] * 3)[0]] == [True] * 3
        assert envs.step(["9"] * 3)[3].tolist() == [False] * 3
