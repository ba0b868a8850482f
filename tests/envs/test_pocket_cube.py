import math
from functools import partial
from itertools import pairwise, product
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs import pocket_cube
from gym_trl.envs.pocket_cube import PocketCube
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

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


def distances(depth: int) -> dict[str, int]:
    found, ring = {SOLVED: 0}, [SOLVED]
    for steps in range(1, depth + 1):
        outer = []
        for cube in ring:
            for action in ACTIONS:
                after = turned(cube, action)
                if after not in found:
                    found[after] = steps
                    outer.append(after)
        ring = outer
    return found


def read(observation: str) -> str:
    lines = observation.splitlines()[-7:-1]
    assert [line[:3] for line in lines] == [f"{face}: " for face in "URFDLB"]
    return "".join(line[3:] for line in lines).replace(" ", "")


def success(env: PocketCube, policy: Policy) -> float:
    return fmean(play(env, policy, options={"instance": i})[-1][-1]["success"] for i in range(env.num_instances))


def say(action: str, observation: str) -> str:
    return action


def test_every_position_is_at_most_11_moves_away() -> None:
    """God's number in the half-turn metric; all 3,674,160 positions."""
    counts = np.bincount(np.frombuffer(pocket_cube._distances(), dtype=np.uint8))
    assert counts.tolist() == [1, 9, 54, 321, 1847, 9992, 50136, 227536, 870072, 1887748, 623800, 2644]
    assert counts.tolist() == list(pocket_cube._BY_DISTANCE)
    assert counts.sum() == 3_674_160 == math.factorial(7) * 3**6
    assert counts @ np.arange(12) / counts.sum() == pytest.approx(8.7556, abs=5e-5)
    assert PocketCube(difficulty="hard").num_instances == 3_674_159


def test_every_position_is_at_most_14_quarter_turns_away() -> None:
    """And God's number in the quarter-turn metric."""
    table = pocket_cube._distances(("U", "U'", "R", "R'", "F", "F'"))
    counts = np.bincount(np.frombuffer(table, dtype=np.uint8)).tolist()
    assert counts[:6] == [1, 6, 27, 120, 534, 2256]
    assert (len(counts) - 1, counts[-1], sum(counts)) == (14, 276, 3_674_160)


def test_the_table_agrees_with_a_search_over_stickers() -> None:
    away = distances(5)
    assert [list(away.values()).count(steps) for steps in range(6)] == [1, 9, 54, 321, 1847, 9992]
    table = pocket_cube._distances()
    for cube, steps in away.items():
        assert table[pocket_cube._number(tuple(cube))] == steps


@pytest.mark.parametrize("action", ACTIONS)
def test_moves_turn_faces_as_written_down_by_hand(action: str) -> None:
    env = PocketCube(difficulty="hard")
    for seed in range(20):
        cube = read(env.reset(seed=seed)[0])
        assert read(env.step(action)[0]) == turned(cube, action)


@given(st.integers(0, 3_674_159))
def test_numbers_and_positions_are_one_to_one(number: int) -> None:
    stickers = pocket_cube._stickers(number)
    assert pocket_cube._number(stickers) == number
    assert sorted(stickers) == sorted(SOLVED)


@given(st.lists(st.sampled_from(ACTIONS), max_size=30))
def test_undoing_moves_in_reverse_solves_the_cube(moves: list[str]) -> None:
    stickers = tuple(SOLVED)
    for move in moves:
        stickers = pocket_cube._TURNS[move](stickers)
    back = {"": "'", "'": "", "2": "2"}
    for move in reversed(moves):
        stickers = pocket_cube._TURNS[move[0] + back[move[1:]]](stickers)
    assert stickers == tuple(SOLVED)


@pytest.mark.parametrize(("moves", "order"), [("U", 4), ("R2", 2), ("R U R' U'", 6), ("R U2 R' U' R U' R'", 6)])
def test_sequences_of_moves_have_their_known_orders(moves: str, order: int) -> None:
    stickers, repeated = tuple(SOLVED), 0
    while repeated == 0 or stickers != tuple(SOLVED):
        repeated += 1
        for move in moves.split():
            stickers = pocket_cube._TURNS[move](stickers)
    assert repeated == order


def test_the_solver_is_shortest() -> None:
    env = PocketCube(scramble=3, turns=3, reward="efficient")
    away = distances(3)
    for instance in range(env.num_instances):
        steps = play(env, env.solver(), options={"instance": instance})
        assert len(steps) - 1 == away[read(steps[0][0])] == env._fewest_actions()
        assert steps[-1][2] == 1.0


def test_the_solver_of_any_position_takes_no_longer_than_11_moves_and_9_in_the_mean() -> None:
    env = PocketCube(difficulty="hard", turns=11)
    lengths = [len(play(env, env.solver(), seed=seed)) - 1 for seed in range(200)]
    assert max(lengths) <= 11
    assert fmean(lengths) == pytest.approx(8.7556, abs=0.3)
    assert env.optimal_success == env.optimal_return == 1.0


