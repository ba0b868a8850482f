"""Policies play all seats but one, and the agent is told what is its own."""

from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.kuhn_poker import KuhnPoker
from gym_trl.envs.seat_game import SeatGame
from gym_trl.errors import ConfigError, SeatError
from gym_trl.spaces import AnyText
from gym_trl.testing import play
from gym_trl.types import Policy
from gym_trl.wrappers import Opponent, ParseAction, TurnLimit


class Sticks(SeatGame):
    """Take 1 or 2 of 7 sticks; who takes the last wins, and three play."""

    num_seats = 3
    zero_sum = True
    instructions, sides, refusal = "Take 1 or 2.", ("A", "B", "C"), "Not 1 or 2."

    def deal(self) -> None:
        self.sticks = 7

    def look(self) -> str:
        return f"{self.sticks} sticks."

    def legal(self) -> list[str]:
        return [take for take in ("1", "2") if int(take) <= self.sticks]

    def move(self, action: str) -> tuple[float, ...] | None:
        self.sticks -= int(action)
        return None if self.sticks else self.win_of(self.to_move)


def script(*actions: str) -> Any:
    """Make opponents that play these."""

    def made(seed: int) -> Policy:
        rest = iter(actions)
        return lambda _: next(rest)

    return made


def test_others_play_between_the_agents_actions() -> None:
    env = Opponent(Sticks(), script("1", "2", "1"))
    assert env.reset(seed=0)[0] == "You are A.\n7 sticks."
    observation, reward, terminated, _, info = env.step("1")
    assert (observation, reward, terminated) == ("You are A.\n4 sticks.", 0.0, False)
    assert (info["opponent_actions"], "to_move" in info) == (["1", "1"], False)
    observation, reward, terminated, _, info = env.step("1")
    assert (reward, terminated, info["success"], info["opponent_actions"]) == (-0.5, True, False, ["2", "2", "1"])


def test_whoever_is_second_sees_the_first_action() -> None:
    env = Opponent(KuhnPoker(), script("bet"), seat=1)
    observation, info = env.reset(seed=1)
    assert observation.endswith("Played: bet.")
    assert info["opponent_actions"] == ["bet"]
    observation, reward, terminated, _, info = env.step("bet")
    assert (reward, terminated, info["success"]) == (2.0, True, True)


def test_an_invalid_action_is_repeated_by_whoever_made_it() -> None:
    env = Opponent(KuhnPoker(), script("raise", "bet"))
    env.reset(seed=0)
    info = env.step("raise")[4]
    assert (info["action_valid"], info["opponent_actions"]) == (False, [])
    info = env.step("pass")[4]
    assert (info["action_valid"], info["opponent_actions"]) == (True, ["raise", "bet"])


def test_the_winner_reads_the_winners_text() -> None:
    env = Opponent(KuhnPoker(mistakes=1), script("raise"))
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("bet")
    assert (observation, reward, terminated) == ("player 2 played 1 illegal action. You won.", 2.0, True)
    assert (info["success"], info["action_valid"]) == (True, True)


def test_a_game_that_ends_before_the_first_action_ends_with_it() -> None:
    env = Opponent(KuhnPoker(mistakes=1), script("raise"), seat=1)
    assert env.reset(seed=0)[0].endswith("You won.")
    first = env.step("bet")
    assert first[1:4] == (2.0, True, False)
    assert env.step("bet") == (first[0], 0.0, *first[2:])


@pytest.mark.parametrize("policy", ["random", "solver"])
def test_the_same_seed_is_the_same_opponent_and_the_same_seat(policy: str) -> None:
    def played(seed: int) -> list[Any]:
        return play(Opponent(KuhnPoker(), policy, seat=None), lambda observation: "pass", seed=seed)

    assert [played(seed) for seed in range(20)] == [played(seed) for seed in range(20)]
    assert len({steps[0][0].split(".")[0] for steps in map(played, range(20))}) == 2


def test_resets_without_a_seed_go_on_to_other_opponents() -> None:
    def games(seed: int) -> list[str]:
        env = Opponent(KuhnPoker(), seat=1)
        return [env.reset(seed=seed)[0], *(env.reset()[0] for _ in range(9))]

    assert games(3) == games(3)
    assert len(set(games(3))) > 1


def test_it_is_wrapped_as_any_environment() -> None:
    env: Any = TurnLimit(ParseAction(Opponent(gym.make("TrlEnv/KuhnPoker-v0"), "solver")), 9)
    again = gym.make(env.spec)
    assert env.reset(seed=4)[0] == again.reset(seed=4)[0]
    assert env.step("<action>bet</action>")[:4] == again.step("<action>bet</action>")[:4]


class Endless(gym.Env[str, str]):
    """The second seat keeps the turn; nothing is listed."""

    observation_space = action_space = AnyText()
    num_seats = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "go", {"to_move": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "on", 0.0, False, False, {"to_move": 1}


@pytest.mark.parametrize("policy", [lambda seed: lambda _: "x", "random"])
def test_an_opponent_that_never_stops_or_has_nothing_to_choose_from_is_an_error(policy: Any) -> None:
    env = Opponent(Endless(), policy)
    env.reset()
    with pytest.raises(ConfigError if policy == "random" else SeatError):
        env.step("a")


@pytest.mark.parametrize("arguments", [{"seat": 2}, {"seat": -1}, {"seat": True}, {"policy": "nobody"}])
def test_a_seat_or_a_policy_that_does_not_exist_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Opponent(KuhnPoker(), **arguments)
    with pytest.raises(ConfigError):
        Opponent(Endless(), "solver")
