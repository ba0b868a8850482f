import random
import re
from statistics import fmean
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.games import game
from support.lanes import examples

from gym_trl.envs.maze import Maze
from gym_trl.testing import play

Place = tuple[int, int]
STEPS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


class Seen:
    """A maze as the full view shows it."""

    def __init__(self, observation: str) -> None:
        rows = [line for line in observation.splitlines() if re.fullmatch("#[#.PG]*#", line)]
        self.marks = {(row, column): mark for row, line in enumerate(rows) for column, mark in enumerate(line)}
        self.open = [place for place, mark in self.marks.items() if mark != "#"]
        self.player = next(place for place, mark in self.marks.items() if mark == "P")
        self.goal = next((place for place, mark in self.marks.items() if mark == "G"), self.player)

    def near(self, place: Place) -> list[Place]:
        beside = [(place[0] + down, place[1] + right) for down, right in STEPS.values()]
        return [square for square in beside if self.marks[square] != "#"]

    def hitting_time(self) -> float:
        """Return the mean number of uniformly random moves to the goal: the solution of a linear system."""
        system = np.eye(len(self.open))
        for number, square in enumerate(self.open):
            for there in self.near(square) if square != self.goal else []:
                system[number, self.open.index(there)] -= 1 / len(self.near(square))
        times = np.linalg.solve(system, np.array([square != self.goal for square in self.open], dtype=float))
        return float(times[self.open.index(self.player)])


@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 15))
@examples(60)
def test_a_maze_has_one_way_between_any_two_rooms(number: int, size: int) -> None:
    """A tree: connected, with one passage less than rooms."""
    maze = Seen(Maze(size=size, turns=900).reset(options={"instance": number})[0])
    reached = [maze.player]
    for place in reached:
        reached += [square for square in maze.near(place) if square not in reached]
    assert len(reached) == len(maze.open) == 2 * size**2 - 1
    assert {(row, column) for row in range(1, 2 * size, 2) for column in range(1, 2 * size, 2)} < set(maze.open)
    assert maze.player[0] % 2 == maze.player[1] % 2 == maze.goal[0] % 2 == maze.goal[1] % 2 == 1
    assert maze.player != maze.goal


@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 8), loops=st.floats(0, 1), turns=st.integers(2, 60))
@examples(60)
def test_the_goal_is_near_enough(number: int, size: int, loops: float, turns: int) -> None:
    env = Maze(size=size, loops=loops, turns=turns, reward="efficient")
    steps = play(env, env.solver(), options={"instance": number})
    assert steps[-1][2] == env.optimal_return == env.optimal_success == 1.0


@pytest.mark.parametrize("loops", [0.0, 0.3, 1.0])
def test_loops_open_their_share_of_the_walls(loops: float) -> None:
    env, tree = Maze(size=15, loops=loops, turns=900), 2 * 15**2 - 1
    opened = fmean(len(Seen(env.reset(options={"instance": i})[0]).open) - tree for i in range(50))
    assert opened / (2 * 15 * 14 - (15**2 - 1)) == pytest.approx(loops, abs=0.02)


@pytest.mark.full
@pytest.mark.parametrize(
    ("size", "shortest", "explored", "wandered"),
    [(2, 10 / 3, 11 / 3, 20), (4, 10.26, 16.89, 301.9), (5, 14.20, 27.12, 687.0)],
)
def test_the_means_of_the_table(size: int, shortest: float, explored: float, wandered: float) -> None:
    """Over all mazes of 2 by 2 rooms, else the first 1,000: random walks exactly, the solver as it plays."""
    turns = 4 * (size**2 - 1)
    views = {view: game("Maze", size=size, view=view, turns=turns) for view in ("full", "local")}
    shown = {views["full"].reset(options={"instance": number})[0]: number for number in range(1_000)}
    assert size > 2 or len(shown) == 4 * 12  # four trees and twelve pairs of rooms, all as likely
    numbers = list(shown.values()) if size == 2 else range(1_000)
    lengths = {
        view: fmean(len(play(env, env.solver(), options={"instance": number})) - 1 for number in numbers)
        for view, env in views.items()
    }
    near = 5e-3 if size > 2 else 1e-9
    assert lengths["full"] == pytest.approx(shortest, abs=near)
    assert lengths["local"] == pytest.approx(explored, abs=near)
    mazes = [Seen(views["full"].reset(options={"instance": number})[0]) for number in numbers]
    assert fmean(maze.hitting_time() for maze in mazes) == pytest.approx(wandered, abs=10 * near)


@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 7), loops=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_the_solver_with_a_local_view_wins_within_its_bound(number: int, size: int, loops: float) -> None:
    env = Maze(size=size, loops=loops, view="local", turns=4 * (size**2 - 1))
    assert env.optimal_success == 1.0
    assert play(env, env.solver(), options={"instance": number})[-1][-1]["success"]
    assert Maze(size=size, loops=loops, view="local", turns=env.turns - 1).optimal_success is None


@given(seed=st.integers(0, 2**32), loops=st.sampled_from([0.0, 0.5]))
@examples(40)
def test_both_views_show_the_same_maze(seed: int, loops: float) -> None:
    full, local = Maze(size=4, loops=loops, turns=20), Maze(size=4, loops=loops, view="local", turns=20)
    (above, _), (inside, _) = full.reset(seed=seed), local.reset(seed=seed)
    rng, done, goal = random.Random(seed), False, Seen(above).goal
    while not done:
        maze, counts = Seen(above), dict(re.findall(r"(north|east|south|west) (\d+)", inside))
        assert inside.count(f"Row {maze.player[0]}, column {maze.player[1]}.\n") == 1
        visible = False
        for direction, (down, right) in STEPS.items():
            ahead = [(maze.player[0] + far * down, maze.player[1] + far * right) for far in range(1, 9)]
            count = next(far for far, place in enumerate(ahead) if maze.marks[place] == "#")
            assert int(counts[direction]) == count
            if goal in ahead[:count]:
                far, visible = ahead.index(goal) + 1, True
                assert f"\nThe goal is {far} square{'s' if far > 1 else ''} {direction}.\n" in inside
        assert visible or "goal" not in inside
        action = rng.choice([direction for direction in STEPS if counts[direction] != "0"])
        (above, *result), (inside, *other) = full.step(action), local.step(action)
        assert result == other
        done = bool(result[1])


@pytest.mark.parametrize("view", ["full", "local"])
def test_a_wall_costs_a_turn_and_changes_nothing_else(view: Literal["full", "local"]) -> None:
    env = Maze(size=2, view=view, turns=9)
    before, info = env.reset(options={"instance": 0})
    wall = next(direction for direction in STEPS if direction not in info["admissible_actions"])
    observation, reward, terminated, _, after = env.step(wall)
    assert observation == f"A wall is {wall} of you.\n" + before.replace("9 turns", "8 turns")
    assert (reward, terminated, after["action_valid"]) == (0.0, False, False)
