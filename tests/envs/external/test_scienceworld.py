from typing import Any

import gymnasium as gym
import pytest
from support.java import needs_java, play_solver

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError, InfrastructureError

pytest.importorskip("scienceworld", reason="ScienceWorld is not installed")
pytestmark = [
    pytest.mark.external,
    needs_java,
]

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture(scope="module", autouse=True)
def open_java():
    """One that stays from game to game, because starting it takes seconds."""
    env = make("External/ScienceWorld-v0", task="find-animal")
    yield
    env.close()


@pytest.mark.parametrize("task", ["find-animal", "power-component", "lifespan-longest-lived"])
def test_the_solver_scores_one(task):
    env = make("External/ScienceWorld-v0", task=task, fold="test")
    shown, total, info = play_solver(env, instance=0)
    assert shown.startswith("Your task is to")
    assert info["success"]
    assert total == pytest.approx(1.0)
    env.close()


def test_random_play_ends_by_a_wrong_focus():
    env = make("External/ScienceWorld-v0", task="find-animal")
    turns = []
    for seed in range(3):
        shown, _ = env.reset(seed=seed)
        policy, over, invalid = env.unwrapped.random_policy(seed), False, 0
        turns.append(0)
        while not over:
            shown, _, over, _, info = env.step(policy(shown))
            turns[-1], invalid = turns[-1] + 1, invalid + (not info["action_valid"])
        assert invalid < turns[-1]
        assert not info["success"]
    assert max(turns) < 300
    env.close()


def test_a_wrong_focus_ends_the_episode_and_takes_nothing_back():
    env = make("External/ScienceWorld-v0", task="find-animal")
    env.reset(seed=0)
    assert not env.step("xyzzy")[4]["action_valid"]
    assert env.step("focus on agent")[1:] == (0.0, True, False, {"action_valid": True, "success": False})
    env.close()


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"task": "zork"}, r"ScienceWorld has no task 'zork'; it has \['boil'"),
        ({"task": "boil", "fold": "valid"}, r"fold must be one of \['train', 'dev', 'test'\], got 'valid'"),
        ({"task": "boil", "simplifications": "easy,magic"}, r"has no simplifications 'magic'; it has \['easy'"),
    ],
)
def test_what_does_not_exist_is_said(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        make("External/ScienceWorld-v0", **kwargs)


def test_a_virtual_machine_that_was_killed_is_said_and_the_next_one_starts():
    env = make("External/ScienceWorld-v0", task="find-animal")
    env.reset(seed=0)
    machines = env.unwrapped._game._open
    (gateway,) = [gateway for (_, jar), (gateway, _) in machines.items() if "scienceworld" in jar]
    gateway.java_process.kill()
    gateway.java_process.wait()
    with pytest.raises(InfrastructureError, match=r"the virtual machine of scienceworld.jar is gone"):
        env.step("look around")
    env.close()
    other = make("External/ScienceWorld-v0", task="find-animal")
    assert other.reset(seed=0)[0].startswith("Your task")
    other.close()
