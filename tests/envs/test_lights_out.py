import pytest

from gym_trl.envs.lights_out import LightsOut


@pytest.mark.parametrize(("size", "quiet"), [(2, 0), (3, 0), (4, 4), (5, 2), (6, 0), (7, 0), (8, 0), (9, 8), (10, 0)])
def test_as_many_boards_can_be_solved_as_the_oeis_says(size: int, quiet: int) -> None:
    """The exponents of the patterns that switch nothing are sequence A159257."""
    assert LightsOut(size=size).num_instances == 2 ** (size * size - quiet) - 1
