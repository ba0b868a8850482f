import math
import random
from functools import cache
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs import game_2048
from gym_trl.envs.game_2048 import Game2048
from gym_trl.testing import play

Board = tuple[tuple[int, ...], ...]
ACTIONS = ("up", "down", "left", "right")


def slid(tiles: list[int]) -> list[int]:
    """To the left, by the rules and nothing else."""
    rest, found = [tile for tile in tiles if tile], []
    while rest:
        tile = rest.pop(0)
        if rest and rest[0] == tile:
            tile += rest.pop(0)
        found.append(tile)
    return found + [0] * (len(tiles) - len(found))


def turned(board: Board) -> Board:
    """A quarter to the left."""
    return tuple(zip(*board, strict=True))[::-1]


def moved(board: Board, action: str) -> Board:
    quarters = {"left": 0, "up": 1, "right": 2, "down": 3}[action]
    for _ in range(quarters):
        board = turned(board)
    board = tuple(tuple(slid(list(row))) for row in board)
    for _ in range(-quarters % 4):
        board = turned(board)
    return board


def spawned(board: Board) -> list[tuple[Board, float]]:
    empty = [(row, col) for row, tiles in enumerate(board) for col, tile in enumerate(tiles) if not tile]
    found = []
    for row, col in empty:
        for tile, chance in ((2, 0.9), (4, 0.1)):
            tiles = [list(line) for line in board]
            tiles[row][col] = tile
            found.append((tuple(map(tuple, tiles)), chance / len(empty)))
    return found


def value(size: int, target: int, *, perfect: bool) -> float:
    """The probability to win with perfect play or with random legal moves."""

    @cache
    def of(board: Board) -> float:
        if max(map(max, board)) >= target:
            return 1.0
        worth = [appears(after) for after in (moved(board, action) for action in ACTIONS) if after != board]
        return (max(worth) if perfect else fmean(worth)) if worth else 0.0

    @cache
    def appears(board: Board) -> float:
        if max(map(max, board)) >= target:
            return 1.0
        return math.fsum(chance * of(after) for after, chance in spawned(board))

    nothing = ((0,) * size,) * size
    return math.fsum(chance * appears(board) for board, chance in spawned(nothing))


def read(observation: str, size: int) -> Board:
    lines = observation.splitlines()[-size - 1 : -1]
    return tuple(tuple(0 if tile == "." else int(tile) for tile in line.split()) for line in lines)


def played(env: Game2048, policy: Any, episodes: int) -> float:
    return fmean(play(env, policy(seed), seed=seed)[-1][-1]["success"] for seed in range(episodes))


@pytest.mark.parametrize(
    ("target", "perfect", "randomly"),
    [(8, 1.0, 0.6556), (16, 0.962511, 0.1218), (32, 0.082887, 0.0005), (64, 0.0, 0.0)],
)
def test_perfect_and_random_play_on_2x2_are_worth_what_is_known(target: int, perfect: float, randomly: float) -> None:
    exact = value(2, target, perfect=True)
    assert exact == pytest.approx(perfect, abs=5e-7)
    assert value(2, target, perfect=False) == pytest.approx(randomly, abs=5e-5)
    env = Game2048(size=2, target=target, turns=200)
    assert env.optimal_success == env.optimal_return == pytest.approx(exact, abs=1e-12)


def test_the_table_agrees_with_a_search_on_every_board_of_a_game_of_3x3() -> None:
    """To 8, from random boards that are nearly full, so that a search is short."""
    losses, rng = game_2048._losses(3, 8), random.Random(0)
    for _ in range(300):
        tiles = [rng.choice([0, 1, 2]) for _ in range(9)]
        if tiles.count(0) > 2:
            continue
        board = tuple(tuple(2**tile if tile else 0 for tile in tiles[row : row + 3]) for row in (0, 3, 6))
        number = sum(tile * 3**place for place, tile in enumerate(reversed(tiles)))
        assert losses[number] == pytest.approx(1 - search(board, 8), abs=1e-12)


@cache
def search(board: Board, target: int) -> float:
    best = 0.0
    for action in ACTIONS:
        after = moved(board, action)
        if max(map(max, after)) >= target:
            return 1.0
        if after != board:
            best = max(best, math.fsum(chance * search(next_, target) for next_, chance in spawned(after)))
    return best


