"""Connect four: small boards are solved here by another program, which looks at a grid of characters."""

from collections.abc import Callable
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.envs.connect_four import ConnectFour
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Board = tuple[int, int, int]
"""Rows, columns, and how many connect."""
Discs = tuple[int, int]
"""Those of X and of O as bits, row by row from below: another order than the game's own."""


@cache
def lines(board: Board) -> list[int]:
    """All lines that win, each as the bits of its cells."""
    rows, cols, connect = board
    found = []
    for x, y, (right, up) in product(range(cols), range(rows), [(1, 0), (0, 1), (1, 1), (1, -1)]):
        cells = [(x + right * step, y + up * step) for step in range(connect)]
        if all(0 <= a < cols and 0 <= b < rows for a, b in cells):
            found.append(sum(1 << (b * cols + a) for a, b in cells))
    return found


def ends(discs: Discs, board: Board) -> str | None:
    """Return the player with a line, "-" for a full board, or None."""
    for mark, bits in zip("XO", discs, strict=True):
        if any(bits & line == line for line in lines(board)):
            return mark
    return "-" if (discs[0] | discs[1]).bit_count() == board[0] * board[1] else None


def after(discs: Discs, board: Board) -> dict[int, Discs]:
    rows, cols, _ = board
    x, o = discs
    moves = {}
    for column in range(cols):
        for y in range(rows):
            cell = 1 << (y * cols + column)
            if not (x | o) & cell:
                moves[column] = (x | cell, o) if x.bit_count() == o.bit_count() else (x, o | cell)
                break
    return moves


@cache
def score(discs: Discs, board: Board) -> int:
    """For who is to move: a win with the nth disc is 1000 - n, a draw 0."""
    end = ends(discs, board)
    if end is not None:
        return 0 if end == "-" else (discs[0] | discs[1]).bit_count() - 1000
    return max([-score(then, board) for then in after(discs, board).values()])


def best(discs: Discs, board: Board) -> list[int]:
    scores = {column: -score(then, board) for column, then in after(discs, board).items()}
    return [column for column, found in scores.items() if found == max(scores.values())]


@cache
def response(discs: Discs, board: Board, waits: bool) -> float:
    """The payoff of a perfect player against random moves."""
    end = ends(discs, board)
    if end is not None:
        return 0.0 if end == "-" else (1.0 if waits else -1.0)
    values = [response(then, board, not waits) for then in after(discs, board).values()]
    return fmean(values) if waits else max(values)


