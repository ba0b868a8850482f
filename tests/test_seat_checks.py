"""An environment of several seats that breaks the protocol, or shows a seat what `observe` does not, is found."""

from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from support.games import SEATS
from support.seat_games import HighCard, Observed

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.env_checker.inspector import Inspector
from gym_trl.errors import SeatError
from gym_trl.report import OK, PROBLEM, SKIPPED, WARNING
from gym_trl.wrappers import Seats


def looked_at(make: Any, promise: str) -> Any:
    return Inspector(make, episodes=20).look_at(promise)


@pytest.mark.parametrize("cls", [HighCard, Observed])
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("never passes", "the turn is never passed: it is seat 0's again in turn 100"),
        ("pays without being asked", "seat 1 is paid 1 before it was ever to move, in turn 1, of seat 0"),
        ("pays nobody in particular", "a reward of 1 is paid without info['payoffs'], which says to whom, in turn 1"),
    ],
)
def test_a_game_that_breaks_the_protocol_is_found(cls: Any, fault: str, said: str) -> None:
    found = looked_at(partial(cls, fault), "seats")
    assert found.verdict == PROBLEM
    assert said in found.got
    assert "2 seats" in found.got


@pytest.mark.parametrize("cls", [HighCard, Observed])
def test_an_honest_game_has_no_problem(cls: Any) -> None:
    inspector = Inspector(cls, episodes=20)
    found = inspector.look_at("seats")
    assert (found.verdict, found.got.endswith("games of random play")) == (OK, True)
    assert inspector.look_at("success").verdict == inspector.look_at("reward").verdict == OK
    assert inspector.look_at("blind baseline").verdict == SKIPPED


@pytest.mark.parametrize("fault", ["of the seat that acted", "sometimes of the seat that acted", "sometimes a line"])
def test_observe_names_the_seat_and_turn_of_the_first_wrong_observation(fault: str) -> None:
    found = looked_at(partial(Observed, fault, rate=0.01), "seats")
    assert found.verdict == PROBLEM
    env = Seats(Observed(fault, rate=1.0))
    env.reset(seed=0)
    with pytest.raises(SeatError, match=r"seat 1 is shown 'You are player .*in turn 1, of seat 0"):
        env.step("bet")


def test_a_whole_view_of_another_seat_is_named() -> None:
    env = Seats(Observed("of the seat that acted"))
    env.reset(seed=0)
    with pytest.raises(SeatError, match="which is what seat 0 sees"):
        env.step("bet")


def test_observe_is_not_compared_where_a_wrapper_writes_observations() -> None:
    env = Seats(gym.wrappers.TransformObservation(Observed(), lambda seen: f"{seen}!", Observed.observation_space))
    assert env.reset(seed=0)[0].endswith("!")


def test_a_seat_that_is_never_to_move_is_found() -> None:
    class Third(HighCard):
        def reset(self, **arguments: Any) -> Any:
            self.num_seats = 2
            seen = super().reset(**arguments)
            self.num_seats = 3
            return seen

        def step(self, action: str) -> Any:
            self.num_seats = 2
            observation, reward, terminated, truncated, info = super().step(action)
            self.num_seats = 3
            if "payoffs" in info:
                info["payoffs"] = [*info["payoffs"], 0.0]
            return observation, reward, terminated, truncated, info

    found = looked_at(partial(Third, seats=3), "seats")
    assert found.verdict == PROBLEM
    assert "seat 2 is never to move" in found.got


def test_without_legal_play_a_seat_that_is_never_to_move_is_a_warning() -> None:
    class Unplayed(HighCard):
        random_policy = property()  # no such attribute

        def step(self, action: str) -> Any:
            if self.over or len(self.played) < 2:
                return super().step(action)
            return super().step("bet")

    found = looked_at(Unplayed, "seats")
    assert found.verdict == WARNING
    assert "random characters" in found.got


@pytest.mark.parametrize("env_id", SEATS)
def test_the_librarys_games_of_seats_keep_the_protocol(env_id: str) -> None:
    inspector = Inspector(partial(gym.make, env_id), episodes=20)
    found = inspector.look_at("seats")
    assert (found.verdict, found.got.endswith("games of random play")) == (OK, True)
    assert inspector.look_at("solver").verdict == OK


def test_an_environment_of_one_seat_says_so() -> None:
    inspector = Inspector(partial(gym.make, "TrlEnv/Echo-v0"), episodes=20)
    assert inspector.look_at("seats").got == "one"
