import random
import re
from collections import deque
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.envs.maze import Maze
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Place = tuple[int, int]
VIEWS: tuple[Literal["full"], Literal["local"]] = ("full", "local")
STEPS = {"north": (-1, 0), "east": (0, 1), "south": (1, 0), "west": (0, -1)}


class Seen:
    """A maze as the full view shows it."""

    def __init__(self, observation: str) -> None:
        rows = [line for line in observation.splitlines() if re.fullmatch("#[#.PG]*#", line)]
        self.marks = {(row, column): mark for row, line in enumerate(rows) for column, mark in enumerate(line)}
        self.open = [place for place, mark in self.marks.items() if mark != "#"]
        (self.player,) = (place for place in self.open if self.marks[place] == "P")
        self.goal = next((place for place in self.open if self.marks[place] == "G"), self.player)
        assert len({len(line) for line in rows}) == 1
        assert len(rows) == len(rows[0])

    def near(self, place: Place) -> list[Place]:
        beside = [(place[0] + down, place[1] + right) for down, right in STEPS.values()]
        return [square for square in beside if self.marks[square] != "#"]

    def distances(self) -> dict[Place, int]:
        """To the goal, by a search of its own."""
        found, queue = {self.goal: 0}, deque([self.goal])
        while queue:
            at = queue.popleft()
            for square in self.near(at):
                if square not in found:
                    found[square] = found[at] + 1
                    queue.append(square)
        return found

    def walk(self) -> tuple[Any, int, int]:
        """Return the chances of random moves from square to square, the goal kept; the squares of player and goal."""
        chances = np.zeros((len(self.open), len(self.open)))
        for number, square in enumerate(self.open):
            near = self.near(square) if square != self.goal else [square]
            for there in near:
                chances[number, self.open.index(there)] = 1 / len(near)
        return chances, self.open.index(self.player), self.open.index(self.goal)

    def hitting_time(self) -> float:
        """The mean number of uniformly random moves to the goal: the solution of a linear system."""
        chances, player, goal = self.walk()
        system = np.eye(len(self.open)) - chances
        system[goal, goal] = 1.0
        return float(np.linalg.solve(system, np.arange(len(self.open)) != goal)[player])

    def chance(self, turns: int) -> float:
        """Return the chance that as many uniformly random moves reach the goal."""
        chances, player, goal = self.walk()
        return float(np.linalg.matrix_power(chances, turns)[player, goal])


def seen(instance: int, **arguments: Any) -> Seen:
    return Seen(Maze(**arguments).reset(options={"instance": instance})[0])


def moves(env: Maze, policy: Policy, instance: int) -> int:
    steps = play(env, policy, options={"instance": instance})
    assert steps[-1][-1]["success"]
    assert all(step[-1]["action_valid"] for step in steps[1:])
    return len(steps) - 1


@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 15))
@examples(60)
def test_a_maze_has_one_way_between_any_two_rooms(number: int, size: int) -> None:
    """A tree: connected, with one passage less than rooms."""
    maze = seen(number, size=size)
    assert len(maze.distances()) == len(maze.open) == 2 * size**2 - 1
    assert {(row, column) for row in range(1, 2 * size, 2) for column in range(1, 2 * size, 2)} < set(maze.open)
    assert max(max(place) for place in maze.marks) == 2 * size
    for place in (maze.player, maze.goal):
        assert place[0] % 2 == place[1] % 2 == 1
    assert maze.player != maze.goal


@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 8), loops=st.floats(0, 1), turns=st.integers(2, 60))
@examples(60)
def test_the_goal_is_near_enough_and_the_solver_goes_the_shortest_way(
    number: int, size: int, loops: float, turns: int
) -> None:
    env = Maze(size=size, loops=loops, turns=turns, reward="efficient")
    maze = seen(number, size=size, loops=loops, turns=turns)
    assert moves(env, env.solver(), number) == env._fewest_actions() == maze.distances()[maze.player] <= turns
    assert env._last is not None
    assert env._last.reward == env.optimal_return == env.optimal_success == 1.0


def test_loops_open_their_share_of_the_walls() -> None:
    walls_left = 2 * 15 * 14 - (15**2 - 1)
    for loops in (0.0, 0.3, 1.0):
        opened = fmean(len(seen(i, size=15, loops=loops, turns=900).open) - (2 * 15**2 - 1) for i in range(50))
        assert opened / walls_left == pytest.approx(loops, abs=0.02)


