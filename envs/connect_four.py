"""Connect Four (Milton Bradley, 1974) on boards of any size up to 9x9, against an opponent."""

import re
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias

from gym_trl.envs.board_game import BoardEnv, Rules
from gym_trl.envs.text_env import Difficulty
from gym_trl.envs.two_player import TwoPlayerEnv, against
from gym_trl.errors import ConfigError

_MOST_BOARDS = 10**6
"""Most column fillings of a board that is searched exhaustively, which takes some 10 seconds at most."""
_WIN = 1000
_BOARD = re.compile(r"You are ([XO])\.\n[1-9 ]+((?:\n[.XO](?: [.XO])*)+)")

_Position: TypeAlias = tuple[int, int]
"""The cells of the player to move, and all occupied cells, as bits: column by column, from below."""


class ConnectFour(BoardEnv[_Position, int]):
    """Drop discs into columns; four in a line, also diagonally, win.

    >>> env = ConnectFour(rows=4, cols=4, connect=3, seat="first")
    >>> print(env.reset(seed=0)[0])
    You are X.
    1 2 3 4
    . . . .
    . . . .
    . . . .
    . . . .
    >>> print(env.step("3")[0])
    You are X.
    1 2 3 4
    . . . .
    . . . .
    . . . .
    O . X .

    X begins. An action is the number of a column that is not full; a full board is a draw. The arguments shared by all
    games for two are documented in :class:`~gym_trl.envs.two_player.TwoPlayerEnv`.

    Args:
        rows: The height, from 2 to 9.
        cols: The width, from 2 to 9.
        connect: Length of a winning line, from 2 to the longer side.
        depth: Number of moves ``"minimax"`` looks ahead, in ``"epsilon"`` too. At this depth it recognizes wins in one
            move and threats that cannot be met, and otherwise counts the cells with which either player would win. It
            is perfect if ``depth`` is the number of cells. It prefers early wins and late losses.

    On boards of up to 16 cells, except 2x8, the solver is the best response to random moves and to a perfect opponent,
    by exhaustive search. Elsewhere it is alpha-beta search on bitboards, 7 moves ahead (5 on boards wider than 7), and
    the optimum is not known.

    On 4x4 the first player wins with three in a line (so the best response to random moves wins all games of easy), and
    perfect play leads to a draw with four (against random moves .9470 is the best payoff for X). These are exact.
    Games won on 6x7, measured by ``pytest -m nightly`` where it is the solver:

    ========= ======== ======== ========== =====================
    opponent  solver   random   always 4   games of the solver
    ========= ======== ======== ========== =====================
    random    1.0      .49      .70        500
    medium    .990     .036     .051       300
    hard      .93      .00      .04        400
    ========= ======== ======== ========== =====================

    Always playing the same column beats random moves, so medium has another opponent.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"rows": 4, "cols": 4, "connect": 3, "depth": 16, **against("random", "first", epsilon=0.1)},
        "medium": {"rows": 6, "cols": 7, "connect": 4, "depth": 2, **against("epsilon", "random", epsilon=0.25)},
        "hard": {"rows": 6, "cols": 7, "connect": 4, "depth": 4, **against("epsilon", "random", epsilon=0.1)},
    }
    ranges: ClassVar = TwoPlayerEnv.ranges | {"rows": (2, 9), "cols": (2, 9), "connect": (2, None), "depth": (1, None)}
    sides = ("X", "O")
    garbage = "0"
    _refusal = "There is no such column, or it is full."
    _first = (0, 0)
    _position = _first
    _board = bytearray()

    rows: int
    cols: int
    connect: int
    depth: int

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.connect > max(self.rows, self.cols):
            raise ConfigError(
                f"connect must fit on the board, got connect={self.connect}, rows={self.rows} and cols={self.cols}"
            )

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example is no column."""
        return (
            f"Connect {self.connect}: in turn, players drop a disc into a column, where it falls as low as it can. "
            f"Whoever first has {self.connect} in a line, horizontal, vertical or diagonal, wins; a full board is a "
            f"draw. {self._about()} Answer with the number of a column that is not full, alone, written like 0 (which "
            "is no column)."
        )

    @property
    def rules(self) -> "_Rules":
        """Rules of the game, as the opponent uses them."""
        return _rules(self.rows, self.cols, self.connect, self._foresight)

    @property
    def constant_action(self) -> str:
        """A column in the middle."""
        return str((self.cols + 1) // 2)

    @cached_property
    def _foresight(self) -> int:
        cells = self.rows * self.cols
        if self.opponent in ("minimax", "epsilon"):
            return min(self.depth, cells)
        return cells if _is_small(self.rows, self.cols) else self._solver_depth

    @property
    def _solver_depth(self) -> int:
        return 7 if self.cols <= 7 else 5

    @property
    def _searchable(self) -> bool:
        return _is_small(self.rows, self.cols) and (self._chance == 1 or self._foresight == self.rows * self.cols)

    def _strongest_move(self, position: _Position) -> int:
        rules = _rules(self.rows, self.cols, self.connect, max(self._solver_depth, self._foresight))
        return min(rules.best_moves(position), key=rules.order.index)

    @property
    def _longest_game(self) -> float:
        return self.rows * self.cols

    def _deal(self) -> None:
        super()._deal()
        numbers = " ".join(_ACTIONS[: self.cols])
        self._board = bytearray("\n".join([numbers, *[" ".join("." * self.cols)] * self.rows]), "ascii")

    def _move(self, move: int) -> None:
        before = self._position[1]
        mark = b"XO"[self._to_move]
        super()._move(move)
        column, height = divmod((self._position[1] ^ before).bit_length() - 1, self.rows + 1)
        self._board[2 * self.cols * (self.rows - height) + 2 * column] = mark

    def _see(self) -> str:
        return self._board.decode("ascii")

    def _read(self, action: str) -> int | None:
        column = _COLUMNS.get(action.strip())
        return column if column is not None and self.rules.has_room(self._position, column) else None

    def _recognise(self, observation: str) -> _Position:
        shown = _BOARD.search(observation)
        assert shown is not None
        mine = taken = 0
        for height, line in enumerate(reversed(shown[2].split("\n")[1:])):
            for column, mark in enumerate(line.split()):
                bit = 1 << (column * (self.rows + 1) + height)
                mine |= bit if mark == shown[1] else 0
                taken |= bit if mark != "." else 0
        return mine, taken

    def _write(self, move: int) -> str:
        return _ACTIONS[move]


_ACTIONS = tuple(map(str, range(1, 10)))
_COLUMNS = {action: column for column, action in enumerate(_ACTIONS)}


class _Rules(Rules[_Position, int]):
    """Rules on bitboards: a column has one bit more than rows, so no line continues into the next column."""

    def __init__(self, rows: int, cols: int, connect: int, depth: int) -> None:
        height = rows + 1
        self._depth, self._cells, self._is_small = depth, rows * cols, _is_small(rows, cols)
        self._bottoms = tuple(1 << column * height for column in range(cols))
        self._tops = tuple(bottom << rows - 1 for bottom in self._bottoms)
        self._floor = sum(self._bottoms)
        self._board = self._floor * ((1 << rows) - 1)
        directions = (1, height, height - 1, height + 1)
        self._lines = tuple(tuple(step * shift for shift in _doublings(connect)) for step in directions)
        self._gaps = tuple(
            tuple((place - gap) * step for place in range(connect) if place != gap)
            for step in directions
            for gap in range(connect)
        )
        self.order = sorted(range(cols), key=lambda column: abs(2 * column - cols + 1))
        """Columns from the middle outwards."""
        self._columns = tuple(self._bottoms[column] * ((1 << rows) - 1) for column in self.order)
        self._solved: dict[_Position, tuple[int, int]] = {}

    def moves(self, position: _Position) -> list[int]:
        taken = position[1]
        return [column for column, top in enumerate(self._tops) if not taken & top]

    def has_room(self, position: _Position, column: int) -> bool:
        return column < len(self._tops) and not position[1] & self._tops[column]

    def play(self, position: _Position, move: int) -> _Position:
        mine, taken = position
        return taken ^ mine, taken | taken + self._bottoms[move]

    def result(self, position: _Position) -> int | None:
        mine, taken = position
        theirs = taken ^ mine
        for shifts in self._lines:
            line = theirs
            for shift in shifts:
                line &= line >> shift
            if line:
                return -1
        return 0 if taken == self._board else None

    def value(self, position: _Position) -> int:
        result = self.result(position)
        if result is not None:
            return result
        score = self._score(position, self._cells, self._solved, -_WIN, _WIN)
        return (score > 0) - (score < 0)

    def search(self, position: _Position) -> list[int]:
        """Return the moves with the best score, looking ``depth`` moves ahead."""
        stones = position[1].bit_count()
        last = min(stones + self._depth, self._cells)
        # Scores searched to the end of the game stay valid; large boards have too many positions to keep.
        keep = last == self._cells and self._is_small
        table = self._solved if keep else {}
        best, moves = -_WIN - 1, []
        for column in self.order:
            if position[1] & self._tops[column]:
                continue
            then = self.play(position, column)
            result = self.result(then)
            if result is None:
                score = -self._score(then, last, table, -_WIN, 1 - best)
            else:
                score = -result * (_WIN - stones - 1)
            if score > best:
                best, moves = score, [column]
            elif score == best:
                moves.append(column)
        return sorted(moves)

    def _score(
        self, position: _Position, last: int, table: dict[_Position, tuple[int, int]], low: int, high: int
    ) -> int:
        """Score a position that is not over: above 0 if good for the player to move; exact from ``low`` to ``high``.

        A win with the nth disc of the game scores 1000 - n. ``last`` is the disc after which positions are judged.
        """
        mine, taken = position
        clear, safe, judged = self._look(mine, taken)
        if clear is not None:
            return clear
        if taken.bit_count() >= last:
            return judged
        lowest, highest = table.get(position, (-_WIN, _WIN))
        if lowest >= high or lowest == highest:
            return lowest
        if highest <= low:
            return highest
        best, bound, theirs = -_WIN, max(low, lowest), taken ^ mine
        for move in self._in_order(safe, mine, taken, last):
            best = max(best, -self._score((theirs, taken | move), last, table, -high, -bound))
            bound = max(best, bound)
            if bound >= high:
                break
        if best >= high:
            table[position] = (max(best, lowest), highest)
        elif best <= low:
            table[position] = (lowest, min(best, highest))
        else:
            table[position] = (best, best)
        return best

    def _look(self, mine: int, taken: int) -> tuple[int | None, int, int]:
        """Return the score if it is immediately clear; else the moves that do not lose at once and a threat score."""
        stones = taken.bit_count()
        possible = taken + self._floor & self._board
        free = self._board ^ taken
        wins, threats = self._completing(mine) & free, self._completing(taken ^ mine) & free
        if wins & possible:
            return _WIN - stones - 1, 0, 0
        urgent = threats & possible
        # Playing below a cell that the opponent needs gives it away, and only one of two threats can be met.
        safe = (urgent or possible) & ~(threats >> 1)
        if not safe or urgent & urgent - 1:
            return stones + 2 - _WIN, 0, 0
        if stones + 1 == self._cells:
            return 0, 0, 0
        return None, safe, wins.bit_count() - threats.bit_count()

    def _in_order(self, safe: int, mine: int, taken: int, last: int) -> list[int]:
        """Order moves by threats where this improves cutoffs; else from the middle outwards."""
        moves = [safe & column for column in self._columns if safe & column]
        if last - taken.bit_count() > 2 and len(moves) > 1:
            free = self._board ^ taken
            moves.sort(key=lambda move: -(self._completing(mine | move) & free).bit_count())
        return moves

    def _completing(self, stones: int) -> int:
        """Return the cells, also occupied ones and some beside the board, that complete a line of ``stones``."""
        completing = 0
        for gaps in self._gaps:
            line = -1
            for shift in gaps:
                line &= stones >> shift if shift > 0 else stones << -shift
            completing |= line
        return completing


def _is_small(rows: int, cols: int) -> bool:
    of_a_column: int = 2 ** (rows + 1) - 1
    return bool(of_a_column**cols <= _MOST_BOARDS)


def _doublings(length: int) -> list[int]:
    """Return shifts after which each remaining bit begins a line of this length; each at most doubles the length."""
    shifts, reached = [], 1
    while reached < length:
        shifts.append(min(reached, length - reached))
        reached += shifts[-1]
    return shifts


_rules = lru_cache(16)(_Rules)
