"""Sliding puzzles such as the 15-puzzle."""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text.textify import counted
from gym_trl.types import Policy

Cells: TypeAlias = tuple[int, ...]
"""Tiles row by row; the gap is 0."""

_ROW = re.compile(r"^ *(?:[0-9]+|_)(?: +(?:[0-9]+|_))+$", re.MULTILINE)
_MOST_CELLS_SOLVED_AT_ONCE = 9
_MANY_POSITIONS = 20_000


class SlidingPuzzle(Puzzle):
    """Slide tiles into the gap until they are in order.

    >>> env = SlidingPuzzle(rows=2, cols=2, turns=3)
    >>> print(env.reset(options={"instance": 0})[0])
    2 3
    1 _
    3 turns left.
    >>> print(env.step("3")[0])
    2 _
    1 3
    2 turns left.
    >>> print(env.step("1")[0])
    Not a tile beside the gap.
    2 _
    1 3
    1 turn left.
    >>> env.step("2")[1:4]
    (0.0, True, False)

    The goal has the tiles in order row by row from 1, with the gap at the end. An action is the number of the tile to
    slide, which is unambiguous, unlike "up" for the tile or the gap. Anything else than a tile beside the gap costs a
    turn and moves nothing.

    With ``walk=0`` the start is drawn uniformly from the solvable positions, half of all permutations, without the
    solved one. Otherwise it is the end of a walk of ``walk`` moves, drawn uniformly from the walks that never undo the
    previous move; a walk that ends at the solved position is shortened by one move. Boards of more than 9 cells need a
    walk. Easy is 2x2 in 12 turns, medium 2x3 in 42, hard 3x3 in 62: all positions, and twice the largest distance.
    Random legal moves win 0.4217 of the easy games and 0.0380 of the medium ones. Arguments that are given replace the
    preset's.

    The solver plays a shortest solution: by a table of all distances for up to 9 cells, by a bidirectional search for
    more, which reaches the start of every walk; from other positions it plays a longer solution, tile by tile. Over all
    positions, the solved one included, these numbers are exact (the tests compute them); 80 moves for the farthest of
    4x4 is quoted from Bruengger et al. (1999):

    ===== ============== ======= ====
    board positions      mean    most
    ===== ============== ======= ====
    2x2   12             3.0     6
    2x3   360            12.6222 21
    2x4   20160          22.6776 36
    3x3   181440         21.9724 31
    4x4   16!/2                  80
    ===== ============== ======= ====

    Raises:
        ConfigError: ``rows`` or ``cols`` is not from 2 to 4, ``walk`` is not from 0 to 30 (from 1 on more than 9
            cells), or ``turns`` is below 1.
    """

    presets: ClassVar = {
        "easy": {"rows": 2, "cols": 2, "walk": 0, "turns": 12},
        "medium": {"rows": 2, "cols": 3, "walk": 0, "turns": 42},
        "hard": {"rows": 3, "cols": 3, "walk": 0, "turns": 62},
    }
    ranges: ClassVar = {"rows": (2, 4), "cols": (2, 4), "walk": (0, 30), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "0"

    rows: int
    cols: int
    walk: int

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.walk == 0 and self.rows * self.cols > _MOST_CELLS_SOLVED_AT_ONCE:
            raise ConfigError(
                f"walk must be at least 1 on a board of more than {_MOST_CELLS_SOLVED_AT_ONCE} cells, "
                f"got walk=0 and {self.rows}x{self.cols}"
            )

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._count: int = self.rows * self.cols
        self._all_known = self._count <= _MOST_CELLS_SOLVED_AT_ONCE
        self._beside = _beside(self.rows, self.cols)
        self._first = _goal(self._count)
        self._cells = list(self._first)
        self._gap = self._count - 1

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example is a number that no tile has."""
        return (
            f"Sliding puzzle: bring the tiles 1 to {self._count - 1} into order, row by row, with the gap _ at the "
            f"end, in {counted(self.turns, 'turn')}. A turn slides a tile that is beside the gap, or above or below, "
            "into it; anything else costs a turn and moves nothing. Answer with the tile's number alone, written like "
            f"{self._count} (which no tile has)."
        )

    @property
    def num_instances(self) -> int:
        """Number of positions, or of walks, that a game can start from."""
        if self.walk == 0:
            return math.factorial(self._count) // 2 - 1
        return _walks(self.rows, self.cols, self._count - 1, None, self.walk)

    @property
    def optimal_success(self) -> float | None:
        """Share of starts that ``turns`` moves suffice for; ``None`` for walks that may be too long."""
        if 0 < self.walk <= self.turns:
            return 1.0
        if not self._all_known:
            return None
        if _longest(self.rows, self.cols) <= self.turns:
            return 1.0
        near = sum(distance <= self.turns for distance in _distances(self.rows, self.cols)) - 1
        return near / self.num_instances if self.walk == 0 else None

    @property
    def constant_action(self) -> str:
        """A tile beside the gap, which depends on the position."""
        return self.admissible_actions()[0]

    def admissible_actions(self) -> list[str]:
        """Return the two to four tiles around the gap."""
        return [str(self._cells[cell]) for cell in self._beside[self._gap]]

    def solver(self) -> Policy:
        """Return a policy that plays a shortest solution, or any solution far from the starts of large boards."""
        if self._all_known:
            return Steady(_Descent(self.rows, self.cols), _ROW.search)
        return Steady(_Meeting(self.rows, self.cols, (self.walk + 1) // 2), _ROW.search)

    def _deal(self, instance: int | None) -> None:
        if self.walk == 0:
            self._first = _position(self.rows, self.cols, (instance or 0) + 1)
        else:
            self._first = _walked(self.rows, self.cols, self.walk, instance or 0)
        self._cells = list(self._first)
        self._gap = self._cells.index(0)

    def _act(self, action: str) -> Outcome:
        said = action.strip()
        for cell in self._beside[self._gap]:
            if str(self._cells[cell]) == said:
                self._cells[self._gap], self._cells[cell] = self._cells[cell], 0
                self._gap = cell
                return self._end_turn()
        return self._reject("Not a tile beside the gap.")

    def _is_solved(self) -> bool:
        return self._gap == self._count - 1 and tuple(self._cells) == _goal(self._count)

    def _board(self) -> str:
        texts, cols = _texts(self._count), self.cols
        shown = [texts[tile] for tile in self._cells]
        return "".join([" ".join(shown[first : first + cols]) + "\n" for first in range(0, self._count, cols)])

    def _fewest_actions(self) -> float:
        """Return the length of a shortest solution from the start."""
        if self._all_known:
            return _distances(self.rows, self.cols)[_number(self.rows, self.cols, self._first)]
        shortest = _shortest(self.rows, self.cols, (self.walk + 1) // 2, self._first)
        assert shortest is not None, "a walk is met from both of its ends"
        return len(shortest)

    def _potential(self) -> float:
        """Return 1 minus the distance as a share of the largest; beyond 9 cells by each tile's distance."""
        if self._all_known:
            distances = _distances(self.rows, self.cols)
            return 1.0 - distances[_number(self.rows, self.cols, self._cells)] / _longest(self.rows, self.cols)
        away = sum(_steps_apart(self.cols, cell, tile - 1) for cell, tile in enumerate(self._cells) if tile)
        return 1.0 - away / ((self._count - 1) * (self.rows + self.cols - 2))


class _Descent:
    """Policy that moves to a nearer position, by the table of all distances."""

    def __init__(self, rows: int, cols: int) -> None:
        self._rows, self._cols = rows, cols

    def __call__(self, observation: str) -> str:
        cells = _read(observation)
        distances = _distances(self._rows, self._cols)
        moves = _moves(_beside(self._rows, self._cols), cells)
        return str(min(moves, key=lambda move: distances[_number(self._rows, self._cols, move[1])])[0])


class _Meeting:
    """Policy that finds a whole solution at its first position, and plays it as long as it is followed."""

    def __init__(self, rows: int, cols: int, depth: int) -> None:
        self._rows, self._cols, self._depth = rows, cols, depth
        self._plan: list[int] = []
        self._expected: Cells = ()

    def __call__(self, observation: str) -> str:
        cells = _read(observation)
        if not self._plan or cells != self._expected:
            shortest = _shortest(self._rows, self._cols, self._depth, cells)
            self._plan = (_by_parts(self._rows, self._cols, cells) if shortest is None else shortest)[::-1]
        tile = self._plan.pop()
        self._expected = dict(_moves(_beside(self._rows, self._cols), cells))[tile]
        return str(tile)


def _read(observation: str) -> Cells:
    shown = " ".join(_ROW.findall(observation))
    return tuple(0 if tile == "_" else int(tile) for tile in shown.split())


@cache
def _texts(count: int) -> tuple[str, ...]:
    """Return the text of each tile by number, padded to equal width on large boards."""
    width = len(str(count - 1))
    return tuple("_".rjust(width) if tile == 0 else str(tile).rjust(width) for tile in range(count))


@cache
def _goal(count: int) -> Cells:
    return (*range(1, count), 0)


@cache
def _beside(rows: int, cols: int) -> tuple[tuple[int, ...], ...]:
    """Return for every cell those above, left, right and below of it."""
    return tuple(
        tuple(other for other in range(rows * cols) if _steps_apart(cols, cell, other) == 1)
        for cell in range(rows * cols)
    )


def _steps_apart(cols: int, cell: int, other: int) -> int:
    return abs(cell // cols - other // cols) + abs(cell % cols - other % cols)


def _moves(beside: Sequence[Sequence[int]], cells: Cells) -> list[tuple[int, Cells]]:
    """Return the tiles that can be slid, each with the resulting position."""
    gap = cells.index(0)
    found = []
    for cell in beside[gap]:
        after = list(cells)
        after[gap], after[cell] = cells[cell], 0
        found.append((cells[cell], tuple(after)))
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Solvable positions by number; the goal is number 0
# ---------------------------------------------------------------------------------------------------------------------


def _is_odd(rows: int, cols: int, gap: int) -> int:
    """Return whether the tiles of a solvable position are an odd permutation, given the gap."""
    # A tile that slides up or down passes cols - 1 others; one that slides sideways passes none.
    return (rows - 1 - gap // cols) * (cols - 1) % 2


def _number(rows: int, cols: int, cells: Sequence[int]) -> int:
    """Return the number of a position: the gap and the Lehmer code of the tiles, without the part fixed by parity."""
    count = rows * cols
    gap = cells.index(0)
    tiles = [tile for tile in cells if tile]
    number = count - 1 - gap
    for place in range(count - 3):
        first = tiles[place]
        smaller = 0
        for tile in tiles[place + 1 :]:
            smaller += tile < first
        number = number * (count - 1 - place) + smaller
    return number


def _position(rows: int, cols: int, number: int) -> Cells:
    """Return the position with a number."""
    count = rows * cols
    digits = []
    for base in range(3, count):
        number, digit = divmod(number, base)
        digits.append(digit)
    gap = count - 1 - number
    rest = list(range(1, count))
    tiles = [rest.pop(digit) for digit in reversed(digits)]
    tiles += rest if sum(digits) % 2 == _is_odd(rows, cols, gap) else rest[::-1]
    return (*tiles[:gap], 0, *tiles[gap:])


@cache
def _distances(rows: int, cols: int) -> bytes:
    """Return the number of moves from every solvable position to the goal, by its number."""
    ahead = _successors(rows, cols)
    distances = np.full(len(ahead), 255, dtype=np.uint8)
    reached = np.zeros(1, dtype=np.int64)
    steps = 0
    while reached.size:
        distances[reached] = steps
        ahead_of_them = ahead[reached].ravel()
        reached = np.unique(ahead_of_them[distances[ahead_of_them] == 255])
        steps += 1
    return distances.tobytes()


@cache
def _longest(rows: int, cols: int) -> int:
    return max(_distances(rows, cols))


def _successors(rows: int, cols: int) -> npt.NDArray[np.int64]:
    """Return up to four successors of every position, by number; itself in place of an impossible move."""
    count = rows * cols
    positions = _positions(rows, cols)
    gaps = (positions == 0).argmax(axis=1)
    everyone = np.arange(len(positions))
    found = []
    for step, possible in (
        (-cols, gaps >= cols),
        (cols, gaps < count - cols),
        (-1, gaps % cols > 0),
        (1, gaps % cols < cols - 1),
    ):
        movers = everyone[possible]
        gap = gaps[possible]
        after = positions[possible]
        after[np.arange(len(movers)), gap] = after[np.arange(len(movers)), gap + step]
        after[np.arange(len(movers)), gap + step] = 0
        successors = everyone.copy()
        successors[movers] = _numbers(after, gap + step)
        found.append(successors)
    return np.stack(found, axis=1)


def _positions(rows: int, cols: int) -> npt.NDArray[np.uint8]:
    """Return all solvable positions, in the order of their numbers."""
    count = rows * cols
    numbers = np.arange(math.factorial(count) // 2)
    digits = []
    for base in range(3, count):
        numbers, digit = np.divmod(numbers, base)
        digits.append(digit.astype(np.uint8))
    gaps = count - 1 - numbers
    odd = (sum(digit.astype(np.int64) for digit in digits) + _is_odd(rows, cols, gaps)) % 2  # type: ignore[arg-type, operator]
    tiles = np.empty((len(gaps), count - 1), dtype=np.uint8)
    tiles[:, -2], tiles[:, -1] = odd, 1 - odd
    for place, digit in zip(reversed(range(count - 3)), digits, strict=True):
        tiles[:, place] = digit
        tiles[:, place + 1 :] += tiles[:, place + 1 :] >= digit[:, None]
    positions = np.zeros((len(gaps), count), dtype=np.uint8)
    positions[np.arange(count) != gaps[:, None]] = (tiles + 1).ravel()
    return positions


def _numbers(positions: npt.NDArray[np.uint8], gaps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the numbers of many positions."""
    count = positions.shape[1]
    tiles = positions[positions > 0].reshape(-1, count - 1)
    numbers: npt.NDArray[np.int64] = count - 1 - gaps
    for place in range(count - 3):
        smaller = (tiles[:, place + 1 :] < tiles[:, place, None]).sum(axis=1)
        numbers = numbers * (count - 1 - place) + smaller
    return numbers


# ---------------------------------------------------------------------------------------------------------------------
# Walks from the goal, and the way back
# ---------------------------------------------------------------------------------------------------------------------


@cache
def _walks(rows: int, cols: int, gap: int, before: int | None, steps: int) -> int:
    """Return the number of walks of that many moves from ``gap``, whose first move must not go to ``before``."""
    if steps == 0:
        return 1
    return sum(_walks(rows, cols, cell, gap, steps - 1) for cell in _beside(rows, cols)[gap] if cell != before)


def _walked(rows: int, cols: int, steps: int, number: int) -> Cells:
    """Return the end of walk number ``number``, or one move before it if the end is the goal."""
    goal = _goal(rows * cols)
    cells, gap, before = list(goal), rows * cols - 1, -1
    for left in reversed(range(steps)):
        for cell in _beside(rows, cols)[gap]:
            if cell == before:
                continue
            walks = _walks(rows, cols, cell, gap, left)
            if number < walks:
                break
            number -= walks
        last = tuple(cells)
        cells[gap], cells[cell] = cells[cell], 0
        before, gap = gap, cell
    return last if tuple(cells) == goal else tuple(cells)


@cache
def _near_goal(rows: int, cols: int, depth: int) -> dict[Cells, int]:
    """Return positions at most ``depth`` moves from the goal, each with the tile that leads nearer; the goal with 0."""
    goal = _goal(rows * cols)
    found, ring = {goal: 0}, [goal]
    for _ in range(depth):
        outer = []
        for cells in ring:
            for tile, after in _moves(_beside(rows, cols), cells):
                if after not in found:
                    found[after] = tile
                    outer.append(after)
        ring = outer
    return found


def _shortest(rows: int, cols: int, depth: int, cells: Cells) -> list[int] | None:
    """Return the tiles of a shortest solution by a search forwards to positions ``depth`` moves from the goal.

    Return ``None`` if those are more than ``depth`` moves away and many positions have been searched.
    """
    beside, near = _beside(rows, cols), _near_goal(rows, cols, depth)
    paths: dict[Cells, tuple[Cells, int] | None] = {cells: None}
    ring, steps = [cells], 0
    while not (met := next((position for position in ring if position in near), None)):
        steps += 1
        if steps > depth and len(paths) > _MANY_POSITIONS:
            return None
        outer = []
        for position in ring:
            for tile, after in _moves(beside, position):
                if after not in paths:
                    paths[after] = (position, tile)
                    outer.append(after)
        ring = outer
    there, here = [], met
    while (step := paths[here]) is not None:
        here, tile = step
        there.append(tile)
    there.reverse()
    while tile := near[met]:
        there.append(tile)
        met = dict(_moves(beside, met))[tile]
    return there


def _by_parts(rows: int, cols: int, cells: Cells) -> list[int]:
    """Return the tiles of a long solution: top row and left column two or three tiles at a time, then a table.

    Placed tiles stay in place, and the tiles placed later are treated as equal, so every search has few positions.
    """
    fixed: set[int] = set()
    solution: list[int] = []
    top, left = 0, 0
    while (rows - top) * (cols - left) > _MOST_CELLS_SOLVED_AT_ONCE:
        if rows - top >= cols - left:
            line = [top * cols + col for col in range(left, cols)]
            top += 1
        else:
            line = [row * cols + left for row in range(top, rows)]
            left += 1
        # The last two of a line are placed together, since the last alone may not fit in.
        for part in (*([cell] for cell in line[:-2]), line[-2:]):
            moves, cells = _place(rows, cols, cells, part, fixed)
            solution += moves
            fixed.update(part)
    inside = [row * cols + col for row in range(top, rows) for col in range(left, cols)]
    return solution + _finish(rows - top, cols - left, cells, inside)


def _place(rows: int, cols: int, cells: Cells, part: list[int], fixed: set[int]) -> tuple[list[int], Cells]:
    """Return the fewest moves that bring the tiles of these cells home while ``fixed`` cells keep theirs."""
    beside = _beside(rows, cols)
    wanted = [cell + 1 for cell in part]

    def seen(position: Cells) -> tuple[int, ...]:
        return (position.index(0), *map(position.index, wanted))

    paths: dict[tuple[int, ...], tuple[Cells, list[int]]] = {seen(cells): (cells, [])}
    for position, moves in (queue := list(paths.values())):
        if all(position[cell] == cell + 1 for cell in part):
            return moves, position
        for tile, after in _moves(beside, position):
            if position.index(tile) not in fixed and seen(after) not in paths:
                paths[seen(after)] = (after, [*moves, tile])
                queue.append(paths[seen(after)])
    raise AssertionError("tiles can be brought home one after the other")


def _finish(rows: int, cols: int, cells: Cells, inside: list[int]) -> list[int]:
    """Return the tiles of a shortest solution of the rest, by the table of a board of its size."""
    names = {0: 0, **{cell + 1: number for number, cell in enumerate(inside, 1)}}
    tiles = {number: tile for tile, number in names.items()}
    small = tuple(names[cells[cell]] for cell in inside)
    beside, distances = _beside(rows, cols), _distances(rows, cols)
    solution = []
    for _ in range(distances[_number(rows, cols, small)]):
        tile, small = min(_moves(beside, small), key=lambda move: distances[_number(rows, cols, move[1])])
        solution.append(tiles[tile])
    return solution
