from collections.abc import Callable
from statistics import fmean
from typing import Literal

import pytest

from gym_trl.envs.tic_tac_toe import TicTacToe
from gym_trl.testing import play
from gym_trl.types import Policy


@pytest.mark.parametrize(
    ("seat", "payoff", "success"), [("first", 0.9948, 0.9948), ("second", 0.9249, 0.9344), ("random", 0.9599, None)]
)
def test_the_best_response_to_random_moves_has_the_published_value(
    seat: Literal["first", "second", "random"], payoff: float, success: float | None
) -> None:
    env = TicTacToe(opponent="random", seat=seat)
    assert env.optimal_return == pytest.approx(payoff, abs=1e-4)
    assert success is None or env.optimal_success == pytest.approx(success, abs=5e-5)
    paid = [play(env, env.solver(), seed=seed)[-1][2] for seed in range(400)]
    assert fmean(paid) == pytest.approx(payoff, abs=0.05)


@pytest.mark.parametrize(
    ("opponent", "seat", "exact"),
    [("random", "first", 0.2968), ("random", "second", -0.2968), ("minimax", "first", -0.7775)],
)
def test_random_moves_are_paid_their_published_value(
    opponent: str, seat: Literal["first", "second"], exact: float
) -> None:
    """Against perfect ones only if these choose among equally good moves at random."""
    env = TicTacToe(opponent=opponent, seat=seat)
    paid = [play(env, env.random_policy(seed), seed=seed)[-1][2] for seed in range(2_000)]
    assert fmean(paid) == pytest.approx(exact, abs=0.08)


@pytest.mark.parametrize("opponent", ["minimax", "self"])
def test_perfect_play_leads_to_a_draw(opponent: str) -> None:
    env = TicTacToe(opponent=opponent)
    assert (env.optimal_return, env.optimal_success) == (0.0, 1.0)
    assert {play(env, env.solver(), seed=seed)[-1][2] for seed in range(50)} == {0.0}


def test_a_draw_is_a_success_against_a_perfect_opponent_only() -> None:
    perfect = TicTacToe(opponent="minimax", seat="second").solver
    for opponent, success in (("minimax", True), ("self", True), ("epsilon", False), (perfect, False)):
        env = TicTacToe(opponent=opponent, epsilon=1e-9, seat="first")
        steps = play(env, env.solver(), seed=0)
        assert (steps[-1][2], steps[-1][-1]["success"]) == (0.0, success)


def in_order(cells: str) -> Callable[[], Policy]:
    """Return the maker of an opponent that plays these cells."""

    def make() -> Policy:
        moves = iter(cells)
        return lambda observation: next(moves)

    return make


@pytest.mark.parametrize(
    ("opponent", "cells", "shown", "payoff"),
    [
        ("45", "123", "X X X\nO O 6\n7 8 9\nYou won.", 1.0),
        ("456", "129", "X X 3\nO O O\n7 8 X\nYou lost.", -1.0),
        ("1384", "52679", "O X O\nO X X\nX O X\nDraw.", 0.0),
        ("2356", "14897", "X O O\nX O O\nX X X\nYou won.", 1.0),  # a full board with a line is no draw
    ],
)
def test_a_game_ends_with_a_line_or_a_full_board(opponent: str, cells: str, shown: str, payoff: float) -> None:
    env = TicTacToe(opponent=in_order(opponent), seat="first")
    env.reset()
    steps = [env.step(cell) for cell in cells]
    assert [step[1:3] for step in steps[:-1]] == [(0.0, False)] * (len(cells) - 1)
    assert steps[-1][:3] == (shown, payoff, True)
    assert steps[-1][-1]["success"] is (payoff > 0)
