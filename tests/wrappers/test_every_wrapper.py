"""The rules that hold for every wrapper that is exported.

1. Wrapping then vectorising equals vectorising then wrapping, and both equal playing alone.
2. ``gym.make(env.spec)`` rebuilds the stack, also from the JSON of the spec.
3. A wrapped episode pickles between any two steps and goes on the same.
4. Terminated and truncated never come together, and after the end nothing changes and nothing is earned.
5. Any response is data, and what is observed is in the space.
6. Arguments that cannot work, environments without text and steps that are none are refused.

Laws 7, 10 and 22, and what every episode keeps.
"""

import pickle
from collections.abc import Callable
from functools import partial
from math import isfinite
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from hypothesis import given, strategies as st
from support.lanes import examples

import gym_trl.wrappers
from gym_trl.errors import ActionTypeError, ConfigError, NotTextError
from gym_trl.testing import play

ENV_ID = "TrlEnv/GuessNumber-v0"
GAMES = {"Opponent": "TrlEnv/KuhnPoker-v0", "Seats": "TrlEnv/KuhnPoker-v0"}
"""Environments of the wrappers for several seats."""
ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "AdmissibleActions": [{}],
    "DeclareSuccess": [{"success": 0.5}, {"success": "info"}],
    "Instructions": [{"text": ""}, {"text": "Think."}],
    "InvalidActionPenalty": [{}, {"penalty": 0.5}],
    "Opponent": [{}, {"seat": None}],
    "ParseAction": [{}, {"format": "boxed", "end_after": 2}],
    "PotentialShaping": [{"potential": "support.games:guesses_made"}],
    "Seats": [{}],
    "StateKey": [{}],
    "StepPenalty": [{}, {"penalty": 0.5}],
    "SuccessReward": [{}],
    "TextAction": [{}],
    "TextObservation": [{}],
    "Tools": [
        {"tools": ["support.games:middle"]},
        {"tools": ["support.games:middle"], "max_calls": 1, "max_length": 2},
    ],
    "TurnLimit": [{"turns": 3}],
    "as_text": [{}],
}
CALL = '<tool>{"name": "middle", "arguments": {"low": 1000, "high": 3000}}</tool>'
ANSWERS = [
    CALL,
    "25",
    "x\n12",
    "<action>25</action>",
    r"\boxed{12}",
    "x",
    "<action>x</action>",
    "30",
    "<action>31</action>",
    CALL,
]
every_wrapper = pytest.mark.parametrize(
    ("wrap", "env_id"),
    [
        pytest.param(
            partial(getattr(gym_trl.wrappers, name), **arguments), GAMES.get(name, ENV_ID), id=f"{name}-{index}"
        )
        for name in gym_trl.wrappers.__all__
        for index, arguments in enumerate(ARGUMENTS[name])
    ],
)
Wrap = Callable[..., gym.Wrapper[str, str, str, str]]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    *(
        (name, {**ARGUMENTS[name][0], argument: value})
        for name, argument in (("Tools", "max_calls"), ("Tools", "max_length"), ("TurnLimit", "turns"))
        for value in (0, -1, 1.5, "3", True, None)
    ),
    ("Instructions", {"text": None}),
    ("Opponent", {}),
    ("ParseAction", {"format": "xml"}),
    ("ParseAction", {"end_after": 0}),
    ("DeclareSuccess", {"success": True}),
    ("DeclareSuccess", {"success": "nowhere"}),
    *((name, {"penalty": -0.1}) for name in ("StepPenalty", "InvalidActionPenalty")),
    *((name, {"penalty": float("nan")}) for name in ("StepPenalty", "InvalidActionPenalty")),
    *(("PotentialShaping", {"potential": name}) for name in ("nowhere", "no_module:at_all", "math:nothing", 3)),
    ("Seats", {}),
    ("Tools", {"tools": []}),
]
READS_TEXT = {"ParseAction", "TextAction", "Tools"}
NEEDS_TEXT = (READS_TEXT - {"TextAction"}) | {"AdmissibleActions"}


def trajectory(env: gym.Env[str, str], seed: int) -> list[tuple[Any, ...]]:
    answers = iter(ANSWERS * 10)
    return play(env, lambda _: next(answers), seed=seed)


