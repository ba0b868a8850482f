import random
from collections import deque
from typing import Any

import pytest

from gym_trl.envs.sokoban import Sokoban
from gym_trl.testing import play

STEPS = (-1, 1, -1j, 1j)


def fewest_moves(observation: str) -> int:
    """Return the moves of a shortest solution, forwards and breadth first, by the rules and nothing else."""
    lines = observation.splitlines()[:-1]
    marks = {row * 1j + column: mark for row, line in enumerate(lines) for column, mark in enumerate(line)}
    walls, goals, boxes, player = (
        frozenset(place for place, mark in marks.items() if mark in those) for those in ("#", ".*+", "$*", "@+")
    )
    start: Any = (*player, boxes)
    found, queue = {start: 0}, deque([start])
    while queue:
        at, boxes = queue.popleft()
        if boxes == goals:
            return found[at, boxes]
        for step in STEPS:
            to = at + step
            if to in walls or (to in boxes and (to + step in walls or to + step in boxes)):
                continue
            after = (to, boxes - {to} | {to + step} if to in boxes else boxes)
            if after not in found:
                found[after] = found[at, boxes] + 1
                queue.append(after)
    raise AssertionError("no solution")


@pytest.mark.parametrize(
    ("arguments", "games"),
    [
        ({"difficulty": "easy"}, 30),
        pytest.param({}, 60, marks=pytest.mark.slow),
        pytest.param({"difficulty": "hard"}, 3, marks=pytest.mark.slow),
    ],
)
def test_every_room_is_solved_in_the_fewest_moves(arguments: dict[str, Any], games: int) -> None:
    """Playing backwards and an independent search agree."""
    env = Sokoban(**arguments)
    for number in range(games):
        observation, _ = env.reset(options={"instance": number})
        steps = play(env, env.solver(), options={"instance": number})[1:]
        assert fewest_moves(observation) == len(steps)
        assert steps[-1][-1]["success"]


def test_a_box_is_pushed_where_nothing_is_behind_it() -> None:
    env, moves = Sokoban(boxes=3, turns=60), dict(zip(STEPS, ("left", "right", "up", "down"), strict=True))
    for seed in range(20):
        rng, over, observation = random.Random(seed), False, env.reset(seed=seed)[0]
        while not over:
            lines = observation.splitlines()[-env.height - 1 : -1]
            marks = {row * 1j + column: mark for row, line in enumerate(lines) for column, mark in enumerate(line)}
            [at] = [place for place, mark in marks.items() if mark in "@+"]
            free = [step for step in STEPS if marks[at + step] in "-."]
            pushes = [step for step in STEPS if marks[at + step] in "$*" and marks[at + 2 * step] in "-."]
            assert sorted(env.legal()) == sorted(moves[step] for step in free + pushes)
            chosen = rng.choice(pushes or free or [1])
            observation, _, over, *_ = env.step(moves[chosen])
            assert sum(observation.count(mark) for mark in "$*") == 3
