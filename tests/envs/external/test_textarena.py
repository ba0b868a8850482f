import random
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError, InfrastructureError
from gym_trl.wrappers import Seats

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
FOR_TWO = ["ConnectFour-v0", "IndianPoker-v0", "KuhnPoker-v0", "Nim-v0", "Othello-v0", "TicTacToe-v0"]
NEED_AN_OPPONENT = ["Battleship-v0", "Breakthrough-v0", "GermanWhist-v0"]  # whose moves cannot be found by trying


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


def play_legally(env, seed, turns=60):
    """Both sides at random, the agent by the same search as the default opponent."""
    rng = random.Random(seed)
    result = env.reset(seed=seed)
    for _ in range(turns):
        result = env.step(env.unwrapped._legal_move(rng))
        if result[2] or result[3]:
            break
    return result


@pytest.mark.parametrize("game", FOR_TWO)
def test_the_default_opponent_never_breaks_the_rules(game):
    for seat in (0, 1):
        env = make("External/TextArena-v0", game=game, players=2, seat=seat)
        for seed in range(5):
            info = play_legally(env, seed)[-1]
            assert "opponent_forfeited" not in info
            assert not env.unwrapped._game.state.game_info[1 - seat]["invalid_move"]


@pytest.mark.parametrize("game", NEED_AN_OPPONENT)
def test_a_game_whose_moves_are_not_found_asks_for_an_opponent(game):
    with pytest.raises(ConfigError, match="needs opponent="):
        make("External/TextArena-v0", game=game, players=2)
    given = make("External/TextArena-v0", game=game, players=2, opponent=lambda seed: lambda said: "[pass]")
    given.reset(seed=0)


def test_an_opponent_that_breaks_the_rules_makes_nobody_successful():
    env = make("External/TextArena-v0", game="TicTacToe-v0", players=2, opponent=lambda seed: lambda said: "[99]")
    env.reset(seed=0)
    _, reward, terminated, _, info = env.step("[4]")
    assert (reward, terminated) == (0.0, True)
    assert info == {"action_valid": True, "opponent_forfeited": True}  # success is not declared


def test_an_opponent_that_raises_is_the_infrastructures_failure():
    broken = lambda seed: lambda said: str(1 // 0)  # noqa: E731 -- as users write it
    env = make("External/TextArena-v0", game="TicTacToe-v0", players=2, opponent=broken)
    env.reset(seed=0)
    with pytest.raises(InfrastructureError, match="the opponent raised ZeroDivisionError"):
        env.step("[4]")


# ---------------------------------------------------------------------------------------------------------------------
# Several seats
# ---------------------------------------------------------------------------------------------------------------------

FOR_SEVERAL = [  # with the number of players; offline, without word lists, and quick to try moves in
    ("ConnectFour-v0", 2),
    ("GameOfPureStrategy-v0", 2),
    ("IndianPoker-v0", 2),
    ("IteratedPrisonersDilemma-v0", 2),
    ("IteratedRockPaperScissors-v0", 2),
    ("KuhnPoker-v0", 2),
    ("LiarsDice-v0", 3),
    ("Nim-v0", 2),
    ("PublicGoodsGame-v0", 4),
    ("SecretMafia-v0", 6),
    ("SimpleBlindAuction-v0", 2),
    ("Snake-v0", 3),
    ("Surround-v0", 4),
    ("ThreePlayerGOPS-v0", 3),
    ("ThreePlayerIPD-v0", 3),
    ("ThreePlayerTicTacToe-v0", 3),
    ("TicTacToe-v0", 2),
]


def seats(game, players=2, **kwargs):
    return Seats(make("External/TextArena-v0", game=game, players=players, opponent="self", **kwargs))


def play(env, actions, seed=0):
    observation, info = env.reset(seed=seed)
    return [(observation, 0.0, False, False, info), *(env.step(action) for action in actions)]


@pytest.mark.parametrize(("game", "players"), FOR_SEVERAL)
def test_random_games_of_all_players_keep_the_protocol_of_seats(game, players):
    env = seats(game, players)
    assert env.num_seats == players
    acted = set()
    for seed in range(6):
        observation, info = env.reset(seed=seed)
        policy = env.get_wrapper_attr("random_policy")(seed)
        for _ in range(150):
            acted.add(info["to_move"])
            observation, _, terminated, _, info = env.step(policy(observation))
            if terminated:
                assert len(info["payoffs"]) == players
                assert info["successes"] == tuple(paid >= 1 for paid in info["payoffs"])
                assert all(isinstance(info["observations"][seat], str) for seat in range(players))
                break
    assert acted == set(range(players))


def test_each_seat_is_sent_its_own_messages_only():
    for seed in range(10):
        steps = play(seats("KuhnPoker-v0"), ["[check]"], seed=seed)
        prompts = {step[4]["to_move"]: step[0] for step in steps}
        cards = [prompts[seat].split("Your card is: '")[1][0] for seat in (0, 1)]
        assert cards[0] != cards[1]
        for seat in (0, 1):
            assert f"You are Player {seat}" in prompts[seat]
            assert f"You are Player {1 - seat}" not in prompts[seat]
            assert f"Your card is: '{cards[1 - seat]}'" not in prompts[seat]


def test_simultaneous_choices_are_hidden_until_all_are_made():
    shown = []
    for choice in ("[rock]", "[paper]", "[scissors]"):
        steps = play(seats("IteratedRockPaperScissors-v0"), [choice, "[rock]"])
        shown.append(steps[1][0])
        assert steps[1][4]["to_move"] == 1
    assert shown[0] == shown[1] == shown[2]
    assert "scissors" in steps[2][0].lower()  # the result of the round


def test_a_seat_that_breaks_the_rules_loses_as_textarena_says():
    steps = play(seats("TicTacToe-v0"), ["[99]", "[99]"])
    assert (steps[1][4]["to_move"], steps[1][4]["action_valid"]) == (0, False)
    assert "invalid move" in steps[1][0]
    assert steps[2][2]
    assert steps[2][4]["payoffs"] == (-1.0, 1.0)
    assert steps[2][4]["successes"] == (False, True)
    assert steps[2][4]["action_valid"] is False


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"players": 1, "opponent": "self"}, 'at least 2 with opponent="self"'),
        ({"players": 3}, "players must be 1 or 2"),
        ({"players": 2, "opponent": "other"}, "got 'other'"),
        ({"players": 2, "seat": 2, "opponent": "self"}, "seat below it"),
    ],
)
def test_players_and_opponents_that_do_not_fit_are_said(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        make("External/TextArena-v0", game="TicTacToe-v0", **kwargs)
