"""Law 22: functions that a user gives for an environment are tried by one reset when a specification is made."""

import random
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from support.failing_env import EXCEPTIONS, MALFORMED, FailingEnv
from support.lanes import examples

import gym_trl
from gym_trl import GymSpec
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.evaluation import evaluate

assert gym_trl


class Counts(gym.Env):
    """Counts its resets and steps, and says which actions it was given."""

    observation_space: Any = spaces.Discrete(9)
    action_space: Any = spaces.Discrete(3)
    shown: Any = 4
    made: list[Any] = []  # noqa: RUF012 -- of all instances

    def __init__(self):
        self.made.append(self)
        self.calls: list[Any] = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.calls.append("reset")
        return self.shown, {"board": "empty"}

    def step(self, action):
        self.calls.append(action)
        return self.shown, 1.0, len(self.calls) > 3, False, {"board": "full"}


class Dicts(Counts):
    """The same with named parts."""

    observation_space = spaces.Dict(place=spaces.Discrete(9), speed=spaces.Box(-1, 1, (2,)))
    action_space = spaces.Dict(go=spaces.Discrete(3))

    @property
    def shown(self):
        return {"place": 2, "speed": np.zeros(2, np.float32)}


class Texts(Counts):
    """The same with texts, whose actions it lists."""

    observation_space = action_space = spaces.Text(99)
    shown = "You are in a room."

    def random_policy(self, seed):
        return lambda observation: "go north"


class Shell(Counts):
    """Texts of which nothing says that they are actions."""

    observation_space = action_space = spaces.Text(99)
    shown = "$"


ENVS = st.sampled_from([Counts, Dicts, Texts, Shell])


def make(env, **options):
    Counts.made.clear()
    return EnvSpec(env, **options).probe()


NOT_TEXT = st.one_of(st.none(), st.integers(), st.binary(max_size=3), st.lists(st.text(max_size=3), max_size=2))
NOT_BOOL = st.one_of(st.integers(), st.floats(), st.text(max_size=3), st.lists(st.booleans(), max_size=2))


class NoAction:
    """Value that is in no space."""


@examples(40)
@given(ENVS, NOT_TEXT, NOT_BOOL)
def test_a_function_that_returns_something_else_is_named(env, no_text, no_bool):
    wrong = {
        "observe": (lambda observation, info: no_text, "observe must return text, got "),
        "act": (lambda text: NoAction(), "act must return an action of "),
        "success": (lambda info, total: no_bool, "success must return True, False or None, got "),
    }
    for name, (function, message) in wrong.items():
        with pytest.raises(ConfigError) as raised:
            make(env, **{name: function})
        assert str(raised.value).startswith(message)


ARITIES = st.sampled_from([lambda: None, lambda a, b, c: None, lambda *, keyword: None])


@examples(20)
@given(ENVS, ARITIES, st.sampled_from(["observe", "act", "success", "wrappers"]))
def test_a_function_of_other_arguments_is_named_in_every_executor(env, function, name):
    wrong: Any = [function] if name == "wrappers" else function
    for executor in ("inline", "thread", "process"):
        with pytest.raises(ConfigError, match=rf"^{name}(\[0\])? must take \(.*\), got <function .*: "):
            EnvSpec(env, **{name: wrong}).probe(executor, step_timeout=None if executor == "inline" else 9)


@pytest.mark.parametrize("env", [Counts, Dicts, Texts])
def test_an_observe_that_raises_is_named(env):
    with pytest.raises(ConfigError, match=r"^observe raised KeyError"):
        make(env, observe=lambda observation, info: info["score"])


SOUND: dict[str, Any] = {
    "observe": lambda observation, info: f"{info['board']} {observation}",
    "success": lambda info, total: np.bool_(total > 1),
}


@examples(30)
@given(
    ENVS, st.sets(st.sampled_from(sorted(SOUND)), min_size=1), st.sampled_from(["tag", "plain", "regex:(.*)z", None])
)
def test_sound_functions_pass_with_one_instance_that_is_not_stepped(env, names, action_format):
    class Chosen(env):  # type: ignore[misc,valid-type]
        preferred_executor = "inline"

    assert make(Chosen, action_format=action_format, **{name: SOUND[name] for name in names})
    [only] = Counts.made
    assert set(only.calls) == {"reset"}


@examples(40)
@given(
    st.sampled_from(["reset", "step", "render"]),
    st.sampled_from([*EXCEPTIONS, *MALFORMED]),
    st.sampled_from(
        [
            ("observe", lambda observation, info: str(observation)),
            ("act", str),
            ("success", lambda info, total: True),
        ]
    ),
)
def test_what_the_environment_raises_is_left_to_the_first_rollout(place, failure, option):
    name, function = option
    assert EnvSpec(partial(FailingEnv, place, failure, share=1), **{name: function}).probe("inline")


def test_a_try_leaves_the_global_generators_and_the_seeds_of_tasks_as_they_are():
    class Draws(Counts):
        def reset(self, *, seed=None, options=None):
            random.random()
            np.random.rand()
            return super().reset(seed=seed, options=options)

    random.seed(5)
    np.random.seed(5)
    spec = GymSpec(Draws, num_tasks=3, num_eval_tasks=1, executor="inline", **SOUND)
    assert (random.random(), np.random.rand()) == (random.Random(5).random(), np.random.RandomState(5).rand())
    plain = GymSpec(Draws, num_tasks=3, num_eval_tasks=1, executor="inline")
    assert list(spec.tasks("train")) == list(plain.tasks("train"))


def test_evaluations_try_functions_before_the_first_episode():
    with pytest.raises(ConfigError, match=r"^observe must return text"):
        evaluate(Counts, model="random", episodes=2, observe=lambda observation, info: 7)