def position(discs: Discs, board: Board) -> tuple[int, int]:
    """The game's own bits, column by column: of who is to move, and of both."""
    rows, cols, _ = board
    x, o = (
        sum(1 << (cell % cols * (rows + 1) + cell // cols) for cell in range(rows * cols) if bits >> cell & 1)
        for bits in discs
    )
    return (x if x.bit_count() == o.bit_count() else o), x | o


def solved(rows: int, cols: int, connect: int) -> ConnectFour:
    return ConnectFour(rows=rows, cols=cols, connect=connect, depth=99, opponent="minimax")


def returns(env: ConnectFour, make_policy: Callable[[int], Policy], episodes: int) -> list[float]:
    return [play(env, make_policy(seed), seed=seed)[-1][2] for seed in range(episodes)]


SMALL = [(2, 2, 2), (3, 3, 3), (4, 3, 3), (3, 4, 3), (4, 4, 3), (3, 4, 4), (2, 5, 4)]


@pytest.mark.parametrize(("board", "value"), list(zip(SMALL, [1, 0, 0, 1, 1, 0, 0], strict=True)))
def test_small_boards_have_the_value_and_the_best_moves_that_brute_force_finds(board: Board, value: int) -> None:
    """The best moves in all positions of the first four turns, which is also about winning soon and losing late."""
    exact = score((0, 0), board)
    assert (exact > 0) - (exact < 0) == value
    rules = solved(*board).rules
    assert rules.value((0, 0)) == value
    positions: set[Discs] = {(0, 0)}
    for _ in range(4):
        for discs in positions:
            assert rules.best_moves(position(discs, board)) == best(discs, board)
        positions = {then for discs in positions for then in after(discs, board).values() if not ends(then, board)}


@pytest.mark.nightly
@pytest.mark.parametrize("board", [(4, 5, 3), (5, 4, 3), (4, 4, 4)])
def test_boards_that_take_longer_have_the_value_that_brute_force_finds(board: Board) -> None:
    exact = score((0, 0), board)
    assert solved(*board).rules.value((0, 0)) == (exact > 0) - (exact < 0)


@pytest.mark.nightly
def test_the_best_response_to_random_moves_on_4x4_is_worth_what_brute_force_finds() -> None:
    env = ConnectFour(rows=4, cols=4, connect=4, opponent="random", seat="first")
    assert env.optimal_return == pytest.approx(response((0, 0), (4, 4, 4), False)) == pytest.approx(0.9470, abs=5e-5)


@pytest.mark.parametrize(("board", "value"), [((4, 4, 4), 0), ((4, 5, 3), 1), ((4, 5, 4), 0), ((5, 5, 3), 1)])
def test_alpha_beta_solves_these_boards(board: Board, value: int) -> None:
    assert solved(*board).rules.value((0, 0)) == value


@examples(200)
@given(st.lists(st.integers(0, 3), max_size=14), st.sampled_from([(4, 4, 3), (3, 4, 4), (3, 4, 3)]))
def test_the_search_to_the_end_is_right_in_any_position(moves: list[int], board: Board) -> None:
    discs = (0, 0)
    for move in moves:
        allowed = after(discs, board)
        if move in allowed and not ends(allowed[move], board):
            discs = allowed[move]
    if after(discs, board):
        assert solved(*board).rules.best_moves(position(discs, board)) == best(discs, board)


def test_boards_with_too_many_positions_are_not_searched_to_the_end() -> None:
    """On 2x8 it took more than a minute to say how good the best response is; now nobody knows."""
    assert ConnectFour(rows=2, cols=8, difficulty="easy").optimal_success is None
    env = ConnectFour(rows=2, cols=8, opponent="minimax", depth=3)
    assert env.optimal_return is None
    assert play(env, env.solver(), seed=0)[-1][3]


@examples(100)
@given(st.lists(st.integers(0, 8), max_size=81), st.integers(2, 9), st.integers(2, 9), st.integers(2, 9))
def test_lines_are_found_on_any_board_and_it_is_shown_as_it_is(
    moves: list[int], rows: int, cols: int, connect: int
) -> None:
    """No line goes on at the other side of the board."""
    board = (rows, cols, min(connect, max(rows, cols)))
    env = ConnectFour(rows=rows, cols=cols, connect=board[2], opponent="self", seat="first")
    env.reset(seed=0)
    discs = (0, 0)
    for move in moves:
        allowed = after(discs, board)
        assert env.admissible_actions() == [str(column + 1) for column in allowed]
        observation, payoff, over, _, info = env.step(str(move + 1))
        assert info["action_valid"] is (move in allowed)
        if move not in allowed:
            return
        discs = allowed[move]
        assert grid(discs, board) in observation
        end = ends(discs, board)
        assert over is (end is not None)
        if over:
            assert payoff == {"X": 1.0, "O": -1.0, "-": 0.0}[str(end)]
            return
        assert env._recognise(observation) == position(discs, board) == env._position


def grid(discs: Discs, board: Board) -> str:
    rows, cols, _ = board
    marks = ["X" if discs[0] >> cell & 1 else "O" if discs[1] >> cell & 1 else "." for cell in range(rows * cols)]
    return "\n".join(" ".join(marks[y * cols : (y + 1) * cols]) for y in reversed(range(rows)))


@pytest.mark.parametrize("seat", ["first", "second"])
@pytest.mark.parametrize("board", [(3, 3, 3), (4, 4, 3), (3, 4, 3), (2, 5, 4)])
def test_the_best_response_to_random_moves_is_worth_what_brute_force_finds(seat: Any, board: Board) -> None:
    exact = response((0, 0), board, seat == "second")
    rows, cols, connect = board
    env = ConnectFour(rows=rows, cols=cols, connect=connect, opponent="random", seat=seat)
    assert env.optimal_return == pytest.approx(exact)
    assert fmean(returns(env, lambda _: env.solver(), 300)) == pytest.approx(exact, abs=0.15)


def test_easy_can_always_be_won_and_random_moves_win_two_thirds() -> None:
    env = ConnectFour(difficulty="easy")
    assert env.optimal_return == env.optimal_success == 1.0
    assert set(returns(env, lambda _: env.solver(), 100)) == {1.0}
    assert fmean(payoff > 0 for payoff in returns(env, env.random_policy, 1_000)) == pytest.approx(0.62, abs=0.06)


def test_dropping_always_into_one_column_is_worth_little_where_the_opponent_looks_ahead() -> None:
    """Against random moves alone it wins most games, so no 6x7 preset has such an opponent."""
    env = ConnectFour()
    assert fmean(returns(env, lambda _: lambda _: "4", 150)) < -0.75
    assert fmean(returns(ConnectFour(opponent="random"), lambda _: lambda _: "4", 150)) > 0.2


@pytest.mark.parametrize(("seat", "payoff"), [("first", 1.0), ("second", -1.0)])
def test_against_a_perfect_opponent_the_solver_gets_the_value_of_the_game(seat: Any, payoff: float) -> None:
    env = ConnectFour(rows=4, cols=4, connect=3, depth=16, opponent="minimax", seat=seat)
    assert env.optimal_return == payoff
    assert set(returns(env, lambda _: env.solver(), 10)) == {payoff}


def test_a_draw_is_a_success_against_a_perfect_opponent() -> None:
    env = ConnectFour(rows=3, cols=3, connect=3, depth=9, opponent="minimax")
    assert (env.optimal_return, env.optimal_success) == (0.0, 1.0)
    steps = play(env, env.solver(), seed=0)
    assert (steps[-1][2], steps[-1][-1]["success"]) == (0.0, True)


def test_nobody_claims_to_know_the_optimum_of_what_cannot_be_searched() -> None:
    for arguments in ({}, {"difficulty": "hard"}, {"difficulty": "easy", "opponent": "minimax", "depth": 2}):
        assert ConnectFour(**arguments).optimal_success is None
        assert ConnectFour(**arguments).optimal_return is None


@pytest.mark.full
@pytest.mark.parametrize(("difficulty", "least"), [("medium", 0.9), ("hard", 0.7)])
def test_the_solver_wins_most_games(difficulty: Any, least: float) -> None:
    env = ConnectFour(difficulty=difficulty)
    assert fmean(payoff > 0 for payoff in returns(env, lambda _: env.solver(), 10)) >= least


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("arguments", "won"),
    [({"opponent": "random"}, 1.0), ({}, 0.99), ({"difficulty": "hard"}, 0.93)],
)
def test_the_solver_wins_the_share_of_the_table(arguments: dict[str, Any], won: float) -> None:
    env = ConnectFour(**arguments)
    assert fmean(payoff > 0 for payoff in returns(env, lambda _: env.solver(), 300)) == pytest.approx(won, abs=0.04)


def test_a_win_is_taken_and_a_threat_is_met() -> None:
    env = ConnectFour(seat="first")
    lines = [". . . . . . ."] * 5
    for row, move in (("X X X . O O .", "4"), ("O O O . X X .", "4"), ("X . X X O O .", "2")):
        observation = "\n".join(["You are X.", "1 2 3 4 5 6 7", *lines, row])
        assert env.solver()(observation) == move


def test_a_column_can_be_filled_and_is_then_refused() -> None:
    env = ConnectFour(opponent=lambda _: "1", seat="first")
    env.reset(seed=0)
    for _ in range(3):
        assert env.step("1")[-1]["action_valid"]
    observation, _, _, _, info = env.step("1")
    assert info == {"action_valid": False, "success": False, "admissible_actions": ["2", "3", "4", "5", "6", "7"]}
    assert observation.startswith("There is no such column, or it is full.\nYou are X.\n1 2 3 4 5 6 7\nO . .")


def test_a_full_board_without_a_line_is_a_draw() -> None:
    env = ConnectFour(rows=2, cols=2, connect=2, opponent="self", mistakes=1)
    env.reset(seed=0)
    assert env.step("1")[2] is False
    assert env.step("2")[2] is False
    assert env.step("1")[:3] == ("1 2\nX .\nX O\nX won.", 1.0 if env._seat == 0 else -1.0, True)
    drawn = ConnectFour(rows=2, cols=3, connect=3, opponent="self")
    drawn.reset(seed=0)
    steps = [drawn.step(column) for column in "122133"]
    assert steps[-1][:3] == ("1 2 3\nO X O\nX O X\nDraw.", 0.0, True)


@pytest.mark.parametrize("said", ["", "0", "8", "4.0", "\u0664", "four", "+4", "4 4", "9" * 5_000, "-1"])
def test_what_is_no_column_is_invalid(said: str) -> None:
    env = ConnectFour(seat="first")
    env.reset(seed=0)
    assert not env.step(said)[-1]["action_valid"]


@pytest.mark.parametrize("said", [" 4", "4\n", "\t4 "])
def test_whitespace_around_a_number_is_fine(said: str) -> None:
    env = ConnectFour(seat="first")
    env.reset(seed=0)
    assert env.step(said)[-1]["action_valid"]


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {"rows": 2, "cols": 2, "connect": 2, "opponent": "random"},
        {"rows": 3, "cols": 4, "connect": 3, "depth": 12, "opponent": "minimax"},
        {"rows": 4, "cols": 9, "depth": 1},
        {"reward": "success", "opponent": "random", "difficulty": "easy"},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: ConnectFour(**arguments), episodes=10)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": 1}, "rows must be at least 2, got 1"),
        ({"cols": 10}, "cols must be at most 9, got 10"),
        ({"rows": "6"}, "rows must be an integer, got '6'"),
        ({"connect": 8}, "connect must fit on the board, got connect=8, rows=6 and cols=7"),
        ({"connect": True}, "connect must be an integer"),
        ({"depth": 0}, "depth must be at least 1, got 0"),
        ({"depth": 4.0}, "depth must be an integer"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConnectFour(**arguments)
