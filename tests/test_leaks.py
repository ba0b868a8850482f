"""An environment of several seats that breaks the protocol, or shows a seat what another one sees, is found."""

import random
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.seat_games import STYLES, HighCard, Observed

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.env_checker.inspector import Inspector
from gym_trl.env_checker.leaks import SeatGame, find_leak
from gym_trl.env_checker.play import play_seats
from gym_trl.errors import SeatError
from gym_trl.report import OK, PROBLEM, SKIPPED, WARNING
from gym_trl.types import Policy
from gym_trl.wrappers import Seats

seeds = st.integers(0, 2**31)
OWN = ("TicTacToe", "ConnectFour", "KuhnPoker")


def games_of(env: HighCard, number: int = 300) -> list[SeatGame]:
    return [play_seats(Seats(env), seed, partial(_without_info, env.random_policy(seed))) for seed in range(number)]


def _without_info(policy: Policy, observation: str, info: Any) -> str:
    return policy(observation)


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
    assert looked_at(partial(cls, fault), "hidden information").verdict == SKIPPED


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("fault", ["of the seat that acted", "sometimes of the seat that acted", "sometimes a line"])
@pytest.mark.parametrize("seats", [2, 3])
def test_an_observation_of_another_seat_is_found_with_an_example(style: str, fault: str, seats: int) -> None:
    env = HighCard(fault, style=style, seats=seats, turns=(5, 9))
    games = games_of(env, 150)
    leak = find_leak(games, seats)
    assert leak is not None
    seat, shown = games[leak.seed].shown[leak.turn]
    env.fault = ""  # the draws are the same
    _, honest = games_of(env, leak.seed + 1)[leak.seed].shown[leak.turn]
    assert seat == leak.seat != leak.owner
    assert leak.text in " ".join(shown.split())
    assert leak.text not in " ".join(honest.split())


def test_validate_says_which_line_of_which_seat_was_shown() -> None:
    found = looked_at(partial(HighCard, "sometimes a line"), "hidden information")
    assert found.verdict == PROBLEM
    assert "is shown 'Your card:" in found.got
    found = looked_at(partial(HighCard, "of the seat that acted"), "hidden information")
    assert found.verdict == PROBLEM
    assert "seat 1, is shown" in found.got or "seat 1 is shown" in found.got


@pytest.mark.parametrize("cls", [HighCard, Observed])
def test_an_honest_game_has_no_problem(cls: Any) -> None:
    inspector = Inspector(cls, episodes=20)
    found = inspector.look_at("seats")
    assert (found.verdict, found.got.endswith("games of random play")) == (OK, True)
    assert inspector.look_at("hidden information").verdict == OK
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


@pytest.mark.parametrize("name", OWN)
def test_the_librarys_games_for_two_leak_nothing(name: str) -> None:
    inspector = Inspector(partial(gym.make, f"TrlEnv/{name}-v0", opponent="self"), episodes=20)
    found = inspector.look_at("seats")
    assert (found.verdict, found.got.endswith("games of random play")) == (OK, True)
    assert inspector.look_at("hidden information").verdict == OK


def test_an_environment_of_one_seat_says_so() -> None:
    inspector = Inspector(partial(gym.make, "TrlEnv/TicTacToe-v0"), episodes=20)
    assert [inspector.look_at(one).got for one in ("seats", "hidden information")] == ["one", "one seat"]


@given(
    st.sampled_from(sorted(STYLES)),
    st.integers(2, 4),
    st.integers(2, 6),
    st.integers(0, 8),
    st.tuples(st.sampled_from([5, 6, 13, 1000]), st.booleans()),
)
@examples(8)
def test_honest_games_are_never_accused(style: str, seats: int, fewest: int, more: int, deck: tuple[int, bool]) -> None:
    cards, alike = deck
    env = HighCard(style=style, seats=seats, turns=(fewest, fewest + more), cards=cards, alike=alike)
    assert find_leak(games_of(env, 80), seats) is None


@given(st.integers(2, 4), st.integers(1, 5), st.integers(2, 4), st.randoms(use_true_random=False))
@examples(15)
def test_what_everybody_is_told_in_a_round_is_no_leak(seats: int, rounds: int, values: int, rng: random.Random) -> None:
    games = []
    for seed in range(100):
        prizes = [rng.randrange(values) for _ in range(rounds)]
        shown = [
            (seat, f"You are in round {number}.\nYour prize: {prize}.\nYou have {rng.randrange(9)} points.")
            for number, prize in enumerate(prizes)
            for seat in range(seats)
        ]
        games.append(SeatGame(seed, shown))
    assert find_leak(games, seats) is None


@given(st.integers(2, 12), st.sampled_from([("ahead", "behind"), ("in check", "safe"), ("red", "blue")]), seeds)
@examples(15)
def test_a_state_that_seats_exchange_is_no_leak(turns: int, words: tuple[str, str], drawn: int) -> None:
    games, rng = [], random.Random(drawn)
    for seed in range(100):
        first, shown = rng.random() < 0.5, []
        for turn in range(turns):
            first = first != (rng.random() < 0.3)
            shown.append((turn % 2, f"You are {words[first == (turn % 2 == 0)]}."))
        games.append(SeatGame(seed, shown))
    assert find_leak(games, 2) is None
