"""Wrappers that change what is paid, and limits of turns."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import ClipReward, TransformReward
from hypothesis import example, given, strategies as st

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.spaces import AnyText
from gym_trl.testing import play
from gym_trl.wrappers import (
    DeclareSuccess,
    InvalidActionPenalty,
    ParseAction,
    PotentialShaping,
    StepPenalty,
    SuccessReward,
    TurnLimit,
)
from gym_trl.wrappers.base import instructions_of


def rewards(env: gym.Env[str, Any], *actions: Any) -> list[float]:
    env.reset(options={"instance": 30})
    return [float(env.step(action)[1]) for action in actions]


class Told(gym.Env[str, str]):
    """Answers each action with the next of some infos, and ends with the last; pays a half each time."""

    observation_space = action_space = AnyText(20)

    def __init__(self, *infos: dict[str, Any], truncates: bool = False) -> None:
        self.infos, self.truncates, self.turn = infos, truncates, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "x" * 20, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        over = self.turn == len(self.infos)
        return "x" * 20, 0.5, over and not self.truncates, over, self.infos[self.turn - 1]


def test_success_is_paid_once_and_nothing_else() -> None:
    won = {"success": True}
    assert rewards(SuccessReward(Told({}, won, {}, won, {"success": False})), *"abcde") == [0.0, 1.0, 0.0, 0.0, 0.0]
    assert rewards(SuccessReward(Told({}, {}, truncates=True)), *"ab") == [0.0, 0.0]
    with pytest.raises(ConfigError):
        rewards(SuccessReward(Told({"score": 1, "won": True})), "a")


def test_actions_have_their_price_and_invalid_ones_once() -> None:
    assert rewards(StepPenalty(GuessNumber(), 0.25), "25", "x", "31", "31") == [-0.25, -0.25, 0.75, 0.0]
    assert rewards(InvalidActionPenalty(GuessNumber(), 0.25), "25", "x", "31") == [0.0, -0.25, 1.0]
    outside = InvalidActionPenalty(ParseAction(GuessNumber(), "tag"), 0.25)
    assert rewards(outside, "?", "<action>x</action>", "<action>31</action>") == [-0.25, -0.25, 1.0]
    outside.reset(seed=0)
    assert outside.step("?")[4]["invalid_penalty"] == 0.25


@given(
    st.lists(st.sampled_from(["1", "25", "31", "x", "50"]), min_size=6, max_size=6),
    st.integers(1, 6),
    st.floats(-9, 9),
    st.booleans(),
)
@example(["1"] * 6, 2, -1.0, False)
def test_over_an_episode_a_potential_adds_up_to_less_than_the_start(
    guesses: list[str], turns: int, weight: float, outside: bool
) -> None:
    """Law 15."""

    def total(env: gym.Env[str, str]) -> float:
        answers = iter(guesses)
        return math.fsum(step[2] for step in play(env, lambda _: next(answers), options={"instance": 30})[1:])

    def shaped(env: gym.Env[str, str]) -> gym.Env[str, str]:
        return PotentialShaping(env, lambda game: weight * float(game.turns_left - 10))

    plain = total(TurnLimit(GuessNumber(), turns))
    env = shaped(TurnLimit(GuessNumber(), turns)) if outside else TurnLimit(shaped(GuessNumber()), turns)
    # A limit around it takes back what was paid, and pays nothing for a potential below 0.
    kept = 0.0 if outside or plain or turns == 6 else min(0.0, weight * float(6 - turns - 10))
    assert total(env) == pytest.approx(plain + 4 * weight + kept)


def test_a_potential_that_is_no_finite_number_is_refused() -> None:
    with pytest.raises(ConfigError):
        PotentialShaping(GuessNumber(), lambda env: math.nan).reset()


@pytest.mark.parametrize(
    "wrap",
    [
        StepPenalty,
        InvalidActionPenalty,
        lambda env: SuccessReward(DeclareSuccess(env, 1.0)),
        partial(PotentialShaping, potential=lambda lake: lake.s),
        partial(TurnLimit, turns=6),
    ],
)
def test_environments_of_numbers_can_be_wrapped(wrap: Callable[..., Any]) -> None:
    env = wrap(gym.make("FrozenLake-v1", is_slippery=False))
    env.reset(seed=0)
    for action in (1, 1, 2, 2, 1, 2):
        step = env.step(action)
    assert step[2:4] == (True, False)
    assert env.step(2)[1] == 0.0
    assert instructions_of(env) == instructions_of(env.env)


@pytest.mark.parametrize("outside", [False, True])
def test_gymnasiums_rewards_are_scaled_and_clipped_inside_and_outside_of_ours(outside: bool) -> None:
    for wrap, last in (
        (partial(TransformReward, func=lambda reward: 10 * float(reward)), 10.0),
        (partial(ClipReward, max_reward=0.5), 0.5),
    ):
        made: Any = wrap(ParseAction(GuessNumber(), "plain")) if outside else ParseAction(wrap(GuessNumber()), "plain")
        assert rewards(TurnLimit(made, turns=10), "25", "31", "1") == [0.0, last, 0.0]


@pytest.mark.parametrize(
    ("limit", "action", "ends"),
    [
        (partial(TurnLimit, turns=2), "2", (False, True, "turn_limit")),
        (partial(TurnLimit, turns=2), "31", (True, False, None)),
        (lambda env: TurnLimit(gym.wrappers.TimeLimit(env, 2), turns=5), "2", (False, True, None)),
        (lambda env: TurnLimit(gym.wrappers.TimeLimit(env, 2), turns=5), "31", (True, False, None)),
    ],
)
def test_the_last_turn_truncates_unless_the_episode_ends_by_itself(limit: Any, action: str, ends: Any) -> None:
    env = limit(GuessNumber())
    env.reset(options={"instance": 30})
    assert env.step("1")[2:4] == (False, False)
    _, _, terminated, truncated, info = env.step(action)
    assert (terminated, truncated, info.get("stop_reason")) == ends
