"""Sliding puzzles such as the 15-puzzle."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.search import Planner, path, rings
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
    slide, which is unambiguous, unlike "up" for the tile or the gap.

    With ``walk=0`` the start is drawn uniformly from the solvable positions, half of all permutations, without the
    solved one. Otherwise it is the end of a walk of ``walk`` moves, drawn uniformly from the walks that never undo the
    previous move; a walk that ends at the solved position is shortened by one move. Boards of more than 9 cells need a
    walk. The presets' turns are twice the largest distance.

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
        near = int(np.count_nonzero(_table(self.rows, self.cols)[1] <= self.turns)) - 1
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
            return Steady(lambda observation: str(_nearer(self.rows, self.cols, _read(observation))[0]), _ROW.search)
        solve = partial(_solution, self.rows, self.cols, (self.walk + 1) // 2)
        return Steady(Planner(_read, solve), _ROW.search)

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
            return _away(self.rows, self.cols, self._first)
        shortest = _shortest(self.rows, self.cols, (self.walk + 1) // 2, self._first)
        assert shortest is not None, "a walk is met from both of its ends"
        return len(shortest)

    def _potential(self) -> float:
        """Return 1 minus the distance as a share of the largest; beyond 9 cells by each tile's distance."""
        if self._all_known:
            return 1.0 - _away(self.rows, self.cols, self._cells) / _longest(self.rows, self.cols)
        away = sum(_steps_apart(self.cols, cell, tile - 1) for cell, tile in enumerate(self._cells) if tile)
        return 1.0 - away / ((self._count - 1) * (self.rows + self.cols - 2))


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


def _slid(cells: Sequence[int], cell: int) -> Cells:
    """Return the position after sliding the tile in ``cell`` into the gap."""
    after = list(cells)
    after[after.index(0)], after[cell] = cells[cell], 0
    return tuple(after)


def _moves(rows: int, cols: int, cells: Cells) -> list[tuple[int, Cells]]:
    """Return the tiles that can be slid, each with the resulting position."""
    return [(cells[cell], _slid(cells, cell)) for cell in _beside(rows, cols)[cells.index(0)]]


def _position(rows: int, cols: int, number: int) -> Cells:
    """Return solvable position number ``number``; the goal is number 0."""
    count = rows * cols
    digits = []
    for base in range(3, count):
        number, digit = divmod(number, base)
        digits.append(digit)
    gap = count - 1 - number
    rest = list(range(1, count))
    tiles = [rest.pop(digit) for digit in reversed(digits)]
    # A tile that slides up or down passes cols - 1 others, and sideways none, so the gap's row fixes the parity.
    tiles += rest if (sum(digits) + (rows - 1 - gap // cols) * (cols - 1)) % 2 == 0 else rest[::-1]
    return (*tiles[:gap], 0, *tiles[gap:])


@cache
def _table(rows: int, cols: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return the codes of all solvable positions, sorted, and the number of moves from each to the goal."""
    layer, before = np.array([_code(_goal(rows * cols))]), np.array([-1])
    layers = []
    while layer.size:
        layers.append(layer)
        # A move changes the distance by 1, so what is beside a layer is in the layer before it or after it.
        layer, before = np.setdiff1d(_after(rows, cols, layer), before), layer
    codes, moves = np.concatenate(layers), np.repeat(np.arange(len(layers), dtype=np.uint8), list(map(len, layers)))
    order = codes.argsort()
    return codes[order], moves[order]


def _after(rows: int, cols: int, codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the codes one move after any of these."""
    found = []
    gaps = codes & 15
    for gap, beside in enumerate(_beside(rows, cols)):
        here = codes[gaps == gap]
        for cell in beside:
            tile = here >> 4 * cell + 4 & 15
            found.append(here + (tile << 4 * gap + 4) - (tile << 4 * cell + 4) + cell - gap)
    return np.concatenate(found)


def _code(cells: Sequence[int]) -> int:
    """Return a position of at most 9 cells as a number: its gap in the lowest four bits, then each cell's tile."""
    return int(bytes(cells)[::-1].hex()[1::2], 16) << 4 | cells.index(0)


def _away(rows: int, cols: int, cells: Sequence[int]) -> int:
    """Return the number of moves from a position to the goal."""
    codes, moves = _table(rows, cols)
    return int(moves[codes.searchsorted(_code(cells))])


@cache
def _longest(rows: int, cols: int) -> int:
    return int(_table(rows, cols)[1].max())


def _nearer(rows: int, cols: int, cells: Cells) -> tuple[int, Cells]:
    """Return the tile to slide towards the goal, and the position after it."""
    return min(_moves(rows, cols, cells), key=lambda move: _away(rows, cols, move[1]))


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
def _near_goal(rows: int, cols: int, depth: int) -> dict[Cells, tuple[Cells, int]]:
    """Return positions at most ``depth`` moves from the goal, each with the next one and the tile to slide."""
    found: dict[Cells, tuple[Cells, int]] = {}
    for _ in islice(rings(_goal(rows * cols), partial(_moves, rows, cols), found), depth + 1):
        pass
    return found


def _solution(rows: int, cols: int, depth: int, cells: Cells) -> list[tuple[str, Cells]]:
    """Return the tiles of a shortest or else a long solution, each with the position after it."""
    shortest, solution = _shortest(rows, cols, depth, cells), []
    for tile in _by_parts(rows, cols, cells) if shortest is None else shortest:
        cells = _slid(cells, cells.index(tile))
        solution.append((str(tile), cells))
    return solution


def _shortest(rows: int, cols: int, depth: int, cells: Cells) -> list[int] | None:
    """Return the tiles of a shortest solution by a search forwards to positions ``depth`` moves from the goal.

    Return ``None`` if those are more than ``depth`` moves away and many positions have been searched.
    """
    near, goal = _near_goal(rows, cols, depth), _goal(rows * cols)
    came_from: dict[Cells, tuple[Cells, int]] = {}
    for steps, ring in enumerate(rings(cells, partial(_moves, rows, cols), came_from)):
        if met := next((position for position in ring if position in near or position == goal), None):
            return path(came_from, met) + path(near, met)[::-1]
        if steps >= depth and len(came_from) >= _MANY_POSITIONS:
            break
    return None


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
            for cell in _gap_path(rows, cols, cells, part, fixed):
                solution.append(cells[cell])
                cells = _slid(cells, cell)
            fixed.update(part)
    # The rest is a board of its own, with its tiles numbered anew.
    inside = [row * cols + col for row in range(top, rows) for col in range(left, cols)]
    tiles = [0, *(cell + 1 for cell in inside)]
    small = tuple(tiles.index(cells[cell]) for cell in inside)
    while small != _goal(len(inside)):
        tile, small = _nearer(rows - top, cols - left, small)
        solution.append(tiles[tile])
    return solution


def _gap_path(rows: int, cols: int, cells: Cells, part: list[int], fixed: set[int]) -> list[int]:
    """Return the shortest way of the gap that brings the tiles of these cells home and moves no ``fixed`` cell."""
    beside = _beside(rows, cols)

    def moves(places: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        gap, *tiles = places
        for cell in beside[gap]:
            if cell not in fixed:
                yield cell, (cell, *[gap if tile == cell else tile for tile in tiles])

    came_from: dict[tuple[int, ...], tuple[tuple[int, ...], int]] = {}
    start = (cells.index(0), *[cells.index(cell + 1) for cell in part])
    home = (places for ring in rings(start, moves, came_from) for places in ring if [*places[1:]] == part)
    return path(came_from, next(home))
