"""The wrappers that change what is paid, and Gymnasium's own beside them."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.wrappers import ClipReward, TransformReward
from hypothesis import given, strategies as st

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.text_env import TextEnv
from gym_trl.errors import ConfigError
from gym_trl.evaluation.play import optimum
from gym_trl.spaces import AnyText
from gym_trl.testing import play
from gym_trl.types import Policy
from gym_trl.wrappers import (
    Discount,
    InvalidActionPenalty,
    ParseAction,
    PotentialShaping,
    StepPenalty,
    SuccessReward,
    TurnLimit,
)


def rewards(env: gym.Env[str, Any], *actions: Any) -> list[float]:
    env.reset(options={"instance": 30})
    return [float(env.step(action)[1]) for action in actions]


class Told(gym.Env[str, str]):
    """Answers each action with the next of some infos, and ends with the last; pays a half each time."""

    observation_space = AnyText(20)
    action_space = AnyText(20)

    def __init__(self, *infos: dict[str, Any], start: dict[str, Any] | None = None, truncates: bool = False) -> None:
        self.infos, self.start, self.truncates = infos, start or {}, truncates
        self.turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.turn = 0
        return "go", self.start

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        over = self.turn == len(self.infos)
        return "on", 0.5, over and not self.truncates, over, self.infos[self.turn - 1]


def test_success_is_paid_and_nothing_else() -> None:
    env = SuccessReward(GuessNumber(reward="shaped"))
    assert rewards(env, "25", "x", "31", "31") == [0.0, 0.0, 1.0, 0.0]
    assert rewards(env, *"123456") == [0.0] * 6


def test_success_is_paid_once_also_where_the_episode_goes_on() -> None:
    won = {"success": True}
    assert rewards(SuccessReward(Told(won, {}, won, {"success": False})), *"abcd") == [1.0, 0.0, 0.0, 0.0]
    assert rewards(SuccessReward(Told(won, won)), *"ab") == [1.0, 0.0]


def test_an_end_without_declared_success_is_an_error() -> None:
    env = SuccessReward(Told({"score": 1, "won": True}))
    with pytest.raises(ConfigError, match=r"ended without info\['success'\], and has \['score', 'won'\]"):
        rewards(env, "a")


def test_an_episode_that_is_cut_off_is_no_success() -> None:
    assert rewards(SuccessReward(Told({}, {}, truncates=True)), *"ab") == [0.0, 0.0]


def test_every_action_has_its_price() -> None:
    assert rewards(StepPenalty(GuessNumber(), 0.25), "25", "x", "31", "31") == [-0.25, -0.25, 0.75, 0.0]


def test_invalid_actions_have_a_price() -> None:
    assert rewards(InvalidActionPenalty(GuessNumber(), 0.25), "25", "x", "31") == [0.0, -0.25, 1.0]
    inside = ParseAction(InvalidActionPenalty(GuessNumber(), 0.25), format="plain")
    assert rewards(inside, "25", "x", "31") == [0.0, -0.25, 1.0]


def test_an_unlisted_action_is_invalid_by_default() -> None:
    listed = {"admissible_commands": ["go north", "wait"]}
    env = InvalidActionPenalty(Told(listed, {}, {}, {}, start=listed), 0.25)
    assert rewards(env, "Go  North ", "dance", "dance", "dance") == [0.5, 0.25, 0.5, 0.5]
    env.reset()
    assert env.step("dance")[4] == {**listed, "action_valid": False}


def test_what_the_environment_says_about_its_actions_counts_first() -> None:
    env = InvalidActionPenalty(Told({"action_valid": True}, {}, start={"valid_actions": ["wait"]}))
    assert rewards(env, "dance") == [0.5]


def test_a_potential_is_paid_when_it_is_gained_and_taken_back_at_the_end() -> None:
    env = PotentialShaping(GuessNumber(), "support.wrapper_arguments:guesses_made")
    assert rewards(env, "25", "x", "31", "31") == [1.0, 1.0, 1.0 - 2.0, 0.0]
    discounted = PotentialShaping(GuessNumber(), "support.wrapper_arguments:guesses_made", gamma=0.5)
    assert rewards(discounted, "25", "26", "31") == [0.5, 0.5 * 2 - 1, 1.0 - 2.0]


@given(
    st.lists(st.sampled_from(["1", "25", "31", "x", "50"]), min_size=6, max_size=6), st.integers(1, 6), st.floats(-9, 9)
)
def test_over_an_episode_a_potential_adds_up_to_the_one_at_the_start(
    guesses: list[str], turns: int, weight: float
) -> None:
    def potential(env: Any) -> float:
        return weight * float(env._turns_left - 10)

    def total(env: gym.Env[str, str]) -> float:
        answers = iter(guesses)
        return math.fsum(step[2] for step in play(env, lambda _: next(answers), options={"instance": 30})[1:])

    plain = total(TurnLimit(GuessNumber(), turns))
    assert total(PotentialShaping(TurnLimit(GuessNumber(), turns), potential)) == pytest.approx(plain + 4 * weight)


def test_a_potential_that_is_no_finite_number_is_named() -> None:
    with pytest.raises(ConfigError, match="a potential must be a finite number, got nan"):
        PotentialShaping(GuessNumber(), lambda env: math.nan).reset()


@pytest.mark.parametrize(
    "name", ["nowhere", "no_module:at_all", "support.wrapper_arguments:nothing", "support.wrapper_arguments:Any.x", 3]
)
def test_a_function_that_cannot_be_found_is_named(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"package\.module:function"):
        PotentialShaping(GuessNumber(), name)


def test_later_rewards_are_worth_less() -> None:
    env = Discount(StepPenalty(GuessNumber(), 1.0), gamma=0.5)
    assert rewards(env, "25", "26", "27", "28") == [-1.0, -0.5, -0.25, -0.125]
    assert rewards(env, "25", "31") == [-1.0, 0.0]


@pytest.mark.parametrize(
    "wrap",
    [
        StepPenalty,
        InvalidActionPenalty,
        Discount,
        SuccessReward,
        partial(PotentialShaping, potential=lambda lake: lake.s),
    ],
)
def test_rewards_of_environments_without_words_can_be_changed(wrap: Callable[..., Any]) -> None:
    if wrap is SuccessReward:
        wrap = partial(SuccessReward, key="prob")
    env = wrap(gym.make("FrozenLake-v1", is_slippery=False))
    env.reset(seed=0)
    for action in (1, 1, 2, 2, 1, 2):
        step = env.step(action)
    assert step[2]
    assert env.step(2)[1] == 0.0


@pytest.mark.parametrize(
    ("wrap", "best"),
    [
        (InvalidActionPenalty, 1.0),
        (StepPenalty, None),
        (Discount, None),
        (partial(PotentialShaping, potential=len), None),
        (SuccessReward, 1.0),
    ],
)
def test_what_perfect_play_returns_is_said_where_it_is_known(wrap: Callable[..., Any], best: float | None) -> None:
    game = GuessNumber(reward="shaped") if wrap is SuccessReward else GuessNumber()
    assert optimum(wrap(game)).mean_return == best


# Gymnasium has these already.


def solved(env: gym.Env[str, str]) -> list[float]:
    inner = env.unwrapped
    assert isinstance(inner, TextEnv)
    policy: Policy = inner.solver()
    return [float(step[2]) for step in play(env, policy, options={"instance": 30})[1:]]


@pytest.mark.parametrize("outside", [False, True])
def test_gymnasiums_rewards_are_scaled_and_clipped_inside_and_outside_of_ours(outside: bool) -> None:
    for wrap, last in (
        (partial(TransformReward, func=lambda reward: 10 * float(reward)), 10.0),
        (partial(ClipReward, max_reward=0.5), 0.5),
    ):
        made: Any = wrap(ParseAction(GuessNumber(), "plain")) if outside else ParseAction(wrap(GuessNumber()), "plain")
        env = TurnLimit(made, turns=10)
        paid = solved(env)
        assert paid == [0.0] * (len(paid) - 1) + [last]
        assert env.step("1")[1] == 0.0