def test_the_optimum_with_few_turns_is_the_share_of_positions_that_are_near_enough() -> None:
    counts = pocket_cube._BY_DISTANCE
    for turns in range(1, 12):
        env = PocketCube(scramble=0, turns=turns)
        assert env.optimal_success == sum(counts[1 : turns + 1]) / 3_674_159
    assert PocketCube(scramble=5, turns=4).optimal_success is None
    env = PocketCube(scramble=0, turns=9)
    won = fmean(play(env, env.solver(), seed=seed)[-1][-1]["success"] for seed in range(300))
    assert won == pytest.approx(env.optimal_success, abs=0.09)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_all_sequences_that_never_turn_a_face_twice_in_a_row_are_instances(length: int) -> None:
    ends = []
    for moves in product(ACTIONS, repeat=length):
        if all(one[0] != other[0] for one, other in pairwise(moves)):
            cube = SOLVED
            for move in moves:
                cube = turned(cube, move)
            ends.append(cube)
    env = PocketCube(scramble=length)
    assert env.num_instances == len(ends)
    starts = [read(env.reset(options={"instance": i})[0]) for i in range(env.num_instances)]
    assert sorted(starts) == sorted(ends)
    assert SOLVED not in starts


def test_no_game_is_solved_at_its_start() -> None:
    """Not even where a sequence leads back to the solved position."""
    env = PocketCube(scramble=6)
    for instance in range(0, env.num_instances, 5):
        assert pocket_cube._scrambled(6, instance) != tuple(SOLVED)
    repeated = [pocket_cube._scrambled(12, number) for number in range(0, 9 * 6**11, 9 * 6**11 // 5_000)]
    assert tuple(SOLVED) not in repeated


def test_the_potential_is_one_less_the_distance_in_elevenths() -> None:
    env, away = PocketCube(scramble=2, reward="shaped"), distances(2)
    for instance in range(env.num_instances):
        observation, _ = env.reset(options={"instance": instance})
        assert env._potential() == 1 - away[read(observation)] / 11


@pytest.mark.full
@pytest.mark.parametrize(("difficulty", "exact"), [("easy", 1 / 9), ("medium", 0.003607)])
def test_random_moves_win_what_they_must_and_the_same_move_again_and_again_no_more(
    difficulty: Any, exact: float
) -> None:
    env = PocketCube(difficulty=difficulty)
    after = {cube: [turned(cube, action) for action in ACTIONS] for cube in distances(4)}
    chance = {cube: float(cube == SOLVED) for cube in after}
    for _ in range(env.turns):  # from five moves away six are too few, there and back
        chance = {
            cube: 1.0 if cube == SOLVED else fmean(chance.get(next_, 0.0) for next_ in after[cube]) for cube in after
        }
    starts = [read(env.reset(options={"instance": i})[0]) for i in range(env.num_instances)]
    assert fmean(chance[start] for start in starts) == pytest.approx(exact, abs=5e-6)
    sampled = fmean(play(env, env.random_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(3_000))
    assert sampled == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 3_000))
    for action in ACTIONS:
        assert success(env, partial(say, action)) == (exact if difficulty == "easy" else 0.0)
    assert success(env, partial(say, "")) == success(env, partial(say, env.garbage)) == 0.0


@pytest.mark.parametrize("action", ACTIONS)
def test_the_same_move_again_and_again_solves_no_scrambled_cube(action: str) -> None:
    env = PocketCube(difficulty="hard")
    assert not any(play(env, partial(say, action), seed=seed)[-1][2] for seed in range(50))


@pytest.mark.parametrize("said", ["r'", " R' \n", "R\u2019"])
def test_case_whitespace_and_the_apostrophe_do_not_matter(said: str) -> None:
    env = PocketCube(scramble=1)
    env.reset(options={"instance": 3})
    assert env.step(said)[1:3] == (1.0, True)


@pytest.mark.parametrize(
    "said", ["", "L", "D", "B2", "R3", "R''", "R 2", "RU", "R U", "R2'", "x", "\uff32", "R" * 9999, "turn R"]
)
def test_what_is_no_move_costs_a_turn_and_changes_nothing(said: str) -> None:
    env = PocketCube(turns=3)
    before, _ = env.reset(seed=0)
    for left in (2, 1, 0):
        observation, reward, done, _, info = env.step(said)
        assert (reward, done, info["action_valid"]) == (0.0, left == 0, False)
        assert observation.startswith("Not a move.\nU: ")
        assert read(observation) == read(before)
        assert observation.endswith(f"\n{left} turn{'s' if left != 1 else ''} left.")


def test_the_example_in_the_instructions_is_no_move() -> None:
    assert "written like L' (but L does not turn)" in PocketCube().instructions


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", [{"scramble": 1, "turns": 1}, {"scramble": 0, "turns": 8}, {"scramble": 30, "turns": 5}]
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: PocketCube(**arguments), episodes=20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"scramble": -1}, "scramble must be at least 0, got -1"),
        ({"scramble": 31}, "scramble must be at most 30, got 31"),
        ({"scramble": "3"}, "scramble must be an integer, got '3'"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": False}, "turns must be an integer, got False"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        PocketCube(**arguments)
