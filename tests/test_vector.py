"""Vectors: law 10, and texts that are right in every mode."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import ConfigError
from gym_trl.vector import TextVectorEnv
from gym_trl.wrappers import InvalidActionPenalty, ParseAction, StepPenalty, TurnLimit

WRAPPERS: dict[str, Any] = {
    "none": [],
    "turns": [lambda env: StepPenalty(env, 0.125), lambda env: TurnLimit(env, 3)],
    "marks": [lambda env: InvalidActionPenalty(ParseAction(env, "boxed"), 0.25)],
}
ACTIONS = st.sampled_from(["25", "30", r"\boxed{12}", "crane", "left", "1 1", "x", "é\ud800", ""])


class Words(gym.Env[Any, str]):
    """A user's own, of Gymnasium's Text."""

    def __init__(self, shape: str = "text") -> None:
        self.shape = shape
        text = spaces.Text(30, charset="".join(map(chr, range(32, 256))), min_length=0)
        self.observation_space = {
            "text": text,
            "dict": spaces.Dict(text=text, turn=spaces.Discrete(9)),
            "one of": spaces.OneOf([text, spaces.Box(0, 9, (2,))]),
        }[shape]
        self.action_space = text

    def show(self, text: str) -> Any:
        if self.shape == "one of":
            return (np.int64(0), text) if self.turn % 2 else (np.int64(1), np.full(2, self.turn, np.float32))
        return {"text": text, "turn": self.turn} if self.shape == "dict" else text

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self.show(f"begin {self.np_random.integers(100)}"), {}

    def step(self, action):
        self.turn += 1
        return self.show(f"said {action} {self.turn}"), float(self.turn), self.turn == 3, False, {"action_valid": True}


@examples(6)
@given(
    game=st.sampled_from(["GuessNumber", "FrozenLake", "Wordle", "LightsOut"]),
    stack=st.sampled_from(sorted(WRAPPERS)),
    mode=st.sampled_from(["sync", "sync", "async"]),
    seed=st.integers(0, 2**31),
    turns=st.lists(st.lists(ACTIONS, min_size=3, max_size=3), max_size=9),
)
def test_wrapping_then_vectorising_equals_vectorising_then_wrapping(game, stack, mode, seed, turns):
    """Law 10."""

    def alone():
        env = gym.make(f"TrlEnv/{game}-v0")
        for wrapper in WRAPPERS[stack]:
            env = wrapper(env)
        return env

    how = {"autoreset_mode": AutoresetMode.SAME_STEP}
    envs = TextVectorEnv(gym.make_vec(f"TrlEnv/{game}-v0", 3, mode, vector_kwargs=how, wrappers=WRAPPERS[stack]))
    singles, alive = [alone() for _ in range(3)], [True] * 3
    assert envs.reset(seed=seed)[0] == tuple(env.reset(seed=seed + place)[0] for place, env in enumerate(singles))
    for actions in turns:
        observations, rewards, terminated, truncated, infos = envs.step(actions)
        for place, env in enumerate(singles):
            if alive[place]:
                observation, reward, ended, cut, _ = env.step(actions[place])
                alive[place] = not (ended or cut)
                shown = observations[place] if alive[place] else infos["final_obs"][place]
                assert (shown, rewards[place]) == (observation, reward)
                assert (terminated[place], truncated[place]) == (ended, cut)
    envs.close()


@pytest.mark.parametrize("shape", ["text", "dict", "one of"])
@pytest.mark.parametrize("autoreset", [*AutoresetMode])
def test_a_users_own_texts_are_the_same_in_every_mode(autoreset, shape):
    def played(kind, **how):
        envs = TextVectorEnv(kind([lambda: Words(shape)] * 4, autoreset_mode=autoreset, **how))
        seen = [envs.reset(seed=3, group_size=2)[0]]
        turns = 3 if autoreset is AutoresetMode.DISABLED else 7
        seen += [envs.step(["a b", "é", "", "x" * 20])[:4] for _ in range(turns)]
        envs.close()
        return [str(one) for one in seen]  # looked at only now: what was handed out must not change with later steps

    one_by_one = played(SyncVectorEnv)
    assert played(AsyncVectorEnv) == one_by_one
    assert played(AsyncVectorEnv, shared_memory=False) == one_by_one
    assert "said a b 1" in one_by_one[1]


@pytest.mark.parametrize("how", [{}, {"context": "spawn"}, {"copy": False}, {"shared_memory": False}])
def test_gymnasium_makes_right_vectors_of_a_users_own_texts(how):
    gym.register("Here/Words-v0", f"{__name__}:Words")
    try:
        envs = gym.make_vec("Here/Words-v0", 2, "async", vector_kwargs=how)
        single = gym.make("Here/Words-v0")
    finally:
        del gym.registry["Here/Words-v0"]
    assert tuple(envs.reset(seed=3)[0]) == (single.reset(seed=3)[0], single.reset(seed=4)[0])
    kept = [envs.step(("a", "é"))[0], envs.step(("", "o"))[0]]
    assert tuple(kept[-1]) == ("said  2", "said o 2")
    assert how == {"copy": False} or tuple(kept[0]) == ("said a 1", "said é 1")
    envs.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasium_makes_right_vectors_of_our_ids(mode):
    envs = gym.make_vec("TrlEnv/GuessNumber-v0", 2, vectorization_mode=mode, low=1, high=8)
    observations = tuple(envs.reset(seed=3)[0])
    assert observations == tuple(gym.make("TrlEnv/GuessNumber-v0", low=1, high=8).reset(seed=s)[0] for s in (3, 4))
    assert TextVectorEnv(envs).step(["8", "1"])[0] == ("Lower.", "Higher.")
    envs.close()


def test_members_of_a_group_get_the_same_task():
    """Law 6."""
    envs = TextVectorEnv(gym.make_vec("TrlEnv/Echo-v0", 6))
    words = envs.reset(seed=9, group_size=3)[0]
    assert words == (words[0],) * 3 + (words[3],) * 3
    assert words[3] == gym.make("TrlEnv/Echo-v0").reset(seed=10)[0] != words[0]
    assert envs.reset(seed=[9] * 3 + [10] * 3)[0] == words


def test_what_would_go_wrong_is_refused():
    envs = TextVectorEnv(gym.make_vec("TrlEnv/Echo-v0", 3))
    for options in ({"group_size": 3}, {"group_size": 0, "seed": 1}, {"group_size": 3, "seed": [1, 2, 3]}):
        with pytest.raises(ConfigError):
            envs.reset(**options)
    envs.reset(seed=0)
    for actions in (["1"] * 2, "123"):
        with pytest.raises(ConfigError):
            envs.step(actions)