@pytest.mark.full
@pytest.mark.parametrize(
    ("size", "shortest", "explored", "wandered"), [(4, 10.26, 16.89, 301.9), (5, 14.20, 27.12, 687.0)]
)
def test_the_means_of_the_table(size: int, shortest: float, explored: float, wandered: float) -> None:
    """Over the first 1,000 mazes: shortest ways and random walks exactly, the explorer as it plays."""
    env = Maze(size=size, view="local", turns=4 * (size**2 - 1))
    mazes = [seen(number, size=size, turns=env.turns) for number in range(1_000)]
    assert fmean(maze.distances()[maze.player] for maze in mazes) == pytest.approx(shortest, abs=0.005)
    assert fmean(moves(env, env.solver(), number) for number in range(1_000)) == pytest.approx(explored, abs=0.005)
    assert fmean(maze.hitting_time() for maze in mazes) == pytest.approx(wandered, abs=0.05)


@cache
def small_mazes() -> dict[tuple[str, ...], int]:
    """All mazes of 2 by 2 rooms with start and goal, by what their map shows, with one of their numbers."""
    found: dict[tuple[str, ...], int] = {}
    env = Maze(size=2)
    for number in range(2_000):
        found.setdefault(tuple(env.reset(options={"instance": number})[0].splitlines()[:5]), number)
    return found


def test_the_means_of_the_smallest_mazes_are_exact() -> None:
    """Four trees and twelve pairs of rooms, all as likely."""
    assert len(small_mazes()) == 4 * 12
    mazes = [seen(number, size=2) for number in small_mazes().values()]
    assert fmean(maze.distances()[maze.player] for maze in mazes) == pytest.approx(10 / 3)
    assert fmean(maze.hitting_time() for maze in mazes) == pytest.approx(20)
    env = Maze(size=2, view="local", turns=12)
    assert fmean(moves(env, env.solver(), number) for number in small_mazes().values()) == pytest.approx(11 / 3)


def test_on_the_smallest_mazes_no_explorer_is_better() -> None:
    """Searched over everything that could still be true: which room to go to next, by what has been seen so far."""
    worlds = [seen(number, size=2) for number in small_mazes().values()]

    def look(world: Seen, at: Place) -> tuple[Any, ...]:
        lines, goal = [], None
        for down, right in STEPS.values():
            count = 0
            while world.marks[at[0] + (count + 1) * down, at[1] + (count + 1) * right] != "#":
                count += 1
                if (at[0] + count * down, at[1] + count * right) == world.goal:
                    goal = world.goal
            lines.append(count)
        return (*lines, goal)

    def best(possible: frozenset[int], at: Place, visited: frozenset[Place]) -> float:
        """The mean number of moves that are left, summed over the possible worlds."""
        options = []
        for room in product((1, 3), (1, 3)):
            away = {distance_between(worlds[i], at, room) for i in possible}
            if room in visited or len(away) != 1 or not all(seen_from(worlds[i], visited, room) for i in possible):
                continue
            parts: dict[tuple[Any, ...], set[int]] = {}
            for i in possible:
                parts.setdefault((worlds[i].goal == room, *look(worlds[i], room)), set()).add(i)
            options.append(
                away.pop() * len(possible)
                + sum(
                    0.0 if found else best(frozenset(part), room, visited | {room})
                    for (found, *_), part in parts.items()
                )
            )
        return min(options)

    total = 0.0
    for start in product((1, 3), (1, 3)):
        first: dict[tuple[Any, ...], set[int]] = {}
        for i, world in enumerate(worlds):
            if world.player == start:
                first.setdefault(look(world, start), set()).add(i)
        total += sum(best(frozenset(part), start, frozenset({start})) for part in first.values())
    assert total / len(worlds) == pytest.approx(11 / 3)


def distance_between(world: Seen, one: Place, other: Place) -> int:
    found, queue = {one: 0}, deque([one])
    while queue:
        at = queue.popleft()
        for square in world.near(at):
            if square not in found:
                found[square] = found[at] + 1
                queue.append(square)
    return found[other]


