"""State keys, from an environment and its wrappers to the episode that a trainer receives."""

from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.kuhn_poker import KuhnPoker
from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError
from gym_trl.executors import make_pool
from gym_trl.rollout import Episode, rollout, run
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import StopReason, Task
from gym_trl.wrappers import (
    InvalidActionPenalty,
    Opponent,
    ParseAction,
    PotentialShaping,
    StateKey,
    SuccessReward,
    Tools,
    TurnLimit,
)
from gym_trl.wrappers.mcp_server import MCPServer
from gym_trl.wrappers.state_key import as_text_key


class Line(gym.Env[str, str]):
    """Walk along a line; the position is the key, unless another one is given."""

    metadata = {"render_modes": [], "markov_state_key": True}  # noqa: RUF012 -- as gym.Env has it
    observation_space = action_space = AnyText()

    def __init__(self, key: Any = int, markov: bool = True) -> None:
        self._key, self.position = key, 0
        self.metadata = {"render_modes": [], "markov_state_key": markov}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Return to the start."""
        super().reset(seed=seed)
        self.position = 0
        return "0", {}

    @property
    def state_key(self) -> Any:
        """Key of the position."""
        return self._key(self.position)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Go one step."""
        if action == "burst":
            raise ZeroDivisionError("burst")
        self.position += {"left": -1, "right": 1}.get(action, 0)
        return str(self.position), 0.0, self.position == 3, False, {}


class Nameless(Line):
    """The same without a key."""

    @property
    def state_key(self) -> Any:
        """Nobody knows it."""
        raise AttributeError


def played(spec: EnvSpec, *responses: str, executor: str = "inline") -> Episode:
    """Return an episode in which a model gives these responses, and the last of them from then on."""
    [env_id], chat = spec.weights, ByteChat()
    answers = iter(responses)
    engine = ScriptedEngine(lambda request: chat.say(next(answers, responses[-1])))
    with make_pool(spec.make, executor=executor) as pool:
        [[episode]] = run(rollout([Task(env_id, 7)], pool=pool, engine=engine, chat=chat))
    return episode


def keys(episode: Episode) -> tuple[str, ...]:
    return tuple(turn.state.key for turn in episode.turns)


auto: Any = partial(EnvSpec, state_keys=True, action_format=None)


def test_an_episode_has_a_key_before_each_turn() -> None:
    result = played(auto(Line, turn_limit=9), "right", "left", "right", "right", "right")
    assert keys(result) == ("(0, 9)", "(1, 8)", "(0, 7)", "(1, 6)", "(2, 5)")
    assert result.reset.markov_keys


def test_no_key_is_computed_if_nobody_asks() -> None:
    result = played(EnvSpec(partial(Line, key=lambda position: [position]), action_format=None), "right")
    assert result.stop_reason is StopReason.ENDED
    assert (set(keys(result)), result.reset.markov_keys) == ({""}, False)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_every_executor_brings_the_same_keys(executor: str) -> None:
    for spec in (auto(Line, turn_limit=4), auto(Nameless, turn_limit=4)):
        here, there = (played(spec, "right", "left", executor=where) for where in ("inline", executor))
        assert keys(here) == keys(there)
        assert here.reset.markov_keys == there.reset.markov_keys


def test_a_turn_limit_makes_time_part_of_a_markov_key_and_not_of_another() -> None:
    markov, not_markov = (auto(partial(Line, markov=markov), turn_limit=3) for markov in (True, False))
    assert keys(played(markov, "left", "right", "stay")) == ("(0, 3)", "(-1, 2)", "(0, 1)")
    assert keys(played(not_markov, "left", "right", "stay")) == ("0", "-1", "0")


def test_an_unreadable_response_leaves_the_state_and_costs_a_turn() -> None:
    spec = EnvSpec(Line, state_keys=True, turn_limit=3)
    result = played(spec, "<action>right</action>", "what?", "<action>left</action>")
    assert keys(result) == ("(0, 3)", "(1, 2)", "(1, 1)")


def test_a_turn_that_crashes_has_a_key_before_it() -> None:
    result = played(auto(Line, turn_limit=9), "left", "burst")
    assert result.stop_reason is StopReason.CRASHED
    assert keys(result) == ("(0, 9)", "(-1, 8)")


