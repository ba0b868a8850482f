"""Breadth-first search, as solvers and generators of environments use it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

State = TypeVar("State")
Move = TypeVar("Move")


def distances(start: State, near: Callable[[State], Iterable[State]]) -> dict[State, int]:
    """Return the fewest steps from ``start`` to each state that can be reached.

    >>> distances(1, lambda number: [other for other in (number - 1, 2 * number) if 0 <= other < 4])
    {1: 0, 0: 1, 2: 1}
    """
    steps_to = {start: 0}
    queue = [start]
    for state in queue:
        steps = steps_to[state] + 1
        for other in near(state):
            if other not in steps_to:
                steps_to[other] = steps
                queue.append(other)
    return steps_to


def rings(
    start: State, moves: Callable[[State], Iterable[tuple[Move, State]]], came_from: dict[State, tuple[State, Move]]
) -> Iterator[list[State]]:
    """Yield the states that are 0, 1, 2, ... moves away; ``came_from`` gets the state before each, and the move."""
    ring, reached = [start], {start}
    while ring:
        yield ring
        outer = []
        for state in ring:
            for move, after in moves(state):
                if after not in reached:
                    reached.add(after)
                    came_from[after] = (state, move)
                    outer.append(after)
        ring = outer


def path(came_from: dict[State, tuple[State, Move]], state: State) -> list[Move]:
    """Return the moves from the start of a search to ``state``.

    >>> path({"b": ("a", "left"), "c": ("b", "right")}, "c")
    ['left', 'right']
    """
    moves = []
    while state in came_from:
        state, move = came_from[state]
        moves.append(move)
    return moves[::-1]


class Planner(Generic[State]):
    """Policy that solves the state that it reads, plays the solution, and solves again after a deviation.

    >>> policy = Planner(int, lambda number: [("halve", number // 2), ("subtract", number // 2 - 1)])
    >>> policy("8"), policy("4"), policy("9")
    ('halve', 'subtract', 'halve')
    """

    def __init__(self, read: Callable[[str], State], solve: Callable[[State], list[tuple[str, State]]]) -> None:
        self._read, self._solve = read, solve
        self._plan: list[tuple[str, State]] = []
        self._expected: State | None = None

    def __call__(self, observation: str) -> str:
        """Return the next action."""
        state = self._read(observation)
        if not self._plan or state != self._expected:
            self._plan = self._solve(state)[::-1]
        action, self._expected = self._plan.pop()
        return action
