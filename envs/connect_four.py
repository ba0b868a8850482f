"""Connect Four (Milton Bradley, 1974) on boards of up to 9x9."""

from functools import lru_cache
from typing import ClassVar, TypeAlias

from gym_trl.envs.seat_game import SeatGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_WIN = 1000
_Board: TypeAlias = tuple[int, int, int]
"""Rows, columns, and how many connect."""
_Position: TypeAlias = tuple[int, int]
"""Discs of the player to move, and all discs, as bits: column by column from below, with a free bit on top of each."""


class ConnectFour(SeatGame):
    """Drop discs into columns; four in a line, also diagonally, win.

    >>> env = ConnectFour(rows=4, cols=4, connect=3)
    >>> _ = env.reset(seed=0)
    >>> print(env.step("3")[0])
    You are O.
    1 2 3 4
    . . . .
    . . . .
    . . . .
    . . X .

    X begins. An action is the number of a column that is not full; a full board is a draw. The solver looks ``depth``
    moves ahead, and is perfect if that is the number of cells, as in easy, where the first player wins.
    """

    presets: ClassVar = {
        "easy": {"rows": 4, "cols": 4, "connect": 3, "depth": 16, "mistakes": 3},
        "medium": {"rows": 6, "cols": 7, "connect": 4, "depth": 5, "mistakes": 3},
    }
    ranges: ClassVar = {**SeatGame.ranges, "rows": (2, 9), "cols": (2, 9), "connect": (2, 9), "depth": (1, None)}
    sides = ("X", "O")
    refusal = "There is no such column, or it is full."
    rows: int
    cols: int
    connect: int
    depth: int

    def prepare(self) -> None:
        """Check that a line fits on the board, and write the rules."""
        if self.connect > max(self.rows, self.cols):
            raise ConfigError(f"connect must fit on the board of {self.rows}x{self.cols}, got {self.connect}")
        self.instructions = (
            f"Connect {self.connect}: in turn, players drop a disc into a column, where it falls as low as it can. "
            f"Whoever first has {self.connect} in a line, horizontal, vertical or diagonal, wins; a full board is a "
            "draw. You are told who you are; X begins. The game is lost with "
            f"{counted(self.mistakes, 'illegal action')}. Answer with the number of a column that is not full, alone, "
            "written like 0 (which is no column)."
        )

    def deal(self) -> None:
        """Clear the board."""
        self.columns = [""] * self.cols  # discs from below

    def look(self) -> str:
        """Return the board."""
        columns = [column.ljust(self.rows, ".") for column in self.columns]
        rows = [" ".join(column[height] for column in columns) for height in reversed(range(self.rows))]
        return "\n".join([" ".join(map(str, range(1, self.cols + 1))), *rows])

    def legal(self) -> list[str]:
        """Return the columns that are not full."""
        return [str(number) for number, column in enumerate(self.columns, 1) if len(column) < self.rows]

    def move(self, action: str) -> tuple[float, ...] | None:
        """Drop a disc."""
        self.columns[int(action) - 1] += self.sides[self.to_move]
        if _has_line(self._position()[0], self.rows, self.connect):
            return self.win_of(self.to_move)
        return None if self.legal() else (0.0, 0.0)

    def solve(self) -> str:
        """Return the best column nearest to the middle."""
        return self.best_actions()[0]

    def best_actions(self) -> list[str]:
        """Return the columns with the best score; of more than two, those nearest to the middle."""
        board = self.rows, self.cols, self.connect
        highest, equal = -_WIN - 1, list[str]()
        mine, taken = self._position()
        for column in _from_the_middle(self.cols):
            if disc := _drop(taken, column, self.rows):
                found = _WIN - taken.bit_count() - 1
                if not _has_line(mine | disc, self.rows, self.connect):
                    # Scores from highest - 1 on are exact, so that equal ones are known.
                    found = -_score((taken ^ mine, taken | disc), board, self.depth - 1, -_WIN, 1 - highest)
                if found > highest:
                    highest, equal = found, []
                if found == highest:
                    equal.append(str(column + 1))
        return equal[:2]

    def state(self) -> tuple[str, ...]:
        """Return the discs in each column."""
        return tuple(self.columns)

    def _position(self) -> _Position:
        mine, taken = 0, 0
        for number, column in enumerate(self.columns):
            for height, mark in enumerate(column):
                bit = 1 << number * (self.rows + 1) + height
                taken |= bit
                mine |= bit if mark == self.sides[self.to_move] else 0
        return mine, taken


def _from_the_middle(cols: int) -> list[int]:
    return sorted(range(cols), key=lambda column: abs(2 * column - cols + 1))


def _drop(taken: int, column: int, rows: int) -> int:
    """Return where a disc comes to lie, or 0 if the column is full."""
    bottom = 1 << column * (rows + 1)
    return (taken + bottom) & ~taken & bottom * ((1 << rows) - 1)


def _has_line(discs: int, rows: int, length: int) -> bool:
    for step in (1, rows, rows + 1, rows + 2):
        line = discs
        for _ in range(length - 1):
            line &= line >> step
        if line:
            return True
    return False


@lru_cache(2**20)
def _score(position: _Position, board: _Board, depth: int, low: int, high: int) -> int:
    """Return the score of the best action, exact between low and high: above 0 is good, and an early win better."""
    mine, taken = position
    rows, cols, connect = board
    discs = [disc for column in _from_the_middle(cols) if (disc := _drop(taken, column, rows))]
    if any(_has_line(mine | disc, rows, connect) for disc in discs):
        return _WIN - taken.bit_count() - 1
    if not discs or depth <= 0:
        return 0
    best = -_WIN
    for disc in discs:
        best = max(best, -_score((taken ^ mine, taken | disc), board, depth - 1, -high, -max(low, best)))
        if best >= high:
            break
    return best