def seen_from(world: Seen, visited: frozenset[Place], room: Place) -> bool:
    """Return True if a player who stood in these rooms saw this one: from one beside it, with a passage."""
    return any(distance_between(world, place, room) == 2 for place in visited)


@given(number=st.integers(0, 2**32 - 1), size=st.integers(2, 7), loops=st.sampled_from([0.0, 0.1, 0.5, 1.0]))
def test_from_inside_the_solver_wins_every_maze_within_its_bound(number: int, size: int, loops: float) -> None:
    env = Maze(size=size, loops=loops, view="local", turns=4 * (size**2 - 1))
    assert env.optimal_success == 1.0
    assert moves(env, env.solver(), number) <= env.turns
    assert Maze(size=size, loops=loops, view="local", turns=env.turns - 1).optimal_success is None


@pytest.mark.full
@pytest.mark.parametrize("number", [3, 4])
def test_random_moves_take_the_time_that_is_computed(number: int) -> None:
    env, maze = Maze(size=3, turns=10_000), seen(number, size=3, turns=10_000)
    taken = [moves(env, env.random_policy(seed), number) for seed in range(600)]
    error = float(np.std(taken)) / len(taken) ** 0.5
    assert fmean(taken) == pytest.approx(maze.hitting_time(), abs=4 * error)


@pytest.mark.full
@pytest.mark.parametrize(("difficulty", "known"), [("easy", 0.535), ("medium", 0.212), ("hard", 0.306)])
def test_random_moves_win_what_they_must_and_one_move_again_and_again_wins_less(difficulty: Any, known: float) -> None:
    env = Maze(difficulty=difficulty)
    above = {"size": env.size, "loops": env.loops, "turns": env.turns}
    exact = fmean(seen(number, **above).chance(env.turns) for number in range(300))
    assert exact == pytest.approx(known, abs=5e-4)
    won = fmean(
        play(env, env.random_policy(number), options={"instance": number})[-1][-1]["success"] for number in range(300)
    )
    assert won == pytest.approx(exact, abs=0.11)
    for said in [*STEPS, "", env.garbage]:
        share = fmean(play(env, always(said), options={"instance": i})[-1][-1]["success"] for i in range(300))
        assert share < min(exact, 0.16)


def always(said: str) -> Policy:
    return lambda observation: said


@given(seed=st.integers(0, 2**32), loops=st.sampled_from([0.0, 0.5]))
@examples(40)
def test_both_views_show_the_same_maze(seed: int, loops: float) -> None:
    full, local = (Maze(size=4, loops=loops, view=view, turns=20) for view in VIEWS)
    (above, info), (inside, other) = full.reset(seed=seed), local.reset(seed=seed)
    rng, done, goal = random.Random(seed), False, Seen(above).goal
    while not done:
        maze, told = Seen(above), dict(re.findall(r"(north|east|south|west) (\d+)", inside))
        assert inside.count(f"Row {maze.player[0]}, column {maze.player[1]}.\n") == 1
        for direction, (down, right) in STEPS.items():
            ahead = [(maze.player[0] + far * down, maze.player[1] + far * right) for far in range(1, 9)]
            count = next(far for far, place in enumerate(ahead) if maze.marks[place] == "#")
            assert int(told[direction]) == count
            if goal in ahead[:count]:
                far = ahead.index(goal) + 1
                assert f"\nThe goal is {far} square{'s' if far > 1 else ''} {direction}.\n" in inside
        legal = [direction for direction in STEPS if told[direction] != "0"]
        assert legal == info["admissible_actions"] == other["admissible_actions"]
        action = rng.choice(legal)
        (above, _, done, _, info), (inside, *_, other) = full.step(action), local.step(action)
        assert info == other


def test_from_inside_nothing_is_told_of_a_goal_that_cannot_be_seen() -> None:
    env = Maze(size=4, view="local")
    for number in range(30):
        env.reset(options={"instance": number})
        told = set()
        for goal in set(env._away) - {env._at}:
            env._goal = goal
            told.add(env._observe())
        assert len([observation for observation in told if "goal" not in observation]) == 1


