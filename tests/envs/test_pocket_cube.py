from statistics import fmean

import pytest
from support.games import game

from gym_trl.envs import pocket_cube
from gym_trl.envs.pocket_cube import PocketCube
from gym_trl.testing import play

SOLVED = "UUUURRRRFFFFDDDDLLLLBBBB"


def read(observation: str) -> str:
    lines = observation.splitlines()[-7:-1]
    assert [line[:3] for line in lines] == [f"{face}: " for face in "URFDLB"]
    return "".join(line[3:] for line in lines).replace(" ", "")


@pytest.mark.parametrize(
    ("instance", "cube"),
    [(0, "UUUUBBRRRRFFDDDDFFLLLLBB"), (3, "UFUFRRRRFDFDDBDBLLLLUBUB"), (6, "UULLURURFFFFRRDDLDLDBBBB")],
    ids="URF",
)
def test_a_turn_is_clockwise_as_seen_from_outside(instance: int, cube: str) -> None:
    assert read(PocketCube(scramble=1).reset(options={"instance": instance})[0]) == cube


def test_positions_are_as_far_away_as_is_published() -> None:
    """God's number in the half-turn metric is 11; all 3,674,160 positions."""
    counts = [1, 9, 54, 321, 1847, 9992, 50136, 227536, 870072, 1887748, 623800, 2644]
    assert sum(counts) == PocketCube(scramble=0).num_instances + 1 == 3_674_160
    for turns in range(1, 12):
        assert PocketCube(scramble=0, turns=turns).optimal_success == sum(counts[1 : turns + 1]) / 3_674_159
    away = list(pocket_cube._distances())
    assert [away.count(steps) for steps in range(12)] == counts


def test_a_quarter_turn_metric_needs_14_moves() -> None:
    away = list(pocket_cube._distances(("U", "U'", "R", "R'", "F", "F'")))
    assert [away.count(steps) for steps in (0, 1, 2, 3, 4, 5, 14, 15)] == [1, 6, 27, 120, 534, 2256, 276, 0]


def test_the_solver_of_any_position_needs_9_moves_in_the_mean() -> None:
    env = PocketCube(difficulty="hard", turns=11)
    lengths = [len(play(env, env.solver(), seed=seed)) - 1 for seed in range(200)]
    assert max(lengths) <= 11
    assert fmean(lengths) == pytest.approx(8.7556, abs=0.3)


@pytest.mark.parametrize(("length", "count"), [(1, 9), (2, 54), (3, 321)])
def test_the_instances_are_all_scrambles_of_a_length(length: int, count: int) -> None:
    """Three of the sequences of three moves lead where others do."""
    env = PocketCube(scramble=length)
    starts = {read(env.reset(options={"instance": i})[0]) for i in range(env.num_instances)}
    assert len(starts) == count


def test_no_game_is_solved_at_its_start() -> None:
    """Not even where a sequence leads back to the solved position."""
    env = PocketCube(scramble=6)
    for instance in range(env.num_instances):
        assert read(env.reset(options={"instance": instance})[0]) != SOLVED


def test_the_optimum_of_scrambles_longer_than_the_turns_is_unknown() -> None:
    assert game("PocketCube", scramble=5, turns=4).optimal_success is None
