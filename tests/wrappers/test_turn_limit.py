"""A limit of turns truncates, and says so if it is asked to."""

from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import NotTextError
from gym_trl.spaces import AnyText
from gym_trl.testing import play
from gym_trl.wrappers.base import instructions_of
from gym_trl.wrappers.turn_limit import TurnLimit


def flags(env: gym.Env[str, str], actions: list[str]) -> list[tuple[bool, bool, Any]]:
    env.reset(options={"instance": 30})
    steps = [env.step(action) for action in actions]
    return [(terminated, truncated, info.get("stop_reason")) for _, _, terminated, truncated, info in steps]


def test_the_last_turn_truncates_unless_the_episode_ends_by_itself() -> None:
    env = TurnLimit(GuessNumber(), turns=2)
    assert flags(env, ["1", "2"]) == [(False, False, None), (False, True, "turn_limit")]
    assert flags(env, ["1", "31"]) == [(False, False, None), (True, False, None)]


def test_both_flags_of_an_inner_time_limit_become_one() -> None:
    env = TurnLimit(gym.wrappers.TimeLimit(GuessNumber(), 2), turns=5)
    assert flags(env, ["1", "31"])[-1] == (True, False, None)
    assert flags(env, ["1", "2"])[-1] == (False, True, None)


def test_the_limit_is_announced_below_the_observations_and_in_the_instructions() -> None:
    env = TurnLimit(GuessNumber(), turns=2, announce=True)
    assert env.instructions == f"{instructions_of(env.env)} You have 2 turns."
    assert env.reset(options={"instance": 30})[0].endswith("\n(2 turns left)")
    assert env.step("1")[0].endswith("\n(1 turn left)")
    assert env.step("1")[0].endswith("\n(0 turns left)")


class Longest(gym.Env[str, str]):
    observation_space = action_space = AnyText(50)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        return "x" * 50, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "x" * 50, 0.0, False, False, {}


@pytest.mark.parametrize("turns", [1, 2, 10, 100])
def test_announced_observations_stay_in_the_space(turns: int) -> None:
    env = TurnLimit(Longest(), turns=turns, announce=True)
    steps = play(env, lambda _: "", seed=0)
    assert all(step[1] in env.observation_space for step in steps[1:])
    assert len(steps) == turns + 1


def test_an_environment_that_is_not_text_can_be_limited_but_not_announced() -> None:
    env: Any = gym.make("FrozenLake-v1")
    assert TurnLimit(env, turns=3).instructions == instructions_of(env)
    with pytest.raises(NotTextError):
        TurnLimit(env, turns=3, announce=True)
