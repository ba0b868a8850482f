import math
from collections import deque
from functools import partial
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.sliding_puzzle import SlidingPuzzle
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Cells = tuple[int, ...]


def neighbours(rows: int, cols: int, cells: Cells) -> list[Cells]:
    """All positions one move away, by the rules and nothing else."""
    row, col = divmod(cells.index(0), cols)
    found = []
    for r, c in ((row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)):
        if 0 <= r < rows and 0 <= c < cols:
            after = list(cells)
            after[row * cols + col], after[r * cols + c] = after[r * cols + c], 0
            found.append(tuple(after))
    return found


def distances(rows: int, cols: int) -> dict[Cells, int]:
    """From every position that can be solved, found from the goal alone."""
    goal = (*range(1, rows * cols), 0)
    found = {goal: 0}
    queue = deque(found)
    while queue:
        cells = queue.popleft()
        for neighbour in neighbours(rows, cols, cells):
            if neighbour not in found:
                found[neighbour] = found[cells] + 1
                queue.append(neighbour)
    return found


def read(observation: str, rows: int) -> Cells:
    lines = observation.splitlines()[-rows - 1 : -1]
    return tuple(0 if tile == "_" else int(tile) for line in lines for tile in line.split())


def success(env: SlidingPuzzle, policy: Policy) -> float:
    return fmean(play(env, policy, options={"instance": i})[-1][-1]["success"] for i in range(env.num_instances))


def say(action: str, observation: str) -> str:
    return action


