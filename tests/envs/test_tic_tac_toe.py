"""Tic-tac-toe: the numbers are computed here by another program than the game's own."""

import random
from collections.abc import Callable
from functools import cache
from statistics import fmean
from typing import Any, Literal

import pytest

from gym_trl.envs.tic_tac_toe import TicTacToe
from gym_trl.testing import play
from gym_trl.types import Policy

Seat = Literal["first", "second"]
LINES = ["012", "345", "678", "036", "147", "258", "048", "246"]


def winner(board: str) -> str | None:
    """By looking at a string of nine characters: "X", "O", "-" for a draw, or None."""
    for line in LINES:
        marks = {board[int(cell)] for cell in line}
        if len(marks) == 1 and marks != {"."}:
            return marks.pop()
    return None if "." in board else "-"


def put(board: str, cell: int) -> str:
    return board[:cell] + mover(board) + board[cell + 1 :]


def mover(board: str) -> str:
    return "X" if board.count("X") == board.count("O") else "O"


def free(board: str) -> list[int]:
    return [cell for cell in range(9) if board[cell] == "."]


Shares = dict[str, float]
"""The probability of each end: "X", "O" or "-"."""


def worth(shares: Shares, player: str) -> float:
    return shares[player] - shares["O" if player == "X" else "X"]


@cache
def ends(board: str, x: str, o: str) -> tuple[tuple[str, float], ...]:
    """Return the chances of a game's ends; players are "random", "perfect" (ties at random) or "response" (best)."""
    end = winner(board)
    if end is not None:
        return tuple((name, float(name == end)) for name in "XO-")
    player = mover(board)
    kind = x if player == "X" else o
    children = {cell: dict(ends(put(board, cell), x, o)) for cell in free(board)}
    cells = free(board)
    if kind == "response":
        # Of responses that are worth the same, one that wins more often: there are such for O.
        rank = {cell: (round(worth(children[cell], player), 12), children[cell][player]) for cell in cells}
        cells = [max(cells, key=lambda cell: rank[cell])]
    elif kind == "perfect":
        values = {cell: worth(dict(ends(put(board, cell), "response", "response")), player) for cell in cells}
        cells = [cell for cell in cells if values[cell] == max(values.values())]
    return tuple((name, fmean(children[cell][name] for cell in cells)) for name in "XO-")


def shares(x: str, o: str) -> Shares:
    return dict(ends("." * 9, x, o))


def returns(env: TicTacToe, make_policy: Callable[[int], Policy], episodes: int) -> list[float]:
    return [play(env, make_policy(seed), seed=seed)[-1][2] for seed in range(episodes)]


def test_perfect_play_leads_to_a_draw() -> None:
    assert shares("response", "response") == {"X": 0, "O": 0, "-": 1}
    assert TicTacToe().rules.value((0, 0)) == 0
    for seat in ("first", "second"):
        env = TicTacToe(opponent="minimax", seat=seat)
        assert env.optimal_return == 0.0
        assert env.optimal_success == 1.0


def test_the_best_response_to_random_moves_has_the_known_value() -> None:
    x, o = shares("response", "random"), shares("random", "response")
    assert [x["X"], x["-"]] == pytest.approx([0.9948, 0.0052], abs=5e-5)
    assert [o["O"], o["-"]] == pytest.approx([0.9344, 0.0561], abs=5e-5)
    assert worth(o, "O") == pytest.approx(0.9249, abs=5e-5)
    by_seat: dict[Seat, tuple[Shares, str]] = {"first": (x, "X"), "second": (o, "O")}
    for seat, (found, mark) in by_seat.items():
        env = TicTacToe(opponent="random", seat=seat)
        assert env.optimal_return == pytest.approx(worth(found, mark))
        assert env.optimal_success == pytest.approx(found[mark])
    assert TicTacToe(seat="random").optimal_return == pytest.approx((worth(x, "X") + worth(o, "O")) / 2)


def test_random_moves_against_random_and_perfect_ones_have_the_known_values() -> None:
    """Against perfect ones only if these choose among equally good moves at random."""
    found = shares("random", "random")
    assert [found[name] for name in "XO-"] == pytest.approx([0.5849, 0.2881, 0.1270], abs=5e-5)
    assert worth(shares("random", "perfect"), "X") == pytest.approx(-0.7775, abs=5e-5)
    assert worth(shares("perfect", "random"), "O") == pytest.approx(-0.9678, abs=5e-5)


@pytest.mark.parametrize(
    ("opponent", "seat", "exact"),
    [("random", "first", 0.2968), ("random", "second", -0.2968), ("minimax", "first", -0.7775)],
)
def test_random_moves_are_paid_what_they_must_be(opponent: str, seat: Seat, exact: float) -> None:
    env = TicTacToe(opponent=opponent, seat=seat)
    assert fmean(returns(env, env.random_policy, 2_000)) == pytest.approx(exact, abs=0.08)


def test_the_opponents_moves_are_those_of_the_program_of_these_tests() -> None:
    """In every position: minimax has the moves of a perfect player, and all the same."""
    boards, seen = ["." * 9], set()
    while boards:
        board = boards.pop()
        if board in seen or winner(board) is not None:
            continue
        seen.add(board)
        cells, player = free(board), mover(board)
        boards += [put(board, cell) for cell in cells]
        masks = [sum(1 << cell for cell in range(9) if board[cell] == mark) for mark in "XO"]
        mine, theirs = masks if player == "X" else masks[::-1]
        values = {cell: worth(dict(ends(put(board, cell), "response", "response")), player) for cell in cells}
        best = [cell for cell in cells if values[cell] == max(values.values())]
        assert TicTacToe().rules.best_moves((mine, theirs)) == best
    assert len(seen) == 4520


