"""Connect Four: lines on any board, and the known values of solved boards."""

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.connect_four import ConnectFour
from gym_trl.testing import play


def lined_up(columns: list[str], mark: str, connect: int) -> bool:
    cells = {(x, y) for x, column in enumerate(columns) for y, disc in enumerate(column) if disc == mark}
    return any(
        all((x + right * step, y + up * step) in cells for step in range(connect))
        for x, y in cells
        for right, up in [(1, 0), (0, 1), (1, 1), (1, -1)]
    )


@examples(100)
@given(st.lists(st.integers(0, 8), max_size=81), st.integers(2, 9), st.integers(2, 9), st.integers(2, 9))
def test_discs_fall_and_a_line_wins_on_any_board(moves: list[int], rows: int, cols: int, connect: int) -> None:
    """No line goes on at the other side of the board."""
    env = ConnectFour(rows=rows, cols=cols, connect=(connect := min(connect, max(rows, cols))))
    env.reset(seed=0)
    columns, turn = [""] * cols, 0
    for move in moves:
        if move < cols and len(columns[move]) < rows:
            columns[move] += "XO"[turn % 2]
            observation, payoff, over, *_ = env.step(str(move + 1))
            assert (
                "\n".join(" ".join((column + "." * rows)[y] for column in columns) for y in reversed(range(rows)))
                in observation
            )
            won = lined_up(columns, "XO"[turn % 2], connect)
            assert (over, payoff) == (won or sum(map(len, columns)) == rows * cols, float(won))
            turn += 1
            if over:
                return


@pytest.mark.parametrize(
    ("rows", "cols", "connect", "value"),
    [
        *[(2, 2, 2, 1), (3, 3, 3, 0), (3, 4, 3, 1), (4, 4, 3, 1), (3, 4, 4, 0), (2, 5, 4, 0), (4, 5, 3, 1)],
        pytest.param(4, 4, 4, 0, marks=pytest.mark.slow),
    ],
)
def test_a_solved_board_has_its_known_value(rows: int, cols: int, connect: int, value: int) -> None:
    env = ConnectFour(rows=rows, cols=cols, connect=connect, depth=rows * cols)
    for seed in range(8):  # whichever of the best columns is chosen
        assert play(env, env.solver(seed), seed=0)[-1][-1]["payoffs"][0] == value
