import math
from collections import deque
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs import lights_out
from gym_trl.envs.lights_out import LightsOut
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Lights = frozenset[tuple[int, int]]  # those that are on


def pressed(size: int, lights: Lights, row: int, col: int) -> Lights:
    """By the rules and nothing else."""
    cross = {(row, col), (row - 1, col), (row + 1, col), (row, col - 1), (row, col + 1)}
    return lights ^ {(r, c) for r, c in cross if 1 <= r <= size and 1 <= c <= size}


def fewest_presses(size: int) -> dict[Lights, int]:
    """From every board that can be solved, by breadth-first search."""
    dark: Lights = frozenset()
    found = {dark: 0}
    queue = deque(found)
    while queue:
        lights = queue.popleft()
        for row in range(1, size + 1):
            for col in range(1, size + 1):
                after = pressed(size, lights, row, col)
                if after not in found:
                    found[after] = found[lights] + 1
                    queue.append(after)
    return found


def read(observation: str, size: int) -> Lights:
    lines = [line.split() for line in observation.splitlines()[-size - 1 : -1]]
    assert [len(line) for line in lines] == [size] * size
    return frozenset((row, col) for row, line in enumerate(lines, 1) for col, mark in enumerate(line, 1) if mark == "*")


def success(env: LightsOut, policy: Policy) -> float:
    return fmean(play(env, policy, options={"instance": i})[-1][-1]["success"] for i in range(env.num_instances))


def say(action: str, observation: str) -> str:
    return action


@pytest.mark.parametrize(
    ("size", "count", "mean", "most"), [(1, 2, 0.5, 1), (2, 16, 2.0, 4), (3, 512, 4.5, 9), (4, 4096, 4.4307, 7)]
)
def test_every_board_that_can_be_solved_is_an_instance_and_the_solver_is_shortest_for_each(
    size: int, count: int, mean: float, most: int
) -> None:
    presses = fewest_presses(size)
    assert len(presses) == count
    assert fmean(presses.values()) == pytest.approx(mean, abs=5e-5)
    assert max(presses.values()) == most
    env = LightsOut(size=size, turns=most, reward="efficient")
    assert env.num_instances == count - 1
    starts = set()
    for instance in range(env.num_instances):
        steps = play(env, env.solver(), options={"instance": instance})
        start = read(steps[0][0], size)
        assert len(steps) - 1 == presses[start] == env._fewest_actions()
        assert steps[-1][2] == 1.0
        starts.add(start)
    assert starts == presses.keys() - {frozenset()}


def boards_by_presses(size: int) -> list[int]:
    """The number of boards that need 0, 1, 2, ... presses, from the smallest equivalent solutions."""
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


def test_boards_by_presses_are_as_published_in_the_module() -> None:
    for size, counts in lights_out._BOARDS_BY_PRESSES.items():
        assert boards_by_presses(size) == list(counts)