@pytest.mark.full
@pytest.mark.parametrize("epsilon", [0.1, 0.5])
@pytest.mark.parametrize("seat", ["first", "second"])
@pytest.mark.parametrize("reward", ["payoff", "success"])
def test_the_solver_reaches_the_optimum_against_a_fallible_opponent(epsilon: float, seat: Seat, reward: str) -> None:
    env = TicTacToe(opponent="epsilon", epsilon=epsilon, seat=seat, reward=reward)
    assert env.optimal_return is not None
    assert fmean(returns(env, lambda _: env.solver(), 1_000)) == pytest.approx(env.optimal_return, abs=0.08)


def test_playing_for_wins_wins_at_least_as_often_as_playing_for_the_payoff() -> None:
    for_wins = TicTacToe(opponent="random", seat="second", reward="success")
    for_payoff = TicTacToe(opponent="random", seat="second", reward="payoff")
    assert for_wins.optimal_success is not None
    assert for_payoff.optimal_success is not None
    assert for_wins.optimal_success >= for_payoff.optimal_success


def test_the_solver_never_loses_against_anyone() -> None:
    """In self-play and against a perfect opponent; also as O."""
    for opponent in ("minimax", "self"):
        for seed in range(50):
            env = TicTacToe(opponent=opponent)
            assert play(env, env.solver(), seed=seed)[-1][2] == 0.0


def test_a_draw_is_a_success_against_a_perfect_opponent_only() -> None:
    perfect = TicTacToe(opponent="minimax", seat="second").solver
    for opponent, success in (("minimax", True), ("self", True), ("epsilon", False), (perfect, False)):
        env = TicTacToe(opponent=opponent, epsilon=1e-9, seat="first")
        steps = play(env, env.solver(), seed=0)
        assert (steps[-1][2], steps[-1][-1]["success"]) == (0.0, success)


def test_a_won_a_lost_and_a_drawn_game() -> None:
    won = TicTacToe(opponent=_in_order("4", "5"), seat="first")
    assert [won.reset()[0], *(won.step(cell)[1] for cell in "123")][1:] == [0.0, 0.0, 1.0]
    assert won.step("9")[0] == "X X X\nO O 6\n7 8 9\nYou won."
    lost = TicTacToe(opponent=_in_order("4", "5", "6"), seat="first")
    lost.reset()
    steps = [lost.step(cell) for cell in "129"]
    assert steps[-1][:3] == ("X X 3\nO O O\n7 8 X\nYou lost.", -1.0, True)
    assert not steps[-1][-1]["success"]
    drawn = TicTacToe(opponent=_in_order("1", "3", "8", "4"), seat="first")
    drawn.reset()
    steps = [drawn.step(cell) for cell in "52679"]
    assert steps[-1][:3] == ("O X O\nO X X\nX O X\nDraw.", 0.0, True)
    assert not steps[-1][-1]["success"]


def test_the_last_cell_can_win() -> None:
    """A full board with a line is a win and no draw."""
    env = TicTacToe(opponent=_in_order("2", "3", "5", "6"), seat="first")
    env.reset()
    assert [env.step(cell)[1] for cell in "14897"] == [0.0, 0.0, 0.0, 0.0, 1.0]


def test_the_second_player_sees_the_first_ones_move() -> None:
    env = TicTacToe(opponent=_in_order("5"), seat="second")
    assert env.reset()[0] == "You are O.\n1 2 3\n4 X 6\n7 8 9"
    assert env.step("5")[0].startswith("Not a free cell.\nYou are O.\n1 2 3")


@pytest.mark.parametrize("said", ["", "0", "10", "5 5", "\u0665", "five", "+5", "5.0", "-1", "9" * 5_000, "X", "1\n2"])
def test_what_is_no_free_cell_is_invalid(said: str) -> None:
    env = TicTacToe(seat="first")
    env.reset(seed=0)
    assert not env.step(said)[-1]["action_valid"]


@pytest.mark.parametrize("said", [" 5", "5\n", "\t5 "])
def test_whitespace_around_a_number_is_fine(said: str) -> None:
    env = TicTacToe(seat="first")
    env.reset(seed=0)
    assert env.step(said)[-1]["action_valid"]


def test_a_cell_that_is_taken_cannot_be_taken_again() -> None:
    env = TicTacToe(opponent=_in_order("1"), seat="first")
    env.reset()
    env.step("5")
    for cell in ("5", "1"):
        assert env.step(cell)[-1]["action_valid"] is False


def test_a_constant_move_is_worth_less_than_random_ones() -> None:
    env = TicTacToe(opponent="random", seat="first")
    assert max(returns(env, lambda _: lambda _: "5", 200)) < 0


def _in_order(*cells: str) -> Callable[[], Policy]:
    return lambda: _script(list(cells))


def _script(actions: list[Any]) -> Policy:
    rng = random.Random(0)
    left = list(actions)
    return lambda observation: left.pop(0) if left else str(rng.randint(1, 9))
