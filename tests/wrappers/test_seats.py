"""Games of several seats: each is paid for its own actions, and an environment that breaks the protocol is told so."""

import pickle
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import pytest
from support.games import SEATS

from gym_trl.errors import ConfigError, SeatError, caused_by_model
from gym_trl.spaces import AnyText
from gym_trl.wrappers import Seats

GAMES = [env_id.removeprefix("TrlEnv/").removesuffix("-v0") for env_id in SEATS]


class Scripted(gym.Env[str, str]):
    """Game of three seats whose steps are given: what ``info`` says, and how the step ends."""

    observation_space = action_space = AnyText()
    num_seats = 3
    zero_sum = False

    def __init__(self, steps: Sequence[tuple[Any, float, bool]], first: Any = 0) -> None:
        self._steps, self._first = list(steps), first

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = iter(self._steps)
        return "begin", {"to_move": self._first}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        info, reward, done = next(self._left)
        return "go on", reward, done, False, info


def played(env: gym.Env[str, str]) -> list[Any]:
    """Return the steps of a game, with the last payoffs."""
    wrapped = Seats(env)
    wrapped.reset(seed=0)
    steps: list[Any] = []
    while not steps or not steps[-1][2]:
        steps.append(wrapped.step("x"))
    return steps


@pytest.mark.parametrize("name", GAMES)
def test_each_seat_of_a_game_is_paid_what_the_game_says(name: str) -> None:
    env = Seats(gym.make(f"TrlEnv/{name}-v0"))
    for seed in range(20):
        _, info = env.reset(seed=seed)
        seats, done = [info["to_move"]], False
        while not done:
            legal = env.get_wrapper_attr("legal")()
            observation, reward, done, _, info = env.step(legal[seed % len(legal)])
            assert info["player"] == seats[-1]
            assert reward == info["payoffs"][info["player"]]
            if not done:
                seats.append(info["to_move"])
                assert observation.startswith(f"You are {env.get_wrapper_attr('sides')[seats[-1]]}.")
                assert "success" not in info
        assert sum(info["payoffs"]) == 0
        assert info["successes"] == tuple(value > 0 for value in info["payoffs"])
        assert seats == [turn % 2 for turn in range(len(seats))]


def test_who_makes_too_many_mistakes_loses_and_the_other_wins() -> None:
    env = Seats(gym.make("TrlEnv/KuhnPoker-v0", mistakes=2))
    env.reset(seed=0)
    for action in ("none", "pass", "none", "bet", "none"):
        observation, reward, done, _, info = env.step(action)
    assert done
    assert (reward, info["payoffs"], info["player"]) == (-2.0, (-2.0, 2.0), 0)
    assert info["observations"][1] == "player 1 played 2 illegal actions. You won."
    assert "You lost." in observation


def test_payoffs_during_the_game_are_added_up_for_success() -> None:
    steps = played(
        Scripted(
            [
                ({"to_move": 1}, 0.0, False),
                ({"to_move": 2, "payoffs": (2, -1, 0)}, 0.0, False),
                ({"payoffs": [-1, 0, 1]}, 0.0, True),
            ]
        )
    )
    assert [step[1] for step in steps] == [0.0, -1.0, 1.0]
    assert steps[-1][4]["successes"] == (True, False, True)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([({"to_move": 3}, 0.0, False)], r"'to_move'.* 0 to 2; got 3 in turn 1, of seat 0"),
        ([({}, 0.0, False)], r"'to_move'.*got None in turn 1, of seat 0"),
        ([({"to_move": 1}, 0.0, False), ({}, 1.0, True)], r"ends without info\['payoffs'\].* in turn 2, of seat 1"),
        ([({"to_move": 1}, 0.5, False)], r"a reward of 0.5 is paid without info\['payoffs'\].*turn 1, of seat 0"),
        ([({"payoffs": (1, 2)}, 0.0, True)], r"must be 3 finite numbers, got \(1, 2\) in turn 1, of seat 0"),
        ([({"payoffs": (1, 2, float("nan"))}, 0.0, True)], "must be 3 finite numbers"),
        ([({"payoffs": "all"}, 0.0, True)], "must be 3 finite numbers"),
        (
            [({"to_move": 1, "payoffs": (0, 0, 1)}, 0.0, False)],
            "seat 2 is paid 1 before it was ever to move, in turn 1",
        ),
        ([({"payoffs": (0, 0, 1), "successes": (True,)}, 0.0, True)], r"'successes'.* must have 3 entries in turn 1"),
        ([({"to_move": 0}, 0.0, False)] * 100, "the turn is never passed: it is seat 0's again in turn 100"),
    ],
)
def test_an_environment_that_breaks_the_protocol_is_told_where(steps: Any, said: str) -> None:
    with pytest.raises(SeatError, match=said) as raised:
        played(Scripted(steps))
    assert not caused_by_model(raised.value)


def test_an_action_that_a_wrapper_refuses_leaves_the_turn_where_it_is() -> None:
    steps = played(
        Scripted(
            [({"to_move": 2}, 0.0, False), ({"action_valid": False}, 0.0, False), ({"payoffs": (0, 0, 0)}, 0.0, True)]
        )
    )
    assert [step[4].get("to_move") for step in steps] == [2, 2, None]


def test_a_seat_that_never_moved_is_paid_in_the_last_step() -> None:
    class Cut(Scripted):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            observation, reward, done, _, info = super().step(action)
            return observation, reward, False, done, info

    env = Seats(Cut([({"payoffs": (0, 0, 1)}, 0.0, True)]))
    env.reset(seed=0)
    assert env.step("x")[4]["payoffs"] == (0.0, 0.0, 1.0)


def test_a_promise_of_zero_sum_is_checked() -> None:
    game = Scripted([({"payoffs": (1, 0, 0)}, 0.0, True)])
    game.zero_sum = True
    with pytest.raises(
        SeatError, match=r"zero_sum is declared, and the payoffs \(1.0, 0.0, 0.0\) add up to 1 in turn 1"
    ):
        played(game)


def test_who_begins_must_be_a_seat() -> None:
    with pytest.raises(SeatError, match=r"'to_move'.*got True at reset"):
        Seats(Scripted([], first=True)).reset()


def test_an_environment_of_one_seat_is_refused() -> None:
    with pytest.raises(ConfigError, match="has one seat"):
        Seats(gym.make("TrlEnv/Echo-v0"))


@pytest.mark.parametrize("name", GAMES)
def test_a_game_can_be_pickled_between_any_two_steps_and_rebuilt_from_its_spec(name: str) -> None:
    env: Any = Seats(gym.make(f"TrlEnv/{name}-v0"))
    again: Any = gym.make(env.spec)
    assert isinstance(again, Seats)
    assert env.reset(seed=4) == again.reset(seed=4)
    done = False
    while not done:
        action = env.get_wrapper_attr("legal")()[0]
        copied = pickle.loads(pickle.dumps(env))
        step = env.step(action)
        assert copied.step(action) == step == again.step(action)
        done = step[2]
    assert env.step("1") == (step[0], 0.0, *step[2:])