def test_the_solver_of_the_default_wins_as_often_as_it_must() -> None:
    env = Game2048()
    won = played(env, lambda seed: env.solver(), 2_000)
    assert won == pytest.approx(0.962511, abs=4 * math.sqrt(0.9625 * 0.0375 / 2_000))


@given(seed=st.integers(0, 2**32), size=st.integers(2, 4))
def test_moves_do_what_the_rules_say_and_one_tile_appears(seed: int, size: int) -> None:
    env = Game2048(size=size, target=2048, turns=60)
    observation, info = env.reset(seed=seed)
    policy = env.random_policy(seed)
    assert sorted(tile for row in read(observation, size) for tile in row if tile) in ([2, 2], [2, 4], [4, 4])
    done = False
    while not done:
        before = read(observation, size)
        assert list(info["admissible_actions"]) == [action for action in ACTIONS if moved(before, action) != before]
        action = policy(observation)
        observation, _, done, _, info = env.step(action)
        after = read(observation, size)
        assert after in [board for board, _ in spawned(moved(before, action))]
        assert info["max_tile"] == max(map(max, after))


def test_tiles_appear_as_2_and_4_with_nine_to_one_and_on_every_cell_alike() -> None:
    env = Game2048(size=2)
    twos, cells = [], []
    for seed in range(4_000):
        board = read(env.reset(seed=seed)[0], 2)
        twos += [tile == 2 for row in board for tile in row if tile]
        cells += [place for place, tile in enumerate(board[0] + board[1]) if tile]
    assert fmean(twos) == pytest.approx(0.9, abs=0.015)
    for place in range(4):
        assert cells.count(place) / 4_000 == pytest.approx(0.5, abs=0.035)


@pytest.mark.parametrize(
    ("said", "answer"), [("up", "That changes nothing."), ("LEFT", "That changes nothing."), ("north", "Not a move.")]
)
def test_what_changes_nothing_costs_a_turn_and_no_tile_appears(said: str, answer: str) -> None:
    env = Game2048(turns=3)
    env.reset(seed=0)
    env._rows, env._legal = ((2, 4), (0, 0)), ("down",)
    for left in (2, 1, 0):
        observation, reward, done, _, info = env.step(said)
        assert observation == f"{answer}\n2 4\n. .\n{left} turn{'s' if left != 1 else ''} left."
        assert (reward, done, info["action_valid"], info["success"]) == (0.0, left == 0, False, False)


def test_the_game_is_over_when_nothing_can_move() -> None:
    env = Game2048(size=2, target=64, turns=200)
    for seed in range(20):
        steps = play(env, env.random_policy(seed), seed=seed)[1:]
        last = read(steps[-1][1], 2)
        assert len(steps) < 200
        assert all(moved(last, action) == last for action in ACTIONS)
        assert steps[-1][2:4] == (0.0, True)


def test_the_target_is_won_at_once_also_with_the_last_turn() -> None:
    env = Game2048(size=2, target=8, turns=1)
    env.reset(seed=0)
    env._rows, env._legal = ((4, 4), (2, 4)), ("left", "right", "down", "up")
    observation, reward, done, _, info = env.step(" Left\n")
    assert observation == "8 .\n2 4\n0 turns left."
    assert (reward, done, info["success"], info["max_tile"]) == (1.0, True, True, 8)


def test_two_games_of_many_turns_need_no_more_than_their_turn_limits() -> None:
    """So that the limit never decides a game of legal moves, and the optimum without one holds."""
    for difficulty, count in (("easy", 500), ("medium", 500), ("hard", 100)):
        env = Game2048(difficulty=difficulty)
        assert max(len(play(env, env.random_policy(seed), seed=seed)) - 1 for seed in range(count)) < env.turns
        assert env.optimal_success is not None
        assert Game2048(difficulty=difficulty, turns=3).optimal_success is None


def look_ahead(target: int, episodes: int) -> tuple[float, float]:
    """Return the share of games that it wins, and the mean number of moves of those."""
    env = Game2048(size=4, target=target, turns=2_000)
    games = [play(env, env.solver(), seed=seed)[1:] for seed in range(episodes)]
    won = [len(game) for game in games if game[-1][-1]["success"]]
    return len(won) / episodes, fmean(won)


def test_looking_ahead_makes_a_128_on_the_large_board() -> None:
    assert look_ahead(128, 5)[0] == 1.0
