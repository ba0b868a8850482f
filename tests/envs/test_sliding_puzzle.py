from statistics import fmean

import pytest

from gym_trl.envs.sliding_puzzle import SlidingPuzzle


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "cols", "count", "mean", "most"),
    [(2, 2, 12, 3.0, 6), (2, 3, 360, 12.6222, 21), (3, 2, 360, 12.6222, 21), (3, 3, 181440, 21.9724, 31)],
)
def test_solutions_are_as_long_as_the_table_says(rows: int, cols: int, count: int, mean: float, most: int) -> None:
    lengths = [0]
    for turns in range(1, most + 1):
        share = SlidingPuzzle(rows=rows, cols=cols, turns=turns).optimal_success
        lengths += [turns] * (round(share * (count - 1)) + 1 - len(lengths))
    assert len(lengths) == count
    assert lengths[-1] == most
    assert fmean(lengths) == pytest.approx(mean, abs=5e-5)
