"""Checks that must pass on every supported Gymnasium: run by the tests with each, in a process of its own.

Prints Gymnasium's version, and where it lies, at its end.
"""

import json
import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

import gym_trl
from gym_trl import wrappers
from gym_trl.random_play import random_play
from gym_trl.registration import GAMES
from gym_trl.sandbox import bubblewrap_problem
from gym_trl.spaces import AnyText
from gym_trl.vector import TextVectorEnv

GUESS = "TrlEnv/GuessNumber-v0"
TOY_TEXT = ("FrozenLake", "Taxi", "CliffWalking", "Blackjack")
STACK: list[tuple[type, dict[str, Any]]] = [
    (wrappers.ParseAction, {"format": "tag"}),
    (wrappers.TurnLimit, {"turns": 5}),
    (wrappers.InvalidActionPenalty, {"penalty": 0.1}),
    (wrappers.StepPenalty, {"penalty": 0.01}),
]


def played(env, actions):
    shown: list[Any] = [env.reset(seed=3)]
    shown += [env.step(action) for action in actions]
    return shown


def newest(name):
    """Return the id of Gymnasium's own game; versions differ from release to release."""
    return max(env_id for env_id in gym.registry if env_id.partition("-v")[0] == name)


def games():
    """Check that each of the library's games passes Gymnasium's checker and is played by its solver."""
    ours = [gym.registry[env_id] for env_id in GAMES]
    assert len(ours) > 15
    for spec in ours:
        env_id = spec.id
        if env_id == "TrlEnv/CodeAgent-v0" and bubblewrap_problem():
            continue
        env: Any = gym.make(spec)
        check_env(env.unwrapped, skip_render_check=True)
        observation, _ = env.reset(seed=1)
        policy, ended = env.unwrapped.solver(), False
        while not ended:
            observation, _, ended, _, info = env.step(policy(observation))
        assert info["action_valid"], env_id


def textified():
    """Check Gymnasium's own environments as text, also remade from their specs."""
    for env_id in [*map(newest, TOY_TEXT), "CartPole-v1", "MountainCarContinuous-v0"]:
        env: Any = wrappers.as_text(gym.make(env_id))
        act = random_play(env, 0)
        actions = [act("", {}) for _ in range(10)]
        first = played(env, actions)
        assert all(isinstance(one[0], str) for one in first)
        assert all(one[4]["action_valid"] for one in first[1:])
        assert str(played(gym.make(env.spec), actions)) == str(first)


def wrapped():
    """Check that stacks are recorded in specs and JSON, can be remade from them, and pickle."""
    env: Any = gym.make(GUESS)
    for wrapper, kwargs in STACK:
        env = wrapper(env, **kwargs)
    actions = ["<action>25</action>", "what?", "<action>40</action>"]
    first = played(env, actions)
    spec = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    for again in (gym.make(env.spec), gym.make(spec), pickle.loads(pickle.dumps(env))):
        assert str(played(again, actions)) == str(first)
    env.close()


def vectors():
    """Check our vectors in every mode, and Gymnasium's own with text, also in shared memory."""
    actions = ["25", "12", "40"]
    for mode in AutoresetMode:
        envs: Any = TextVectorEnv(gym.make_vec(GUESS, 3, vector_kwargs={"autoreset_mode": mode}, turns=2))
        observations, _ = envs.reset(seed=7, group_size=3)
        assert len(set(observations)) == 1
        envs.step(actions)
        _, _, terminated, truncated, infos = envs.step(actions)
        assert (terminated | truncated).all()
        assert ("final_obs" in infos) == (mode is AutoresetMode.SAME_STEP)
        envs.close()
    ours: Any = gym.make_vec(GUESS, 3)
    for theirs in (
        SyncVectorEnv([lambda: gym.make(GUESS)] * 3),
        AsyncVectorEnv([lambda: gym.make(GUESS)] * 3, shared_memory=True),
        AsyncVectorEnv([lambda: gym.make(GUESS)] * 3, shared_memory=False),
    ):
        assert theirs.reset(seed=5)[0] == ours.reset(seed=5)[0]
        for _ in range(8):
            one, other = theirs.step(tuple(actions)), ours.step(tuple(actions))
            assert tuple(one[0]) == tuple(other[0])
            assert all((left == right).all() for left, right in zip(one[1:4], other[1:4], strict=True))
        theirs.close()
    assert isinstance(ours.single_observation_space, AnyText)


def specs():
    """Check that ``GymSpec`` makes data sets of each environment."""
    for env in (GUESS, newest("FrozenLake"), [GUESS, "TrlEnv/Echo-v0"]):
        spec = gym_trl.GymSpec(env, num_tasks=4, turn_limit=5)
        rows = spec.train_dataset
        tasks = [json.loads(row["prompt"][-1]["task"]) for row in rows]
        assert len({task["seed"] for task in tasks}) == 4
        made = spec.make(tasks[0]["env_id"])
        assert isinstance(made.reset(seed=tasks[0]["seed"])[0], str)


if __name__ == "__main__":
    for check in (games, textified, wrapped, vectors, specs):
        check()
    print(gym.__version__, Path(str(gym.__file__)).parent.parent)
