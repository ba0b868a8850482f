from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.envs.tic_tac_toe import TicTacToe
from gym_trl.errors import ConfigError
from gym_trl.spaces import AnyText
from gym_trl.testing import play
from gym_trl.types import Policy
from gym_trl.wrappers import Opponent


def script(*actions: str) -> Any:
    """Makes opponents that play these."""

    def made(seed: int) -> Policy:
        rest = iter(actions)
        return lambda _: next(rest)

    return made


def both() -> TicTacToe:
    """A board on which the agent plays both sides."""
    return TicTacToe(opponent="self")


def test_the_opponent_plays_the_other_side_of_a_board() -> None:
    env = Opponent(both(), script("5", "6"))
    env.reset(seed=0)
    observation, reward, terminated, _, info = env.step("1")
    assert observation == "You are X.\nX 2 3\n4 O 6\n7 8 9"
    assert (reward, terminated, info["opponent_actions"]) == (0.0, False, ["5"])
    assert env.step("2")[4]["opponent_actions"] == ["6"]
    observation, reward, terminated, _, info = env.step("3")
    assert (reward, terminated, info["success"], info["opponent_actions"]) == (1.0, True, True, [])


def test_whoever_is_second_sees_the_opponents_first_move() -> None:
    env = Opponent(both(), script("1", "2", "3"), seat=1)
    observation, info = env.reset(seed=0)
    assert observation == "You are O.\nX 2 3\n4 5 6\n7 8 9"
    assert info["opponent_actions"] == ["1"]
    env.step("5")
    _, reward, terminated, _, info = env.step("6")
    assert (reward, terminated, info["success"]) == (-1.0, True, False)


def test_an_action_that_is_not_valid_is_repeated_by_whoever_made_it() -> None:
    env = Opponent(TicTacToe(opponent="self", mistakes=3), script("1", "5"))
    env.reset(seed=0)
    info = env.step("x")[4]
    assert (info["action_valid"], info["opponent_actions"]) == (False, [])
    _, _, _, _, info = env.step("1")
    assert info["opponent_actions"] == ["1", "5"]


def test_a_random_opponent_wins_as_often_as_the_games_own() -> None:
    won = 0
    games = 400
    for seed in range(games):
        env = Opponent(both(), seat=0)
        policy = TicTacToe(opponent="random", seat="first").solver()
        won += play(env, policy, seed=seed)[-1][-1]["success"]
    # Perfect X wins .9948 of the games (see TicTacToe); four standard errors below.
    assert won / games > 0.9948 - 4 * (0.9948 * 0.0052 / games) ** 0.5


def test_the_same_seed_is_the_same_opponent_and_the_same_seat() -> None:
    def played(seed: int) -> list[Any]:
        env = Opponent(both(), seat=None)
        return play(env, lambda observation: next(c for c in observation if c.isdigit()), seed=seed)

    assert [played(seed) for seed in range(9)] == [played(seed) for seed in range(9)]
    assert len({steps[0][0][:9] for steps in map(played, range(9))}) == 2


def test_resets_without_a_seed_go_on_to_other_opponents() -> None:
    def games(seed: int) -> list[str]:
        env = Opponent(both(), seat=1)
        return [env.reset(seed=seed)[0], *(env.reset()[0] for _ in range(9))]

    assert games(3) == games(3)
    assert len(set(games(3))) > 1


def test_without_payoffs_what_the_opponent_wins_the_agent_loses() -> None:
    env = Opponent(GuessNumber(), script("2", "31"))
    env.reset(options={"instance": 30})
    assert env.step("1")[1:3] == (0.0, False)
    _, reward, terminated, _, info = env.step("1")
    assert (reward, terminated, info["success"], info["action_valid"]) == (-1.0, True, False, True)


def test_what_the_opponent_won_before_the_agents_first_action_is_owed_with_it() -> None:
    class PaysEachMove(GuessNumber):
        def step(self, action: str) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, 1.0, terminated, truncated, info

    env = Opponent(PaysEachMove(), script("1", "2", "3"), seat=1)
    for _ in range(2):  # once each
        env.reset(seed=0, options={"instance": 30})
        assert env.step("4")[1] == -1.0 + 1.0 - 1.0
        assert env.step("5")[1] == 1.0 - 1.0


def test_a_game_lost_before_the_first_action_ends_with_it() -> None:
    env = Opponent(GuessNumber(), script("31"), seat=1)
    assert env.reset(options={"instance": 30})[0] == "Correct."
    first = env.step("31")
    assert first[:4] == ("Correct.", -1.0, True, False)
    assert env.step("31") == (first[0], 0.0, *first[2:])


class Twice(gym.Env[str, str]):
    """Player 1 acts twice for each action of player 0."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.log = ""
        return self.log, {"to_move": 0}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.log += action
        return self.log, 0.0, False, len(self.log) > 7, {"to_move": (0, 1, 1)[len(self.log) % 3]}


def test_the_environment_can_say_who_is_next() -> None:
    env = Opponent(Twice(), lambda seed: lambda _: "b")
    env.reset()
    assert [env.step("a")[0] for _ in range(3)] == ["abb", "abbabb", "abbabbab"]


def test_a_random_opponent_needs_a_list() -> None:
    env = Opponent(GuessNumber())
    env.reset(seed=0)
    with pytest.raises(ConfigError, match="lists no actions"):
        env.step("1")


def test_an_opponent_that_never_stops_is_stopped() -> None:
    env = Opponent(Twice(), lambda seed: lambda _: "", seat=0)
    env.reset()
    with pytest.raises(ConfigError, match="has played 1000 actions"):
        env.step("a")
