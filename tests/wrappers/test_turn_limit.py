from math import log
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.echo import Echo
from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import NotTextError
from gym_trl.testing import play
from gym_trl.wrappers.inner import instructions_of
from gym_trl.wrappers.reward import Discount, PotentialShaping, SuccessReward
from gym_trl.wrappers.turn_limit import TurnLimit


def flags(env: gym.Env[str, str], actions: list[str], **reset: Any) -> list[tuple[bool, bool, Any]]:
    env.reset(**reset)
    steps = [env.step(action) for action in actions]
    return [(terminated, truncated, info.get("stop_reason")) for _, _, terminated, truncated, info in steps]


def test_the_last_turn_truncates() -> None:
    env = TurnLimit(GuessNumber(), turns=2)
    assert flags(env, ["1", "2"], options={"instance": 30}) == [(False, False, None), (False, True, "turn_limit")]


def test_an_episode_that_ends_by_itself_on_the_last_turn_is_only_terminated() -> None:
    env = TurnLimit(GuessNumber(), turns=2)
    assert flags(env, ["1", "31"], options={"instance": 30}) == [(False, False, None), (True, False, None)]


def test_both_flags_of_an_inner_time_limit_become_one() -> None:
    env = TurnLimit(gym.wrappers.TimeLimit(GuessNumber(), 2), turns=5)
    assert flags(env, ["1", "31"], options={"instance": 30})[-1] == (True, False, None)
    assert flags(env, ["1", "2"], options={"instance": 30})[-1] == (False, True, None)


def test_a_cut_off_episode_pays_its_shaping_back() -> None:
    shaped = GuessNumber(low=1, high=4, reward="shaped")
    for env in (TurnLimit(shaped, turns=2), Discount(TurnLimit(shaped, turns=2), 1.0)):
        env.reset(options={"instance": 2})
        assert [env.step("1")[1], env.step("2")[1]] == pytest.approx([log(4 / 3, 4), -log(4 / 3, 4)])


@pytest.mark.parametrize(
    ("wrap", "rewards"),
    [
        (SuccessReward, [0.0, 0.0]),
        (lambda env: Discount(env, 0.5), [log(4 / 3, 4), 0.5 * -log(4 / 3, 4)]),
        (lambda env: PotentialShaping(env, lambda game: 5.0), [log(4 / 3, 4), -log(4 / 3, 4) - 5.0]),
    ],
)
def test_it_takes_back_what_a_wrapper_inside_has_made_of_it(wrap: Any, rewards: list[float]) -> None:
    env = TurnLimit(wrap(GuessNumber(low=1, high=4, reward="shaped")), turns=2)
    env.reset(options={"instance": 2})
    assert [env.step("1")[1], env.step("2")[1]] == pytest.approx(rewards)


def test_the_limit_is_announced_below_the_observations_and_in_the_instructions() -> None:
    env = TurnLimit(GuessNumber(), turns=2, announce=True)
    assert env.instructions == f"{env.unwrapped.instructions} You have 2 turns."  # type: ignore[attr-defined]
    assert env.reset(options={"instance": 30})[0].endswith("\n(2 turns left)")
    assert env.step("1")[0].endswith("\n(1 turn left)")
    assert env.step("1")[0].endswith("\n(0 turns left)")


@pytest.mark.parametrize("turns", [1, 2, 10, 100])
def test_announced_observations_stay_in_the_space(turns: int) -> None:
    env = TurnLimit(Echo(reward="length", turns=turns + 1), turns=turns, announce=True)
    longest = "x" * env.unwrapped.observation_space.max_length  # type: ignore[attr-defined]
    steps = play(env, lambda _: longest, seed=0)
    assert all(step[1] in env.observation_space for step in steps[1:])
    assert len(steps) == turns + 1


def test_a_silent_limit_changes_no_text() -> None:
    env = TurnLimit(GuessNumber(), turns=2)
    assert env.instructions == env.unwrapped.instructions  # type: ignore[attr-defined]
    assert env.observation_space == env.unwrapped.observation_space
    assert env.reset(seed=0) == GuessNumber().reset(seed=0)


def test_an_environment_that_is_not_text_can_be_limited_but_not_announced() -> None:
    env: Any = gym.make("FrozenLake-v1")
    assert TurnLimit(env, turns=3).instructions == instructions_of(env)
    with pytest.raises(NotTextError, match="Discrete"):
        TurnLimit(env, turns=3, announce=True)
