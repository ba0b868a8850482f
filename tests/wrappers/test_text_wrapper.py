"""Answers of an environment's layers: neutral where there is none, and refused where it is none."""

from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

import gym_trl.wrappers
from gym_trl.errors import ConfigError
from gym_trl.wrappers import ParseAction, PotentialShaping, StateKey, StepPenalty, TurnLimit
from gym_trl.wrappers.settlement import settlement
from gym_trl.wrappers.text_wrapper import TextWrapper
from gym_trl.wrappers.traits import LayerTraits, layer_traits

STACK = {
    "step penalty": lambda env: StepPenalty(env, penalty=0.25),
    "shaping": lambda env: PotentialShaping(env, potential=lambda game: 0.5),
    "parse": lambda env: ParseAction(env, "plain", penalty=0.5, end_after=3),
    "limit": lambda env: TurnLimit(env, 4),
    "time limit": lambda env: gym.wrappers.TimeLimit(env, 3),
}


class Plain(gym.Wrapper):
    """Wrapper of a user, which tells nothing."""


class Text(TextWrapper):
    """Wrapper of a user with the base class, which tells nothing else."""


def told(env, actions):
    """Return what an episode is paid and what each of its states owes and is called."""
    env = StateKey(env)
    env.reset(options={"instance": 30})
    said: list[tuple[Any, ...]] = [(settlement(env), env.state)]
    for action in actions:
        _, reward, terminated, truncated, _ = env.step(action)
        said.append((float(reward), terminated, truncated, settlement(env), env.state))
    return said


@given(
    st.lists(st.sampled_from(sorted(STACK)), max_size=3),
    st.lists(st.sampled_from(["25", "40", "what?"]), max_size=4),
    st.integers(0, 3),
    st.sampled_from(["success", "shaped"]),
)
@examples(60)
def test_a_wrapper_that_tells_nothing_is_neutral_wherever_it_is(names, actions, place, reward):
    def stack(*, extra):
        env = gym.make("TrlEnv/GuessNumber-v0", reward=reward)
        for number, name in enumerate([*names, None]):
            if extra is not None and number == min(place, len(names)):
                env = extra(env)
            env = env if name is None else STACK[name](env)
        return env

    assert told(stack(extra=Text), actions) == told(stack(extra=None), actions)
    plain = [(*one[:-1],) for one in told(stack(extra=Plain), actions)]
    assert plain == [(*one[:-1],) for one in told(stack(extra=None), actions)]


def test_the_base_class_declares_no_state_and_a_plain_wrapper_nothing():
    env = gym.make("TrlEnv/GuessNumber-v0")
    assert layer_traits(Plain(env)) == LayerTraits()
    assert layer_traits(Text(env)) == LayerTraits(owes=False, settles_turns=False, state_part=True)


def test_every_wrapper_here_has_the_base_class():
    classes = [one for one in vars(gym_trl.wrappers).values() if isinstance(one, type)]
    wrappers = [one for one in classes if issubclass(one, gym.Wrapper)]
    assert len(wrappers) > 15
    assert [one for one in wrappers if not issubclass(one, TextWrapper)] == []


def test_a_class_that_defines_settle_owes_and_counts_turns():
    env = gym.make("TrlEnv/GuessNumber-v0")

    class Settles(TextWrapper):
        def settle(self, inside, turns):
            return inside - turns

    class Constant(Settles):
        settles_turns = False

        def settle(self, inside, turns):
            return inside - 1.0

    class Nothing(Constant):
        owes = False

        def settle(self, inside, turns):
            return inside

    said = [(one.owes, one.settles_turns) for one in map(layer_traits, (Settles(env), Constant(env), Nothing(env)))]
    assert said == [(True, True), (True, False), (False, True)]


@pytest.mark.parametrize(
    ("name", "value"),
    [("actions_per_turn", 0), ("limit_only_ends", "yes"), ("swaps_env", 1), ("settle", -1.0), ("settles_turns", "no")],
)
def test_no_answer_is_refused_by_name(name, value):
    env = Plain(gym.make("TrlEnv/GuessNumber-v0"))
    setattr(env, name, value)
    env.reset(seed=0)
    with pytest.raises(ConfigError, match=f"Plain.*: {name} must be "):
        settlement(env)