def test_a_quarter_of_5x5_boards_can_be_solved_and_the_hardest_need_15_presses() -> None:
    counts = lights_out._BOARDS_BY_PRESSES[5]
    assert sum(counts) == 2**23 == LightsOut(difficulty="hard").num_instances + 1
    assert counts[15:] == (7350,)
    assert sum(n * count for n, count in enumerate(counts)) / 2**23 == pytest.approx(9.9029, abs=5e-5)
    assert counts[:3] == (1, 25, 25 * 24 // 2)


@pytest.mark.parametrize(
    ("size", "quiet"), [(1, 1), (2, 1), (3, 1), (4, 16), (5, 4), (6, 1), (7, 1), (8, 1), (9, 256), (10, 1)]
)
def test_quiet_patterns_switch_nothing_and_are_as_many_as_is_known(size: int, quiet: int) -> None:
    """The exponents 0, 0, 0, 4, 2, 0, 0, 0, 8, 0 are sequence A159257 of the OEIS."""
    patterns = lights_out._algebra(size).quiet
    assert len(set(patterns)) == quiet
    for pattern in patterns:
        lights: Lights = frozenset()
        for light in range(size * size):
            if pattern >> light & 1:
                lights = pressed(size, lights, light // size + 1, light % size + 1)
        assert not lights


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_optimum_with_few_turns_is_the_share_of_boards_that_they_suffice_for(size: int) -> None:
    presses = fewest_presses(size)
    for turns in range(1, size * size + 1):
        env = LightsOut(size=size, turns=turns)
        near = sum(0 < count <= turns for count in presses.values())
        assert env.optimal_success == env.optimal_return == near / env.num_instances
        if size < 4:
            assert success(env, env.solver()) == pytest.approx(env.optimal_success)


def test_the_potential_falls_with_every_press_that_is_needed() -> None:
    env, presses = LightsOut(size=3, reward="shaped"), fewest_presses(3)
    for instance in range(env.num_instances):
        observation, _ = env.reset(options={"instance": instance})
        assert env._potential() == 1 - presses[read(observation, 3)] / 9


@given(size=st.integers(1, 10), seed=st.integers(0, 2**32))
def test_the_solver_darkens_boards_of_every_size_with_each_light_at_most_once(size: int, seed: int) -> None:
    env = LightsOut(size=size, turns=size * size)
    steps = play(env, env.solver(), seed=seed)[1:]
    assert steps[-1][-1]["success"]
    assert len({step[0] for step in steps}) == len(steps) == env._fewest_actions()


@given(size=st.integers(2, 10), seed=st.integers(0, 2**32), data=st.data())
def test_a_press_switches_its_cross_and_pressing_again_takes_it_back(size: int, seed: int, data: st.DataObject) -> None:
    env = LightsOut(size=size, turns=9)
    lights = read(env.reset(seed=seed)[0], size)
    row, col = data.draw(st.integers(1, size)), data.draw(st.integers(1, size))
    after, _, done, _, info = env.step(f"{row} {col}")
    assert info["action_valid"]
    assert read(after, size) == pressed(size, lights, row, col)
    if not done:
        assert read(env.step(f"{row} {col}")[0], size) == lights


@pytest.mark.full
@pytest.mark.parametrize("difficulty", ["easy", "medium"])
def test_random_presses_win_what_they_must_and_pressing_the_same_light_wins_less(difficulty: Any) -> None:
    env = LightsOut(difficulty=difficulty)
    boards = list(fewest_presses(env.size))
    lights = [(row, col) for row in range(1, env.size + 1) for col in range(1, env.size + 1)]
    around = {board: [pressed(env.size, board, *light) for light in lights] for board in boards}
    chance = {board: float(not board) for board in boards}
    for _ in range(env.turns):
        chance = {board: fmean(map(chance.__getitem__, around[board])) if board else 1.0 for board in boards}
    exact = (sum(chance.values()) - 1) / env.num_instances
    assert exact == pytest.approx({"easy": 0.36725, "medium": 0.03030}[difficulty], abs=5e-5)
    won = fmean(play(env, env.random_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(2_000))
    assert won == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / 2_000))
    for action in [*env.admissible_actions(), "", env.garbage]:
        assert success(env, partial(say, action)) <= min(exact, 1 / env.num_instances)


@pytest.mark.parametrize(
    "said", ["", "0 0", "4 1", "1 0", "1", "1 2 3", "1,2", "-1 2", "+1 2", "01 2", "1.0 2", "\u0661 2", "9" * 5000]
)
def test_what_is_no_row_and_column_costs_a_turn_and_switches_nothing(said: str) -> None:
    env = LightsOut(turns=2)
    before, _ = env.reset(seed=0)
    for left in (1, 0):
        observation, reward, done, _, info = env.step(said)
        assert (reward, done, info["action_valid"]) == (0.0, left == 0, False)
        assert observation.startswith("Not a row and a column.\n")
        assert read(observation, 3) == read(before, 3)
        assert observation.endswith(f"\n{left} turn{'s' if left != 1 else ''} left.")


def test_rows_come_first_and_whitespace_does_not_matter() -> None:
    env = LightsOut()
    before = read(env.reset(seed=0)[0], 3)
    assert read(env.step("  1\t 3\n")[0], 3) == pressed(3, before, 1, 3)


def test_the_last_turn_can_win() -> None:
    env = LightsOut(size=1, turns=1)
    env.reset(seed=0)
    assert env.step("1 1") == (
        ".\n0 turns left.",
        1.0,
        True,
        False,
        {"action_valid": True, "success": True, "admissible_actions": []},
    )


def test_the_example_in_the_instructions_is_outside_the_board() -> None:
    assert 'written like "4 4" (which is outside the board)' in LightsOut().instructions


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [{"size": 1, "turns": 1}, {"size": 4, "turns": 5}, {"size": 9, "turns": 20}, {"size": 10, "reward": "shaped"}],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: LightsOut(**arguments), episodes=20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"size": 11}, "size must be at most 10, got 11"),
        ({"size": "3"}, "size must be an integer, got '3'"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": 2.0}, "turns must be an integer, got 2.0"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        LightsOut(**arguments)
