import numpy as np
import pytest

from gym_trl.envs import lights_out
from gym_trl.envs.lights_out import LightsOut


@pytest.mark.parametrize(("size", "quiet"), [(2, 0), (3, 0), (4, 4), (5, 2), (6, 0), (7, 0), (8, 0), (9, 8), (10, 0)])
def test_as_many_boards_can_be_solved_as_the_oeis_says(size: int, quiet: int) -> None:
    """The exponents of the patterns that switch nothing are sequence A159257."""
    assert LightsOut(size=size).num_instances == 2 ** (size * size - quiet) - 1


def boards_by_presses(size: int) -> list[int]:
    """Return the number of boards that need 0, 1, 2, ... presses, from the smallest of the equivalent solutions."""
    algebra = lights_out._algebra(size)
    ones = np.array([number.bit_count() for number in range(1 << 13)], dtype=np.uint8)
    low, rest = np.zeros(1, dtype=np.int64), [0]
    for light in algebra.independent[:18]:
        low = np.concatenate([low, low ^ 1 << light])
    for light in algebra.independent[18:]:
        rest += [presses | 1 << light for presses in rest]
    counts = np.zeros(size * size + 1, dtype=np.int64)
    for presses in rest:
        same = [low ^ (presses ^ pattern) for pattern in algebra.quiet]
        fewest = np.min([ones[boards & 0x1FFF] + ones[boards >> 13] for boards in same], axis=0)
        counts += np.bincount(fewest, minlength=len(counts))
    return [int(count) for count in np.trim_zeros(counts, "b")]


@pytest.mark.parametrize(("size", "most", "mean"), [(4, 7, 4.4307), (5, 15, 9.9029)])
def test_boards_need_the_published_number_of_presses(size: int, most: int, mean: float) -> None:
    counts = boards_by_presses(size)
    assert len(counts) == most + 1
    assert sum(n * count for n, count in enumerate(counts)) / sum(counts) == pytest.approx(mean, abs=5e-5)
    for turns in range(1, most + 1):
        optimum = LightsOut(size=size, turns=turns).optimal_success
        assert optimum == pytest.approx(sum(counts[1 : turns + 1]) / (sum(counts) - 1), abs=1e-12)