def test_the_history_is_the_key_of_an_environment_without_one() -> None:
    one, same, other = (played(auto(Nameless, turn_limit=3), *said) for said in (("left",), ("left",), ("right",)))
    assert keys(one) == keys(same)
    assert not one.reset.markov_keys
    assert keys(one)[0] == keys(other)[0]
    assert not set(keys(one)[1:]) & set(keys(other)[1:])
    unreadable = (played(EnvSpec(Nameless, state_keys=True, turn_limit=3), said) for said in ("what?", "why?"))
    assert len(set(map(keys, unreadable))) == 1  # the environment has seen none of it
    env, tasks = StateKey(Nameless()), [(1, {}), (2, {}), (1, {"level": 2})]
    assert len({env.reset(seed=seed, options=options) and env.state.key for seed, options in tasks}) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: auto(partial(Line, key=lambda position: [position])).probe("inline"),
        lambda: played(auto(partial(Line, key=lambda position: [position] if position == 2 else position)), "right"),
    ],
    ids=["not hashable", "not hashable later"],
)
def test_a_key_that_cannot_be_is_refused(make: Callable[[], Any]) -> None:
    """Law 22."""
    with pytest.raises(ConfigError):
        make()


class Colour(Enum):
    """Something that has no canonical text."""

    RED = 1


@pytest.mark.parametrize(
    "key", [Colour.RED, {"a": 1}, [1], (1, [2]), object(), np.zeros(3), {1, 2}, frozenset({1}), b"1"]
)
def test_the_text_of_a_key_is_refused_for_what_differs_between_processes_or_is_not_hashable(key: Any) -> None:
    with pytest.raises(ConfigError):
        as_text_key(key)


plain = st.recursive(
    st.integers() | st.text() | st.booleans() | st.none() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
)


@given(plain, plain)
def test_the_text_of_a_key_is_equal_if_and_only_if_keys_are_written_alike(one: Any, other: Any) -> None:
    assert (as_text_key(one) == as_text_key(other)) == (repr(one) == repr(other))
    assert len(as_text_key(one)) <= 48


def test_a_wrapper_adds_what_it_keeps_and_the_turns_that_are_left() -> None:
    env = StateKey(SuccessReward(TurnLimit(ParseAction(Line(), "plain", end_after=3), 5)))
    env.reset(seed=0)
    assert env.state == ("((0, False, 0), 5)", "(0, False, 0)", 5)
    env.step("left")
    assert env.state == ("((-1, False, 0), 4)", "(-1, False, 0)", 4)


def test_a_wrapper_of_gymnasium_that_counts_time_adds_it() -> None:
    env = StateKey(gym.wrappers.TimeLimit(Line(), 4))
    env.reset(seed=0)
    assert env.state == ("(0, 4)", "0", 4)


@pytest.mark.parametrize(
    ("wrap", "left"),
    [
        (lambda env: TurnLimit(gym.wrappers.TimeLimit(env, 9), 4), 4),  # one of them never applies
        (lambda env: TurnLimit(gym.wrappers.TimeLimit(env, 4), 9), None),  # both do, if a response is unreadable
        (lambda env: InvalidActionPenalty(TurnLimit(env, 4)), 4),
        (lambda env: PotentialShaping(TurnLimit(env, 4), lambda line: line.position), None),
        (lambda env: TurnLimit(PotentialShaping(env, lambda line: line.position), 4), None),
    ],
)
def test_a_wrapper_hides_the_place_if_there_are_several_limits_or_an_end_by_one_pays(wrap: Any, left: Any) -> None:
    env = StateKey(wrap(Line()))
    env.reset(seed=0)
    assert (env.state.turns_left, env.state.place) == (left, "0" if left else "")
    assert env.markov_state_key


@pytest.mark.parametrize(
    ("wrap", "markov"),
    [
        (ParseAction, True),
        (lambda env: Tools(env, [max_of]), True),
        (lambda env: Tools(env, [MCPServer("python")]), False),
        (lambda env: Opponent(KuhnPoker(), lambda seed: lambda seen: "pass"), False),
        (lambda env: Opponent(KuhnPoker()), True),
        (lambda env: gym.wrappers.TransformReward(env, float), True),
        (lambda env: gym.wrappers.StickyAction(env, 0.5), False),
    ],
)
def test_a_wrapper_with_a_state_that_is_unknown_takes_the_promise_back(wrap: Any, markov: bool) -> None:
    env = StateKey(wrap(Line()))
    env.reset(seed=0)
    assert env.markov_state_key is markov


def max_of(one: int, other: int) -> int:
    """Return the larger number."""
    return max(one, other)