@pytest.mark.full
@pytest.mark.parametrize(
    ("rows", "cols", "count", "mean", "most"),
    [
        (2, 2, 12, 3.0, 6),
        (2, 3, 360, 12.6222, 21),
        (3, 2, 360, 12.6222, 21),
        (3, 3, 181440, 21.9724, 31),
    ],
)
def test_every_position_that_can_be_solved_is_an_instance_and_has_its_true_distance(
    rows: int, cols: int, count: int, mean: float, most: int
) -> None:
    away = distances(rows, cols)
    assert len(away) == count == math.factorial(rows * cols) // 2
    assert max(away.values()) == most
    assert fmean(away.values()) == pytest.approx(mean, abs=5e-5)
    env = SlidingPuzzle(rows=rows, cols=cols, turns=most)
    assert env.num_instances == count - 1
    starts = set()
    for instance in range(0, count - 1, 1 + count // 20_000):
        cells = read(env.reset(options={"instance": instance})[0], rows)
        assert env._fewest_actions() == away[cells] > 0
        starts.add(cells)
    assert len(starts) == len(range(0, count - 1, 1 + count // 20_000))
    assert env.optimal_success == env.optimal_return == 1.0
    shorter = SlidingPuzzle(rows=rows, cols=cols, turns=most - 1)
    assert shorter.optimal_success == sum(0 < d < most for d in away.values()) / (count - 1)


@pytest.mark.parametrize(("rows", "cols"), [(2, 2), (2, 3), (3, 2)])
def test_the_solver_plays_a_shortest_solution_of_every_position(rows: int, cols: int) -> None:
    away = distances(rows, cols)
    env = SlidingPuzzle(rows=rows, cols=cols, turns=21, reward="efficient")
    for instance in range(env.num_instances):
        steps = play(env, env.solver(), options={"instance": instance})
        assert len(steps) - 1 == away[read(steps[0][0], rows)]
        assert steps[-1][2] == 1.0


@pytest.mark.parametrize("turns", [1, 3, 5, 6])
def test_the_optimum_with_few_turns_is_the_share_of_positions_that_are_near_enough(turns: int) -> None:
    env = SlidingPuzzle(rows=2, cols=2, turns=turns)
    assert env.optimal_success == pytest.approx(success(env, env.solver()))


def test_the_solver_of_3x3_takes_no_longer_than_31_moves_and_22_in_the_mean() -> None:
    env = SlidingPuzzle(difficulty="hard")
    lengths = [len(play(env, env.solver(), seed=seed)) - 1 for seed in range(100)]
    assert max(lengths) <= 31
    assert fmean(lengths) == pytest.approx(21.97, abs=1.4)


def test_the_potential_is_one_less_the_distance_as_a_share_of_the_longest() -> None:
    env, away = SlidingPuzzle(reward="shaped"), distances(2, 3)
    for instance in range(env.num_instances):
        observation, _ = env.reset(options={"instance": instance})
        assert env._potential() == 1 - away[read(observation, 2)] / 21


@given(seed=st.integers(0, 2**32), rows=st.integers(2, 3), cols=st.integers(2, 3))
def test_moves_go_where_the_rules_say_and_each_is_undone_by_the_same_tile(seed: int, rows: int, cols: int) -> None:
    env = SlidingPuzzle(rows=rows, cols=cols, turns=40)
    observation, info = env.reset(seed=seed)
    cells = read(observation, rows)
    for tile in info["admissible_actions"]:
        env.reset(seed=seed)
        observation, _, done, _, info = env.step(tile)
        assert read(observation, rows) in neighbours(rows, cols, cells)
        if not done:
            assert tile in info["admissible_actions"]
            assert read(env.step(tile)[0], rows) == cells


@pytest.mark.full
@pytest.mark.parametrize("difficulty", ["easy", "medium"])
def test_random_moves_win_what_they_must_and_sliding_the_same_tile_wins_less(difficulty: Any) -> None:
    env = SlidingPuzzle(difficulty=difficulty)
    goal = (*range(1, env.rows * env.cols), 0)
    chance = dict.fromkeys(distances(env.rows, env.cols), 0.0) | {goal: 1.0}
    around = {cells: neighbours(env.rows, env.cols, cells) for cells in chance}
    for _ in range(env.turns):
        chance = {cells: 1.0 if cells == goal else fmean(map(chance.__getitem__, around[cells])) for cells in chance}
    exact = (sum(chance.values()) - 1) / env.num_instances
    assert exact == pytest.approx({"easy": 0.42174, "medium": 0.03803}[difficulty], abs=5e-5)
    won = fmean(play(env, env.random_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(1_000))
    assert won == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 1_000))
    for action in [*"123", "", env.garbage]:
        assert success(env, partial(say, action)) < exact


def test_random_moves_are_always_legal() -> None:
    """GEM's produce format errors."""
    env = SlidingPuzzle(difficulty="hard")
    assert all(step[-1]["action_valid"] for step in play(env, env.random_policy(0), seed=0)[1:])


def test_every_preset_can_be_made() -> None:
    """GEM's random variants crash in the constructor."""
    assert [SlidingPuzzle(difficulty=name).num_instances for name in ("easy", "medium", "hard")] == [11, 359, 181439]


def test_unsolvable_positions_are_never_shown() -> None:
    env = SlidingPuzzle(rows=2, cols=3)
    away = distances(2, 3)
    assert all(read(env.reset(seed=seed)[0], 2) in away for seed in range(300))


@pytest.mark.parametrize(
    "said", ["", "0", "1", "9", "_", "08", "8.", "+8", "8 8", "up", "\u0668", "slide 8", "8" * 5000, " 1 "]
)
def test_what_is_no_tile_beside_the_gap_costs_a_turn_and_moves_nothing(said: str) -> None:
    env = SlidingPuzzle(rows=3, cols=3, turns=3)
    before, _ = env.reset(options={"instance": 0})
    assert not {"1", "8"} & set(env.admissible_actions())
    for left in (2, 1, 0):
        observation, reward, done, _, info = env.step(said)
        assert (reward, done, info["action_valid"]) == (0.0, left == 0, False)
        assert read(observation, 3) == read(before, 3)
        assert observation.startswith("Not a tile beside the gap.\n")
        assert observation.endswith(f"\n{left} turn{'s' if left != 1 else ''} left.")


def test_whitespace_around_the_tile_does_not_matter_and_the_last_turn_can_win() -> None:
    env = SlidingPuzzle(rows=2, cols=2, turns=1)
    for start, tile in {"1 2\n_ 3\n": "3", "1 _\n3 2\n": "2"}.items():
        while not env.reset()[0].startswith(start):
            pass
        assert env.step(f" {tile}\n")[1:3] == (1.0, True)


def test_the_example_in_the_instructions_is_no_tile() -> None:
    assert "written like 9 (which no tile has)" in SlidingPuzzle(difficulty="hard").instructions


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {"rows": 2, "cols": 2, "turns": 3},
        {"rows": 3, "cols": 2, "turns": 2},
        {"turns": 9, "reward": "shaped"},
        {"reward": "efficient"},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: SlidingPuzzle(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"rows": 1}, "rows must be at least 2, got 1"),
        ({"cols": 4}, "cols must be at most 3, got 4"),
        ({"rows": "3"}, "rows must be an integer, got '3'"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": True}, "turns must be an integer, got True"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SlidingPuzzle(**arguments)
