import random
import re
from collections import deque
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.envs.sokoban import Sokoban
from gym_trl.testing import play
from gym_trl.types import Policy

Place = tuple[int, int]
Position = tuple[Place, frozenset[Place]]
STEPS = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}


class Room:
    """The contents of an observation, and the rules, written again."""

    def __init__(self, observation: str) -> None:
        self.rows = [line for line in observation.splitlines() if re.fullmatch(r"#[-#@$.*+]+#", line)]
        marks = {(row, column): mark for row, line in enumerate(self.rows) for column, mark in enumerate(line)}
        self.walls = {place for place, mark in marks.items() if mark == "#"}
        self.goals = frozenset(place for place, mark in marks.items() if mark in ".*+")
        self.boxes = frozenset(place for place, mark in marks.items() if mark in "$*")
        (self.player,) = (place for place, mark in marks.items() if mark in "@+")
        self.floor = marks.keys() - self.walls

    def move(self, position: Position, name: str) -> Position | None:
        (row, column), boxes = position
        down, right = STEPS[name]
        there, beyond = (row + down, column + right), (row + 2 * down, column + 2 * right)
        if there in self.walls:
            return None
        if there not in boxes:
            return there, boxes
        return None if beyond in self.walls or beyond in boxes else (there, boxes - {there} | {beyond})

    def fewest_moves(self) -> int | None:
        """Breadth first, forwards, with no heuristic."""
        start = (self.player, self.boxes)
        found, queue = {start: 0}, deque([start])
        while queue:
            position = queue.popleft()
            if position[1] == self.goals:
                return found[position]
            for name in STEPS:
                after = self.move(position, name)
                if after is not None and after not in found:
                    found[after] = found[position] + 1
                    queue.append(after)
        return None


def success(env: Sokoban, policy: Policy, games: int = 100) -> float:
    return fmean(play(env, policy, options={"instance": i})[-1][-1]["success"] for i in range(games))


@pytest.mark.parametrize(
    ("arguments", "games"),
    [
        pytest.param({"difficulty": "easy"}, 200, marks=pytest.mark.full),
        pytest.param({}, 100, marks=pytest.mark.full),
        pytest.param({"difficulty": "hard"}, 4, marks=pytest.mark.full),
        pytest.param({"difficulty": "hard"}, 200, marks=pytest.mark.nightly),
        pytest.param({"width": 5, "height": 7, "boxes": 3, "depth": 25}, 50, marks=pytest.mark.full),
    ],
)
def test_every_room_is_solved_in_its_declared_moves(arguments: dict[str, Any], games: int) -> None:
    """Playing backwards, A* and an independent breadth-first search agree."""
    env = Sokoban(**arguments, reward="efficient")
    for number in range(games):
        observation, info = env.reset(options={"instance": number})
        fewest = Room(observation).fewest_moves()
        steps = play(env, env.solver(), options={"instance": number})
        assert fewest == info["optimal_actions"] == env._fewest_actions() == len(steps) - 1
        assert steps[-1][2] == env.optimal_return == env.optimal_success == 1.0


@given(
    width=st.integers(5, 9),
    height=st.integers(5, 9),
    boxes=st.integers(1, 2),
    depth=st.integers(1, 25),
    turns=st.integers(1, 30),
    number=st.integers(0, 2**32 - 1),
)
@examples(60)
def test_a_room_is_well_formed_and_near_enough_to_its_end(
    *, width: int, height: int, boxes: int, depth: int, turns: int, number: int
) -> None:
    env = Sokoban(width=width, height=height, boxes=boxes, depth=depth, turns=turns)
    observation, info = env.reset(options={"instance": number})
    room = Room(observation)
    assert [len(row) for row in room.rows] == [width] * height
    assert set(room.rows[0] + room.rows[-1]) == {"#"}
    assert len(room.boxes) == len(room.goals) == boxes
    assert room.player in room.floor - room.boxes
    assert room.boxes != room.goals
    assert 1 <= info["optimal_actions"] <= min(depth, turns)
    assert success(env, env.solver(), 1) == 1.0
    reached, queue = {room.player}, deque([room.player])
    while queue:
        row, column = queue.popleft()
        for down, right in STEPS.values():
            if (near := (row + down, column + right)) in room.floor - reached:
                reached.add(near)
                queue.append(near)
    assert reached == room.floor


@given(seed=st.integers(0, 2**32 - 1), difficulty=st.sampled_from(["easy", "medium"]))
def test_moves_lead_where_the_rules_say(seed: int, difficulty: Any) -> None:
    env = Sokoban(difficulty=difficulty)
    observation, info = env.reset(seed=seed)
    rng, turns, done = random.Random(seed), env.turns, False
    while not done:
        room, turns = Room(observation), turns - 1
        after = {name: room.move((room.player, room.boxes), name) for name in STEPS}
        assert info["admissible_actions"] == [name for name in STEPS if after[name]]
        name = rng.choice(list(STEPS))
        observation, reward, done, _, info = env.step(name)
        shown = Room(observation)
        assert (shown.player, shown.boxes) == (after[name] or (room.player, room.boxes))
        assert (shown.walls, shown.goals) == (room.walls, room.goals)
        assert info["action_valid"] is (after[name] is not None)
        assert observation.startswith("That move is not possible.\n") is (after[name] is None)
        assert observation.endswith(f"\n{turns} turn{'s' if turns != 1 else ''} left.")
        assert reward == info["success"] == (shown.boxes == room.goals)
        assert done == (info["success"] or turns == 0)


def test_a_room_that_cannot_be_won_any_more_ends_terminated() -> None:
    """Not truncated, as RAGEN has it, and not for ever."""
    env = Sokoban(difficulty="easy")
    lost = 0
    for number in range(40):
        env.reset(options={"instance": number})
        steps = play(env, env.random_policy(number), options={"instance": number})[1:]
        if Room(steps[-1][1]).fewest_moves() is None:
            lost += 1
            assert len(steps) == env.turns
            assert steps[-1][2:5] == (0.0, True, False)
            assert env.solver()(steps[-1][1]) in STEPS
    assert lost > 5


def test_nothing_that_is_said_or_told_holds_the_solution() -> None:
    env = Sokoban()
    observation, info = env.reset(seed=0)
    assert info.keys() == {"admissible_actions", "optimal_actions"}
    assert isinstance(info["optimal_actions"], int)
    assert not any(name in observation for name in ("up", "right", "down"))
    assert env.step("up")[-1].keys() == {"action_valid", "success", "admissible_actions", "optimal_actions"}
