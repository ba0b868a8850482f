"""Tic-tac-toe: every ending, and the values of perfect and random play."""

from statistics import fmean

import pytest

from gym_trl.envs.tic_tac_toe import TicTacToe
from gym_trl.testing import play
from gym_trl.wrappers import Opponent


@pytest.mark.parametrize(
    ("cells", "shown", "first"),
    [
        ("14253", "X X X\nO O 6\n7 8 9\nX won.", 1.0),
        ("142596", "X X 3\nO O O\n7 8 X\nO won.", -1.0),
        ("512368749", "O X O\nO X X\nX O X\nDraw.", 0.0),
        ("124385967", "X O O\nX O O\nX X X\nX won.", 1.0),  # a full board with a line is no draw
    ],
)
def test_a_game_ends_with_a_line_or_a_full_board(cells: str, shown: str, first: float) -> None:
    env = TicTacToe()
    env.reset()
    *before, last = [env.step(cell) for cell in cells]
    assert not any(step[2] for step in before)
    assert (last[0], last[4]["payoffs"]) == (shown, (first, 0.0 - first))


@pytest.mark.parametrize(
    ("policy", "opponent", "seat", "value"),
    [
        *[("solver", "solver", 0, 0.0), ("random_policy", "random", 0, 0.2968), ("solver", "random", 0, 0.9948)],
        *[("solver", "random", 1, 0.8063), ("random_policy", "solver", 0, -0.8063)],
    ],
)
def test_play_is_worth_what_enumeration_says(policy: str, opponent: str, seat: int, value: float) -> None:
    env = Opponent(TicTacToe(), opponent, seat)
    paid = [play(env, getattr(env.unwrapped, policy)(seed), seed=seed)[-1][2] for seed in range(2_000)]
    assert fmean(paid) == pytest.approx(value, abs=0.08)
