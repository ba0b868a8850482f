from collections.abc import Iterator
from statistics import fmean

import pytest
from hypothesis import given, strategies as st
from support.games import game

from gym_trl.envs import pocket_cube
from gym_trl.envs.pocket_cube import PocketCube
from gym_trl.testing import play

ACTIONS = ("U", "U'", "U2", "R", "R'", "R2", "F", "F'", "F2")
SOLVED = "UUUURRRRFFFFDDDDLLLLBBBB"
# The cycles of a clockwise turn, written down by hand: faces are numbered UUUU 0-3, R 4-7, F 8-11, D 12-15, L 16-19 and
# B 20-23, each from its top left to its bottom right, and each sticker goes to the place named next.
CYCLES = {
    "U": [(0, 1, 3, 2), (8, 16, 20, 4), (9, 17, 21, 5)],
    "R": [(4, 5, 7, 6), (9, 1, 22, 13), (11, 3, 20, 15)],
    "F": [(8, 9, 11, 10), (2, 4, 13, 19), (3, 6, 12, 17)],
}


def turned(cube: str, action: str) -> str:
    for _ in range({"": 1, "2": 2, "'": 3}[action[1:]]):
        after = list(cube)
        for cycle in CYCLES[action[0]]:
            for source, target in zip(cycle, cycle[1:] + cycle[:1], strict=True):
                after[target] = cube[source]
        cube = "".join(after)
    return cube


def read(observation: str) -> str:
    lines = observation.splitlines()[-7:-1]
    assert [line[:3] for line in lines] == [f"{face}: " for face in "URFDLB"]
    return "".join(line[3:] for line in lines).replace(" ", "")


@given(st.integers(0, 3_674_158), st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=8))
def test_moves_turn_faces_as_written_down_by_hand(instance: int, moves: list[str]) -> None:
    env = PocketCube(scramble=0, turns=9)
    cube = read(env.reset(options={"instance": instance})[0])
    assert sorted(cube) == sorted(SOLVED)
    for move in moves:
        cube = turned(cube, move)
        observation, _, over, _, _ = env.step(move)
        assert read(observation) == cube
        assert over is (cube == SOLVED)
        if over:
            return


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


def scrambled(length: int) -> Iterator[str]:
    """Yield the cube after each sequence of moves that never turns a face twice in a row."""
    ends = [(SOLVED, "")]
    for _ in range(length):
        ends = [(turned(cube, move), move[0]) for cube, last in ends for move in ACTIONS if move[0] != last]
    return (cube for cube, _ in ends)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_the_instances_are_all_scrambles_of_a_length(length: int) -> None:
    env = PocketCube(scramble=length)
    starts = [read(env.reset(options={"instance": i})[0]) for i in range(env.num_instances)]
    assert sorted(starts) == sorted(scrambled(length))
    assert SOLVED not in starts


def test_no_game_is_solved_at_its_start() -> None:
    """Not even where a sequence leads back to the solved position."""
    env = PocketCube(scramble=6)
    assert SOLVED in scrambled(6)
    for instance in range(0, env.num_instances, 97):
        assert read(env.reset(options={"instance": instance})[0]) != SOLVED


def test_the_optimum_of_scrambles_longer_than_the_turns_is_unknown() -> None:
    assert game("PocketCube", scramble=5, turns=4).optimal_success is None
