# mypy: allow-untyped-defs, allow-untyped-calls, allow-any-generics
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids

pytest.importorskip("textarena", reason="TextArena is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments

# Offline, for one player, and without word lists; two are Python 3.12 or need none of ours.
ALONE = [
    "Bandit-v0",
    "Blackjack-v0",
    "Countdown-v0",
    "Cryptarithm-v0",
    "FifteenPuzzle-v0",
    "FrozenLake-v0",
    "2048-v0",
    "GuessTheNumber-v0",
    "LightsOut-v0",
    "LogicPuzzle-v0",
    "Mastermind-v0",
    "Minesweeper-v0",
    "PegJump-v0",
    "RushHour-v0",
    "Secretary-v0",
    "Slitherlink-v0",
    "Sokoban-v0",
    "Sudoku-v0",
    "TowerOfHanoi-v0",
]
FOR_TWO = ["Breakthrough-v0", "ConnectFour-v0", "KuhnPoker-v0", "Nim-v0", "Othello-v0", "TicTacToe-v0"]


def halving():
    low, high, last = 1, 20, 0

    def guess(observation):
        nonlocal low, high, last
        if "is higher" in observation:
            low = last + 1
        elif "is lower" in observation:
            high = last - 1
        last = (low + high) // 2
        return f"[{last}]"

    return guess


def test_a_game_is_won_by_who_halves():
    env = make("External/TextArena-v0", game="GuessTheNumber-v0")
    for seed in range(10):
        policy, rewards, ended = halving(), [], False
        observation, _ = env.reset(seed=seed)
        while not ended:
            observation, reward, ended, _, info = env.step(policy(observation))
            rewards.append(reward)
        assert rewards == [0.0] * (len(rewards) - 1) + [1.0]
        assert info["success"]


def test_an_observation_is_what_was_said_since_the_last_one():
    env = make("External/TextArena-v0", game="GuessTheNumber-v0")
    assert "You are playing Guess The Number" in env.reset(seed=0)[0]
    assert env.step("[1]")[0] == "The target number is higher."


def test_a_move_against_the_rules_is_not_valid_and_may_be_made_again():
    env = make("External/TextArena-v0", game="TicTacToe-v0", players=2, opponent=lambda seed: lambda said: "[4]")
    env.reset(seed=0)
    observation, _, terminated, _, info = env.step("[9]")
    assert (terminated, info["action_valid"]) == (False, False)
    assert "invalid move" in observation
    assert env.step("[0]")[4]["action_valid"]


def scripted(moves):
    def opponent(seed):
        left = iter(moves)
        return lambda said: next(left)

    return opponent


@pytest.mark.parametrize(("mine", "theirs", "reward"), [("012", "45", 1.0), ("018", "345", -1.0)])
def test_an_opponent_plays_the_other_side(mine, theirs, reward):
    opponent = scripted([f"[{cell}]" for cell in theirs])
    env = make("External/TextArena-v0", game="TicTacToe-v0", players=2, opponent=opponent)
    env.reset(seed=0)
    results = [env.step(f"[{cell}]") for cell in mine]
    assert results[-1][1:3] == (reward, True)
    assert results[-1][4]["success"] is (reward == 1.0)


def test_the_second_player_sees_what_the_first_has_done():
    env = make("External/TextArena-v0", game="TicTacToe-v0", players=2, seat=1, opponent=scripted(["[4]"]))
    assert "placed their symbol (O) in cell 4" in env.reset(seed=0)[0]


@pytest.mark.parametrize("game", [*ALONE, *FOR_TWO])
def test_a_game_of_theirs_can_be_played(game):
    env = make("External/TextArena-v0", game=game, players=2 if game in FOR_TWO else 1)
    env.reset(seed=0)
    for _ in range(5):
        observation, reward, ended, _, _ = env.step("[1]")
        assert isinstance(observation, str)
        assert isinstance(reward, float)
        if ended:
            break


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="is a syntax error before Python 3.12 only")
def test_a_game_that_needs_a_newer_python_says_so():
    env = make("External/TextArena-v0", game="Chess-v0", players=2)
    with pytest.raises(SyntaxError):
        env.reset(seed=0)


def test_the_guide_says_how_many_of_them_are_tried():
    guide = (Path(__file__).parents[3] / "docs" / "bring_your_own.md").read_text(encoding="utf-8")
    assert f"| {len(ALONE)} games alone, {len(FOR_TWO)} for two; one trained |" in guide
