import pytest

from gym_trl.envs.tower_of_hanoi import TowerOfHanoi
from gym_trl.testing import play


@pytest.mark.parametrize("disks", [1, 2, 3, 4, 5])
def test_a_tower_takes_two_to_the_disks_less_one_moves_and_a_random_position_two_thirds_of_that(disks: int) -> None:
    env = TowerOfHanoi(disks=disks, turns=2**disks - 1)
    lengths = [len(play(env, env.solver(), options={"instance": i})) - 1 for i in range(env.num_instances)]
    assert lengths[0] == max(lengths) == 2**disks - 1
    assert sum(lengths) * 3 == 2 * (2**disks - 1) * 3**disks
