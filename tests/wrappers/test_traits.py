"""Traits: a value of another type is refused by name, and wrappers keep what is declared inside."""

import gc
from contextlib import closing
from dataclasses import fields, replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.wrapper_arguments import Rewrites

import gym_trl.wrappers.traits as module
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.make import ExecutorConfig
from gym_trl.grpo.spec import GymSpec
from gym_trl.rollout import run
from gym_trl.spaces import AnyText
from gym_trl.types import EnvFailure, Task
from gym_trl.vector import TextVectorEnv
from gym_trl.wrappers import Levels, ParseAction, StepPenalty, TurnLimit, as_text
from gym_trl.wrappers.traits import (
    EnvTraits,
    action_tools_of,
    baselines_of,
    constant_action_of,
    declared_instructions,
    observer_of,
    optimal_return,
    optimal_success,
    random_policy_of,
    solver_of,
    traits,
)

RIGHT = {
    "declares_success": st.booleans() | st.none(),
    "num_instances": st.integers(1, 99) | st.none(),
    "num_seats": st.integers(1, 4),
    "zero_sum": st.booleans(),
    "opponents": st.lists(st.text(max_size=3), max_size=2).map(tuple),
    "preferred_executor": st.sampled_from(["inline", "thread"]) | st.none(),
    "append_only": st.booleans() | st.none(),
    "reads_responses": st.booleans(),
}
ANYTHING = st.sampled_from(
    ["yes", 1.5, -1, b"x", [1], {"a": "b"}, {1: 2.0}, object(), int, ("a", 1), {"x"}, float("nan")]
)
OTHERS: dict[str, tuple[Any, Any]] = {
    "instructions": (declared_instructions, ["be brief"]),
    "solver": (solver_of, "minimax"),
    "random_policy": (random_policy_of, 3),
    "observe": (observer_of, "seat 0"),
    "action_tools": (action_tools_of, 3),
    "baselines": (baselines_of, ["solver"]),
    "optimal_success": (optimal_success, "high"),
    "optimal_return": (optimal_return, float("inf")),
    "constant_action": (constant_action_of, 0),
}


class Plain(gym.Env):
    observation_space, action_space = AnyText(), AnyText()

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)

    def reset(self, *, seed=None, options=None):
        return "Go.", {}

    def step(self, action):
        return "On.", 0.0, False, False, {}


def test_every_trait_is_tested():
    assert RIGHT.keys() == {one.name for one in fields(EnvTraits)}


@given(st.fixed_dictionaries({}, optional=RIGHT))
@examples(60)
def test_what_is_declared_is_read_and_wrapping_keeps_it(given):
    env = Plain(**given)
    assert traits(env) == EnvTraits(**given)
    stack = TurnLimit(StepPenalty(gym.wrappers.TimeLimit(env, 9), penalty=0.5), 3)
    assert traits(stack) == EnvTraits(**given)
    assert traits(ParseAction(stack)) == replace(EnvTraits(**given), reads_responses=True)


@given(st.sampled_from(sorted(RIGHT)), ANYTHING, st.booleans())
@examples(100)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_attribute(name, value, outside):
    try:
        EnvTraits(**{name: value})
    except ConfigError as error:
        message = str(error)
    else:
        return
    if value is None:
        return
    assert message.startswith(f"{name} must be ")
    env = gym.wrappers.TimeLimit(Plain(), 3)
    setattr(env if outside else env.unwrapped, name, value)
    with pytest.raises(ConfigError) as raised:
        traits(env)
    assert str(raised.value).endswith(message)
    assert "Plain" in str(raised.value)


@pytest.mark.parametrize("name", OTHERS)
def test_so_is_one_that_is_read_when_it_is_asked_for(name):
    read, wrong = OTHERS[name]
    assert not read(Plain())
    with pytest.raises(ConfigError, match=f"Plain.*: {name} must be "):
        read(Plain(**{name: wrong}))


def test_none_declares_nothing():
    assert traits(Plain(opponents=None, num_seats=None, zero_sum=None)) == EnvTraits()