def test_walking_into_a_wall_costs_a_turn_and_changes_nothing_else() -> None:
    for view in VIEWS:
        env = Maze(size=2, view=view, turns=9)
        before, info = env.reset(options={"instance": 0})
        wall = next(direction for direction in STEPS if direction not in info["admissible_actions"])
        observation, reward, terminated, _, after = env.step(wall)
        assert observation == f"A wall is {wall} of you.\n" + before.replace("9 turns", "8 turns")
        assert (reward, terminated, after["action_valid"]) == (0.0, False, False)
        assert after["admissible_actions"] == info["admissible_actions"]


def test_the_last_turn_can_win_and_a_game_without_turns_is_terminated() -> None:
    """Not truncated: the limit is a rule."""
    for number in range(20):
        shortest = seen(number, size=3, turns=16).distances()
        env = Maze(size=3, turns=16)
        env.reset(options={"instance": number})
        fewest = int(env._fewest_actions())
        assert fewest == shortest[seen(number, size=3, turns=16).player]
        env._turns_left = fewest
        observation, last = env.reset(options={"instance": number})[0], None
        env._turns_left = fewest
        for _ in range(fewest):
            last = env.step(env.solver()(observation))
            observation = last[0]
        assert last is not None
        assert last[1:4] == (1.0, True, False)
        assert last[0].startswith("You reached the goal.\n")
    env = Maze(size=2, turns=2)
    env.reset(seed=0)
    assert env.step("")[2:4] == (False, False)
    assert env.step("")[1:4] == (0.0, True, False)


def test_coming_close_and_going_to_and_fro_earns_nothing() -> None:
    env = Maze(reward="success")
    for number in range(20):
        steps = play(env, _to_and_fro(env), options={"instance": number})[1:]
        assert sum(step[2] for step in steps) == steps[-1][-1]["success"]


def _to_and_fro(env: Maze) -> Policy:
    back = {"north": "south", "south": "north", "east": "west", "west": "east"}
    last = ""

    def policy(observation: str) -> str:
        nonlocal last
        last = back[last] if last else env.admissible_actions()[0]
        return last

    return policy


def test_the_potential_is_one_less_the_share_of_the_way_that_is_left() -> None:
    env = Maze(size=3, reward="shaped")
    for number in range(30):
        observation, _ = env.reset(options={"instance": number})
        maze = Seen(observation)
        assert env._potential() == 1 - maze.distances()[maze.player] / 16


@pytest.mark.parametrize("said", ["North", " EAST\n", "south\t", "wEST"])
def test_case_and_whitespace_do_not_matter(said: str) -> None:
    env = Maze(size=2, loops=1.0)
    for number in range(20):
        info = env.reset(options={"instance": number})[1]
        legal = said.strip().lower() in info["admissible_actions"]
        assert env.step(said)[-1]["action_valid"] is legal


@pytest.mark.parametrize("said", ["", "n", "up", "northeast", "go north", "north north", "1", "\u017fouth", "not east"])
def test_a_move_inside_other_words_is_not_played(said: str) -> None:
    """Verl-agent looks for the name of a move anywhere in the text."""
    env = Maze(size=2, loops=1.0)
    before, _ = env.reset(seed=0)
    observation, _, _, _, info = env.step(said)
    assert not info["action_valid"]
    assert observation == "Answer north, east, south or west.\n" + before.replace("30 turns", "29 turns")


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {"view": "local"},
        {"view": "local", "size": 3, "turns": 32, "reward": "efficient"},
        {"size": 9, "loops": 0.3, "turns": 20, "reward": "efficient"},
        {"size": 2, "turns": 2, "reward": "shaped"},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: Maze(**arguments), episodes=20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"size": 1}, "size must be at least 2, got 1"),
        ({"size": 16}, "size must be at most 15, got 16"),
        ({"size": "4"}, "size must be an integer, got '4'"),
        ({"turns": 1}, "turns must be at least 2, got 1"),
        ({"turns": 2.5}, "turns must be an integer, got 2.5"),
        ({"loops": -0.1}, "loops must be from 0 to 1, got -0.1"),
        ({"loops": "0"}, "loops must be a number, got '0'"),
        ({"loops": True}, "loops must be a number, got True"),
        ({"view": "partial"}, "view must be 'full' or 'local', got 'partial'"),
        ({"view": None, "size": None, "turns": False}, "turns must be an integer, got False"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Maze(**arguments)
