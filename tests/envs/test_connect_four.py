from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.games import game
from support.lanes import examples

from gym_trl.envs.connect_four import ConnectFour
from gym_trl.testing import play
from gym_trl.types import Policy

Board = tuple[int, int, int]
"""Rows, columns, and how many connect."""


def lined_up(columns: list[str], mark: str, board: Board) -> bool:
    """Return True if a mark has a line in columns of discs from below."""
    connect = board[2]
    cells = {(x, y) for x, column in enumerate(columns) for y, disc in enumerate(column) if disc == mark}
    return any(
        all((x + right * step, y + up * step) in cells for step in range(connect))
        for x, y in cells
        for right, up in [(1, 0), (0, 1), (1, 1), (1, -1)]
    )


@examples(100)
@given(st.lists(st.integers(0, 8), max_size=81), st.integers(2, 9), st.integers(2, 9), st.integers(2, 9))
def test_discs_fall_and_lines_win_on_any_board(moves: list[int], rows: int, cols: int, connect: int) -> None:
    """No line goes on at the other side of the board."""
    board = (rows, cols, min(connect, max(rows, cols)))
    env = ConnectFour(rows=rows, cols=cols, connect=board[2], opponent="self", seat="first")
    env.reset(seed=0)
    columns = [""] * cols
    for turn, move in enumerate(move for move in moves if move < cols):
        assert env.admissible_actions() == [str(x + 1) for x in range(cols) if len(columns[x]) < rows]
        observation, payoff, over, _, info = env.step(str(move + 1))
        assert info["action_valid"] is (len(columns[move]) < rows)
        if not info["action_valid"]:
            return
        mark = "XO"[turn % 2]
        columns[move] += mark
        grid = [" ".join((column + "." * rows)[y] for column in columns) for y in reversed(range(rows))]
        assert "\n".join(grid) in observation
        won = lined_up(columns, mark, board)
        assert over is (won or sum(map(len, columns)) == rows * cols)
        if over:
            assert payoff == ({"X": 1.0, "O": -1.0}[mark] if won else 0.0)
            return


def payoffs(env: ConnectFour, policy: Any, episodes: int) -> list[float]:
    return [play(env, policy(seed), seed=seed)[-1][2] for seed in range(episodes)]


@pytest.mark.parametrize(
    ("board", "value"),
    [
        *[((2, 2, 2), 1), ((3, 3, 3), 0), ((3, 4, 3), 1), ((4, 4, 3), 1), ((3, 4, 4), 0), ((2, 5, 4), 0)],
        *[((4, 4, 4), 0), ((4, 5, 3), 1), ((4, 5, 4), 0), ((5, 5, 3), 1)],
    ],
)
def test_solved_boards_have_their_known_value(board: Board, value: int) -> None:
    rows, cols, connect = board
    env = ConnectFour(rows=rows, cols=cols, connect=connect, depth=99, opponent="minimax", seat="first")
    assert env.rules.value((0, 0)) == value
    if rows * cols <= 12:
        assert env.optimal_return == value
        assert set(payoffs(env, lambda _: env.solver(), 5)) == {value}


@pytest.mark.parametrize("board", [(3, 3, 3), (3, 4, 3), (2, 5, 4)])
@pytest.mark.parametrize("seat", ["first", "second"])
def test_the_solver_reaches_the_optimum_against_random_moves(seat: Any, board: Board) -> None:
    rows, cols, connect = board
    env = ConnectFour(rows=rows, cols=cols, connect=connect, opponent="random", seat=seat)
    assert fmean(payoffs(env, lambda _: env.solver(), 400)) == pytest.approx(env.optimal_return, abs=0.1)


def test_boards_with_too_many_positions_have_no_declared_optimum() -> None:
    """On 2x8 it took more than a minute to find how good the best response is."""
    for arguments in (
        {},
        {"difficulty": "hard"},
        {"difficulty": "easy", "opponent": "minimax", "depth": 2},
        {"rows": 2, "cols": 8, "difficulty": "easy"},
        {"rows": 2, "cols": 8, "opponent": "minimax", "depth": 3},
    ):
        env = game("ConnectFour", **arguments)
        assert env.optimal_success is env.optimal_return is None
        assert play(env, env.solver(), seed=0)[-1][3]


def test_easy_can_always_be_won_and_random_moves_win_two_thirds() -> None:
    env = ConnectFour(difficulty="easy")
    assert env.optimal_return == env.optimal_success == 1.0
    assert set(payoffs(env, lambda _: env.solver(), 100)) == {1.0}
    assert fmean(payoff > 0 for payoff in payoffs(env, env.random_policy, 500)) == pytest.approx(0.62, abs=0.08)


@pytest.mark.parametrize(("row", "move"), [("X X X . O O .", "4"), ("O O O . X X .", "4"), ("X . X X O O .", "2")])
def test_a_win_is_taken_and_a_threat_is_met(row: str, move: str) -> None:
    policy: Policy = ConnectFour(seat="first").solver()
    assert policy("\n".join(["You are X.", "1 2 3 4 5 6 7", *[". . . . . . ."] * 5, row])) == move
