"""Sliding puzzles of up to 3x3 cells, such as the 8-puzzle."""

import math
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.text.textify import counted
from gym_trl.types import Policy

Cells: TypeAlias = tuple[int, ...]
"""Tiles row by row; the gap is 0."""

_TEXTS = "_12345678"
_ROW = re.compile(r"^ *(?:[0-9]+|_)(?: +(?:[0-9]+|_))+$", re.MULTILINE)


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

    The start is drawn uniformly from the solvable positions, half of all permutations, without the solved one. The
    presets' turns are twice the largest distance.

    The solver plays a shortest solution, by a table of all distances. Over all positions, the solved one included,
    these numbers are exact (the tests compute them):

    ===== ========= ======= ====
    board positions mean    most
    ===== ========= ======= ====
    2x2   12        3.0     6
    2x3   360       12.6222 21
    3x3   181440    21.9724 31
    ===== ========= ======= ====
    """

    presets: ClassVar = {
        "easy": {"rows": 2, "cols": 2, "turns": 12},
        "medium": {"rows": 2, "cols": 3, "turns": 42},
        "hard": {"rows": 3, "cols": 3, "turns": 62},
    }
    ranges: ClassVar = {"rows": (2, 3), "cols": (2, 3), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "0"

    rows: int
    cols: int

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._count: int = self.rows * self.cols
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
        """Number of positions that a game can start from."""
        return math.factorial(self._count) // 2 - 1

    @property
    def optimal_success(self) -> float:
        """Share of starts that ``turns`` moves suffice for."""
        near = int(np.count_nonzero(_table(self.rows, self.cols)[1] <= self.turns)) - 1
        return near / self.num_instances

    @property
    def constant_action(self) -> str:
        """A tile beside the gap, which depends on the position."""
        return self.admissible_actions()[0]

    def admissible_actions(self) -> list[str]:
        """Return the two to four tiles around the gap."""
        return [str(self._cells[cell]) for cell in self._beside[self._gap]]

    def solver(self) -> Policy:
        """Return a policy that plays a shortest solution."""
        return Steady(lambda observation: str(_nearer(self.rows, self.cols, _read(observation))), _ROW.search)

    def _deal(self, instance: int | None) -> None:
        self._first = _position(self.rows, self.cols, (instance or 0) + 1)
        self._cells = list(self._first)
        self._gap = self._cells.index(0)

    def _act(self, action: str) -> Outcome:
        tile = action.strip()
        for cell in self._beside[self._gap]:
            if str(self._cells[cell]) == tile:
                self._cells[self._gap], self._cells[cell] = self._cells[cell], 0
                self._gap = cell
                return self._end_turn()
        return self._reject("Not a tile beside the gap.")

    def _snapshot(self) -> tuple[int, ...]:
        return tuple(self._cells)

    def _is_solved(self) -> bool:
        return self._gap == self._count - 1 and tuple(self._cells) == _goal(self._count)

    def _board(self) -> str:
        shown = [_TEXTS[tile] for tile in self._cells]
        return "".join(
            [" ".join(shown[first : first + self.cols]) + "\n" for first in range(0, self._count, self.cols)]
        )

    def _fewest_actions(self) -> float:
        """Return the length of a shortest solution from the start."""
        return _away(self.rows, self.cols, self._first)

    def _potential(self) -> float:
        """Return 1 minus the distance as a share of the largest."""
        return 1.0 - _away(self.rows, self.cols, self._cells) / _longest(self.rows, self.cols)


def _read(observation: str) -> Cells:
    shown = " ".join(_ROW.findall(observation))
    return tuple(0 if tile == "_" else int(tile) for tile in shown.split())


@cache
def _goal(count: int) -> Cells:
    return (*range(1, count), 0)


@cache
def _beside(rows: int, cols: int) -> tuple[tuple[int, ...], ...]:
    """Return for every cell those above, left, right and below of it."""
    return tuple(
        tuple(
            other
            for other in range(rows * cols)
            if abs(cell // cols - other // cols) + abs(cell % cols - other % cols) == 1
        )
        for cell in range(rows * cols)
    )


def _slid(cells: Sequence[int], cell: int) -> Cells:
    """Return the position after sliding the tile in ``cell`` into the gap."""
    after = list(cells)
    after[after.index(0)], after[cell] = cells[cell], 0
    return tuple(after)


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
    positions = []
    gaps = codes & 15
    for gap, beside in enumerate(_beside(rows, cols)):
        here = codes[gaps == gap]
        for cell in beside:
            tile = here >> 4 * cell + 4 & 15
            positions.append(here + (tile << 4 * gap + 4) - (tile << 4 * cell + 4) + cell - gap)
    return np.concatenate(positions)


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


def _nearer(rows: int, cols: int, cells: Cells) -> int:
    """Return the tile to slide towards the goal."""
    beside = _beside(rows, cols)[cells.index(0)]
    return cells[min(beside, key=lambda cell: _away(rows, cols, _slid(cells, cell)))]