def test_an_environment_without_tasks_is_refused():
    with pytest.raises(ConfigError, match="num_instances must be an integer of at least 1, got 0"):
        EnvSpec(lambda: Plain(num_instances=0)).probe(ExecutorConfig())


def test_a_wrong_type_ends_a_rollout_with_its_name():
    with InlinePool(lambda _: Plain(declares_success="yes")) as pool:
        failure = run(pool.execute("0", Task("Plain", 0)))
        assert isinstance(failure, EnvFailure)
        with pytest.raises(ConfigError, match="declares_success must be True or False, got 'yes'"):
            failure.raise_mistake()
    with pytest.raises(ConfigError, match="num_instances must be an integer of at least 1, got 'many'"):
        EnvSpec(lambda: Plain(num_instances="many")).probe(ExecutorConfig())


def test_numbers_of_numpy_are_numbers():
    env = Plain(declares_success=np.True_, num_instances=np.int64(3))
    assert traits(env) == EnvTraits(declares_success=True, num_instances=3)
    assert type(traits(env).num_instances) is int
    assert optimal_success(Plain(optimal_success=np.float64(0.5))) == 0.5


def test_traits_are_read_once():
    class Counting(Plain):
        read = 0

        @property
        def num_instances(self):
            type(self).read += 1
            return 5

    env = TurnLimit(Counting(), 3)
    assert [traits(env).num_instances for _ in range(9)] == [5] * 9
    assert Counting.read == 1


def test_another_environment_inside_is_read_again():
    env = gym.Wrapper(Plain(num_seats=1))
    assert traits(env).num_seats == 1
    env.env = Plain(num_seats=3)
    assert traits(env).num_seats == 3
    levels = Levels(gym.make("TrlEnv/GuessNumber-v0"), [{"high": 10}, {"high": 1000}])
    assert [(levels.reset(options={"level": level}), traits(levels).num_instances)[1] for level in (0, 1, 0)] == [
        10,
        1000,
        10,
    ]


def test_what_was_read_does_not_keep_an_environment_alive():
    before = len(module._READ)
    for _ in range(20):
        traits(TurnLimit(Plain(), 3))
    gc.collect()
    assert len(module._READ) <= before


def test_an_environment_that_cannot_be_hashed_has_traits():
    class Equal(Plain):
        __hash__ = None  # type: ignore[assignment]  # as a data class has it

        def __eq__(self, other):
            return True

    assert [traits(Equal(num_seats=seats)).num_seats for seats in (1, 2, 3)] == [1, 2, 3]


def test_what_is_slow_or_may_fail_is_read_only_when_it_is_asked_for():
    class Slow(Plain):
        @property
        def optimal_success(self):
            raise RuntimeError("it takes an hour")

        instructions = solver = random_policy = optimal_return = baselines = optimal_success

    assert traits(as_text(Slow())) == EnvTraits()


def test_the_outermost_layer_decides():
    class Says(gym.Wrapper):
        def __init__(self, env, **attributes):
            super().__init__(env)
            vars(self).update(attributes)

    inside = Plain(instructions="in", num_seats=2, declares_success=True)
    assert traits(Says(inside, num_seats=3)).num_seats == 3
    assert declared_instructions(Says(inside, instructions="out")) == "out"
    assert traits(Says(inside, declares_success=False)).declares_success is False
    assert traits(Rewrites(Plain())).append_only is False


def test_a_wrapper_that_rewrites_the_past_is_refused_with_the_reason():
    with pytest.raises(ConfigError, match="A transcript keeps the past by itself: leave the wrapper out"):
        GymSpec("TrlEnv/GuessNumber-v0", wrappers=[Rewrites])


def test_vectorising_keeps_what_is_declared():
    with closing(TextVectorEnv.make("TrlEnv/GuessNumber-v0", 2)) as vector:
        assert (
            vector.unwrapped.get_attr("num_instances") == (traits(gym.make("TrlEnv/GuessNumber-v0")).num_instances,) * 2
        )