@every_wrapper
@pytest.mark.parametrize("how", ["make_vec", "sync", "async"])
def test_wrapping_then_vectorising_equals_vectorising_then_wrapping(wrap: Wrap, env_id: str, how: str) -> None:
    alone = [trajectory(wrap(gym.make(env_id)), seed) for seed in (5, 6)]
    makers = [lambda: wrap(gym.make(env_id))] * 2
    if how == "make_vec":
        envs: Any = gym.make_vec(env_id, 2, vectorization_mode="sync", wrappers=[wrap])
    else:
        envs = SyncVectorEnv(makers) if how == "sync" else AsyncVectorEnv(makers, context="fork")
    try:
        assert list(envs.reset(seed=5)[0]) == [steps[0][0] for steps in alone]
        for turn in range(1, min(map(len, alone))):
            step = envs.step(tuple(steps[turn][0] for steps in alone))
            for field in range(4):
                assert list(step[field]) == [steps[turn][field + 1] for steps in alone]
            assert list(step[4]["action_valid"]) == [steps[turn][5]["action_valid"] for steps in alone]
    finally:
        envs.close()


@every_wrapper
def test_a_spec_rebuilds_the_stack(wrap: Wrap, env_id: str) -> None:
    env = gym_trl.wrappers.TurnLimit(wrap(gym.make(env_id)), turns=10)
    assert env.spec is not None
    for spec in (env.spec, EnvSpec.from_json(env.spec.to_json())):
        again: Any = gym.make(spec)
        assert again.spec == env.spec
        assert again.get_wrapper_attr("instructions") == env.get_wrapper_attr("instructions")
        assert trajectory(again, 3) == trajectory(env, 3)


@every_wrapper
def test_an_episode_pickles_between_any_two_steps(wrap: Wrap, env_id: str) -> None:
    env = wrap(gym.make(env_id))
    steps = trajectory(env, 7)
    again = wrap(gym.make(env_id))
    replayed: list[tuple[Any, ...]] = [again.reset(seed=7)]
    for action, *_ in steps[1:]:
        again = pickle.loads(pickle.dumps(again))
        replayed.append((action, *again.step(action)))
    assert replayed == steps


@every_wrapper
def test_an_episode_ends_once(wrap: Wrap, env_id: str) -> None:
    for seed in range(10):
        env = wrap(gym.make(env_id))
        steps = trajectory(env, seed)
        assert not any(terminated and truncated for _, _, _, terminated, truncated, _ in steps[1:])
        _, observation, _, *rest = steps[-1]
        for answer in ANSWERS:
            assert env.step(answer) == (observation, 0.0, *rest)


@every_wrapper
def test_wrappers_can_be_stacked_in_any_order(wrap: Wrap, env_id: str) -> None:
    others = (partial(gym_trl.wrappers.TurnLimit, turns=5), partial(gym_trl.wrappers.ParseAction, end_after=2))
    for other in others:
        outside = [other(wrap(gym.make(env_id)))]
        for env in outside if env_id != ENV_ID else [*outside, wrap(other(gym.make(env_id)))]:
            assert any(trajectory(env, 1)[-1][3:5])


@every_wrapper
@given(response=st.text(st.characters(codec=None, exclude_categories=())))
@examples(20)
def test_any_response_is_data(wrap: Wrap, env_id: str, response: str) -> None:
    env = wrap(gym.make(env_id))
    env.reset(seed=0)
    for answer in (response, f"<tool>{response}", f"<action>{response}</action>"):
        observation, reward, _, _, info = env.step(answer)
        assert observation in env.observation_space
        assert isfinite(reward)
        assert isinstance(info["action_valid"], bool)


@pytest.mark.parametrize(("name", "arguments"), REFUSED)
def test_arguments_that_cannot_work_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        getattr(gym_trl.wrappers, name)(gym.make(ENV_ID), **arguments)


@pytest.mark.parametrize("name", sorted(NEEDS_TEXT))
def test_an_environment_without_text_is_refused(name: str) -> None:
    with pytest.raises(NotTextError):
        getattr(gym_trl.wrappers, name)(gym.make("FrozenLake-v1"), **ARGUMENTS[name][0])


@pytest.mark.parametrize("name", sorted(READS_TEXT))
def test_a_step_needs_a_text(name: str) -> None:
    env = getattr(gym_trl.wrappers, name)(gym.make(ENV_ID), **ARGUMENTS[name][0])
    env.reset(seed=0)
    with pytest.raises(ActionTypeError):
        env.step(b"31")
