"""Minesweeper: numbers and floods, and risks that are those of counting all layouts."""

import random
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.minesweeper import Minesweeper, neighbours_of, risks


def numbers(rows: int, columns: int, mined: frozenset[int]) -> list[int]:
    """Return the number of mines around each cell, by distance."""
    places = [divmod(place, columns) for place in range(rows * columns)]
    return [sum(max(abs(r - places[m][0]), abs(c - places[m][1])) == 1 for m in mined) for r, c in places]


@given(st.integers(2, 20), st.integers(2, 20), st.data())
def test_numbers_count_the_mines_around_and_zeros_open_what_is_around(
    rows: int, columns: int, data: st.DataObject
) -> None:
    env = Minesweeper(rows=rows, columns=columns, mines=(mines := data.draw(st.integers(1, rows * columns - 1))))
    env.reset(options={"instance": data.draw(st.integers(0, env.num_instances - 1))})
    row, column = data.draw(st.tuples(st.integers(1, rows), st.integers(1, columns)))
    lines = env.step(f"reveal {row} {column}")[0].partition("Mines")[2].splitlines()[2:]
    cells, right = [cell for line in lines for cell in line.split()[1:]], numbers(rows, columns, env.mined)
    assert (len(env.mined), cells[(row - 1) * columns + column - 1].isdigit()) == (mines, True)
    for here, cell in enumerate(cells):
        around = [cells[near] for near in neighbours_of(rows, columns)[here]]
        assert cell in (".", str(right[here]))
        assert cell != "0" or "." not in around


@examples(60)
@given(st.integers(3, 4), st.integers(3, 5), st.integers(1, 5), st.integers(0, 2**32), st.integers(0, 6))
def test_risks_are_those_of_counting_all_layouts(rows: int, columns: int, mines: int, seed: int, opened: int) -> None:
    rng, cells = random.Random(seed), set(range(rows * columns))
    right = numbers(rows, columns, mined := frozenset(rng.sample(sorted(cells), mines)))
    shown = set(rng.sample(sorted(cells - mined), min(opened, len(cells) - mines)))
    layouts = [
        other
        for other in map(frozenset, combinations(cells - shown, mines))
        if all(numbers(rows, columns, other)[at] == right[at] for at in shown)
    ]
    board = [right[at] if at in shown else -1 for at in sorted(cells)]
    held = Counter(cell for layout in layouts for cell in layout)
    expected = {cell: held[cell] / len(layouts) for cell in cells - shown}
    assert risks(board, neighbours_of(rows, columns), mines) == pytest.approx(expected)
