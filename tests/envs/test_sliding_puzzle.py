from statistics import fmean

import pytest
from hypothesis import given, strategies as st
from support.games import game

from gym_trl.envs.sliding_puzzle import SlidingPuzzle
from gym_trl.testing import play


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


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 3), cols=st.integers(2, 3))
def test_a_tile_slides_into_the_gap_and_back(seed: int, rows: int, cols: int) -> None:
    env = SlidingPuzzle(rows=rows, cols=cols, turns=40)
    before, info = env.reset(seed=seed)
    for tile in info["admissible_actions"]:
        env.reset(seed=seed)
        observation, _, done, _, info = env.step(tile)
        swapped = observation.replace("_", "?").replace(tile, "_", 1).replace("?", tile)
        assert swapped == before.replace("40 turns", "39 turns")
        if not done:
            assert env.step(tile)[0] == before.replace("40 turns", "38 turns")


def test_the_solver_of_3x3_needs_22_moves_in_the_mean() -> None:
    env = game("SlidingPuzzle", difficulty="hard")
    lengths = [len(play(env, env.solver(), seed=seed)) - 1 for seed in range(100)]
    assert max(lengths) <= 31
    assert fmean(lengths) == pytest.approx(21.97, abs=1.4)


def test_the_last_turn_can_win() -> None:
    env = SlidingPuzzle(rows=2, cols=2, turns=1)
    for start, tile in {"1 2\n_ 3\n": "3", "1 _\n3 2\n": "2"}.items():
        while not env.reset()[0].startswith(start):
            pass
        assert env.step(tile)[1:3] == (1.0, True)
