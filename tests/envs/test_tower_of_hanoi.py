import pytest
from support.games import game

from gym_trl.envs.tower_of_hanoi import TowerOfHanoi
from gym_trl.testing import play


@pytest.mark.parametrize("disks", [1, 2, 3, 7, 10])
def test_a_tower_takes_two_to_the_disks_less_one_moves(disks: int) -> None:
    env = TowerOfHanoi(disks=disks, start="tower", turns=2**disks - 1)
    assert len(play(env, env.solver(), seed=0)[1:]) == 2**disks - 1
    assert env.optimal_success == 1.0
    assert TowerOfHanoi(disks=disks, start="tower", turns=max(1, 2**disks - 2)).optimal_success == float(disks == 1)


@pytest.mark.parametrize("disks", [1, 2, 3, 4, 5])
def test_a_random_position_takes_two_thirds_of_that_in_the_mean(disks: int) -> None:
    env = TowerOfHanoi(disks=disks, start="random", turns=2**disks - 1)
    lengths = [len(play(env, env.solver(), options={"instance": i})) - 1 for i in range(env.num_instances)]
    assert sum(lengths) * 3 == 2 * (2**disks - 1) * 3**disks
    assert max(lengths) == 2**disks - 1


def test_an_illegal_move_is_refused_with_its_reason() -> None:
    env = game("TowerOfHanoi", disks=2, start="tower")
    env.reset(seed=0)
    assert env.step("C A")[0].startswith("Peg C is empty.\nA: 2 1\n")
    env.step("A B")
    assert env.step("A B")[0].startswith("Disk 2 is larger than disk 1.\nA: 2\n")
    for peg in "ABC":  # GEM accepts it ("moved disk 1 from A to A")
        observation, _, _, _, info = env.step(f"{peg} {peg}")
        assert not info["action_valid"]
        assert observation.startswith("Name two different pegs.\n") or "turns" not in observation


def test_presets_have_many_starts() -> None:
    """GEM's has one."""
    assert [TowerOfHanoi(difficulty=name).num_instances for name in ("easy", "medium", "hard")] == [8, 26, 242]


def test_as_many_disks_as_a_legend_has_are_fine() -> None:
    assert 0 < TowerOfHanoi(disks=64, start="random", turns=30).optimal_success < 1e-15
    assert TowerOfHanoi(disks=64, turns=10**30).optimal_success == 1.0
