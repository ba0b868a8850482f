"""The game 2048, on boards small enough for an exact optimum, and on larger ones."""

import re
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import pairwise, product
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

Row: TypeAlias = tuple[int, ...]
"""Tiles as their numbers; 0 is an empty cell."""
Board: TypeAlias = tuple[Row, ...]
Numbers: TypeAlias = npt.NDArray[np.int32]
"""Arrays of row or board numbers, for tables."""
Losses: TypeAlias = npt.NDArray[np.floating[Any]]

_ACTIONS = ("up", "down", "left", "right")
_SHOWN_ROW = re.compile(r"^(?:[0-9]+|\.)(?: (?:[0-9]+|\.))+$", re.MULTILINE)
_SPAWNS = ((2, 0.9), (4, 0.1))
_HIGHEST_TARGET = 2**16
_MOST_BOARDS_SOLVED = 6**9
_MANY_BOARDS = 2**22
_KNOWN: Mapping[tuple[int, int], float] = {(3, 64): 1.0}
"""Precomputed probabilities to win, by size and target, which take seconds to compute; a test computes them."""


class Game2048(Puzzle):
    """Slide all tiles up, down, left or right, merging equal ones, until one is ``target``.

    >>> env = Game2048(size=3, target=8, turns=9)
    >>> print(env.reset(seed=2)[0])
    . . 2
    . . .
    . 2 .
    9 turns left.
    >>> print(env.step("up")[0])
    . 2 2
    . . .
    2 . .
    8 turns left.
    >>> env.step("left")
    ('4 . 2...7 turns left.', 0.0, False, False, {'action_valid': True, 'success': False, 'max_tile': 4, ...})

    A move slides every tile as far as possible. Two equal tiles that meet merge into their sum, at most once per tile
    and move, beginning with those farthest in the direction of the move. Then a tile appears on a random empty cell: a
    2 with probability 0.9, else a 4; the start has two such tiles. After a move that changes nothing no tile appears.
    The episode is lost when nothing can move. ``info["max_tile"]`` is the largest tile.

    The presets have turns enough for every sequence of legal moves, so pass ``turns`` together with ``target``; the
    classic game is ``size=4, target=2048, turns=2000``. The shaped reward's potential is the logarithm of the largest
    tile as a share of the target's.

    The solver minimises the probability of losing, by a table for all boards of up to 3x3 and 64; beyond that it looks
    two moves ahead and evaluates the boards heuristically. Perfect play and random legal moves win:

    ===== ======== ======== =======
    size  target   perfect  random
    ===== ======== ======== =======
    2     8        1.0      .6556
    2     16       .962511  .1218
    2     32       .082887  .0005
    2     64       0.0      0.0
    3     16       1.0      .9538
    3     32       1.0      .6126
    3     64       1.0      .0922
    ===== ======== ======== =======

    Perfect play is computed exactly by the tests, random play exactly for 2x2. Perfect play loses less than one episode
    in 10**15 of 3x3 to 64. Looking two moves ahead won all of 100 episodes of 4x4 to 256 and to 512, and 84 of 100 to
    2048 (979 moves in the mean); the ``full`` tests play them.
    """

    presets: ClassVar = {
        "easy": {"size": 2, "target": 8, "turns": 7},
        "medium": {"size": 2, "target": 16, "turns": 20},
        "hard": {"size": 3, "target": 64, "turns": 150},
    }
    ranges: ClassVar = {"size": (2, 4), "target": (8, None), "turns": (1, None)}
    reward_modes = ("success", "shaped")
    garbage = "north"

    size: int
    target: int

    _rows: Board = ()
    _legal: tuple[str, ...] = ("left",)

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.target > _HIGHEST_TARGET or self.target & self.target - 1:
            raise ConfigError(f"target must be a power of two from 8 to {_HIGHEST_TARGET}, got {self.target}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        return (
            f"2048: make a tile {self.target} on the {self.size}x{self.size} board in {counted(self.turns, 'turn')}. A "
            "move slides all tiles up, down, left or right, and two equal tiles that meet merge into their sum. After "
            "each move a 2, sometimes a 4, appears on an empty cell (shown as a dot). The game is lost when nothing "
            'can move. A move that changes nothing costs a turn, and so does anything else. Answer with "up", "down", '
            '"left" or "right" alone.'
        )

    @property
    def optimal_success(self) -> float | None:
        """Optimum where the solver is perfect and ``turns`` are enough; ``None`` elsewhere."""
        # Each move adds at least 2, and the largest sum without a win is a board full of half the target.
        most_moves = (self.size**2 * self.target // 2 - 4) // 2 + 1
        if not self._has_table or self.turns < most_moves:
            return None
        optimum = _KNOWN.get((self.size, self.target))
        return 1.0 - _loss_at_start(self.size, self.target) if optimum is None else optimum

    @property
    def constant_action(self) -> str:
        """First legal move, which depends on the board."""
        return self._legal[0] if self._legal else "left"

    def admissible_actions(self) -> tuple[str, ...]:
        """Moves that change something."""
        return self._legal

    def solver(self) -> Policy:
        """Return a policy that is perfect on boards of up to 3x3 and 64, and looks two moves ahead on larger ones."""
        policy = partial(_least_loss, self.size, self.target) if self._has_table else _look_ahead
        return Steady(policy, _SHOWN_ROW.search)

    @property
    def _has_table(self) -> bool:
        boards: int = _levels(self.target) ** self.size**2
        return boards <= _MOST_BOARDS_SOLVED

    draws = True

    def _deal(self, instance: int | None) -> None:
        self._rows = ((0,) * self.size,) * self.size
        self._spawn()
        self._spawn()
        self._look()

    def _act(self, action: str) -> Outcome:
        move = action if action in _ACTIONS else action.strip().lower()
        if move not in self._legal:
            return self._reject("That changes nothing." if move in _ACTIONS else "Not a move.")
        self._rows = _moved(self._rows, move)
        if max(map(max, self._rows)) < self.target:
            self._spawn()
        self._look()
        return self._end_turn(done=not self._legal)

    def _snapshot(self) -> tuple[tuple[int, ...], ...]:
        return self._rows

    def _look(self) -> None:
        self._legal = _legal(self._rows)
        self._info = {"max_tile": max(map(max, self._rows))}

    def _is_solved(self) -> bool:
        return self._info["max_tile"] >= self.target

    def _spawn(self) -> None:
        empty = [(row, col) for row, tiles in enumerate(self._rows) for col, tile in enumerate(tiles) if tile == 0]
        draw = self.np_random.random
        row, col = empty[int(draw() * len(empty))]
        tile = 2 if draw() < 0.9 else 4
        tiles = self._rows[row]
        self._rows = (*self._rows[:row], (*tiles[:col], tile, *tiles[col + 1 :]), *self._rows[row + 1 :])

    def _board(self) -> str:
        return "".join([f"{_line(row).shown}\n" for row in self._rows])

    def _potential(self) -> float:
        """Return the logarithm of the largest tile as a share of the target's."""
        return (self._info["max_tile"].bit_length() - 1) / _levels(self.target)


class _Line(NamedTuple):
    """Precomputed results for a row, or for a column from its top."""

    shown: str
    left: Row
    """The row after a slide to the left, or up."""
    right: Row
    goes_left: bool
    goes_right: bool
    worth: float
    """Heuristic value for the search on larger boards."""


@cache
def _line(tiles: Row) -> _Line:
    left, right = _slid(tiles), _slid(tiles[::-1])[::-1]
    shown = " ".join(str(tile) if tile else "." for tile in tiles)
    return _Line(shown, left, right, left != tiles, right != tiles, _worth(tiles))


def _slid(tiles: Row) -> Row:
    """Return a row after a slide to its beginning."""
    found: list[int] = []
    can_merge = False
    for tile in filter(None, tiles):
        can_merge = can_merge and found[-1] == tile
        if can_merge:
            found[-1] *= 2
            can_merge = False
        else:
            found.append(tile)
            can_merge = True
    return (*found, *[0] * (len(tiles) - len(found)))


def _legal(rows: Board) -> tuple[str, ...]:
    up = down = left = right = False
    for row in rows:
        line = _line(row)
        left = left or line.goes_left
        right = right or line.goes_right
    for col in zip(*rows, strict=True):
        line = _line(col)
        up = up or line.goes_left
        down = down or line.goes_right
    return tuple([action for action, can in zip(_ACTIONS, (up, down, left, right), strict=True) if can])


def _moved(rows: Board, action: str) -> Board:
    if action == "left":
        return tuple([_line(row).left for row in rows])
    if action == "right":
        return tuple([_line(row).right for row in rows])
    cols = zip(*rows, strict=True)
    return tuple(zip(*[_line(col).left if action == "up" else _line(col).right for col in cols], strict=True))


def _moves(rows: Board) -> Iterator[tuple[str, Board]]:
    """Yield the legal moves, each with the board before a tile appears."""
    return ((action, _moved(rows, action)) for action in _legal(rows))


def _spawned(rows: Board, tile: int) -> list[Board]:
    """Return all boards that result when a tile appears."""
    return [
        (*rows[:row], (*tiles[:col], tile, *tiles[col + 1 :]), *rows[row + 1 :])
        for row, tiles in enumerate(rows)
        for col, there in enumerate(tiles)
        if there == 0
    ]


def _read(observation: str) -> Board:
    shown = [row.split() for row in _SHOWN_ROW.findall(observation)]
    return tuple(tuple(0 if tile == "." else int(tile) for tile in row) for row in shown)


def _least_loss(size: int, target: int, observation: str) -> str:
    """Return the move with the smallest probability of losing."""

    def loss(move: tuple[str, Board]) -> float:
        won = max(map(max, move[1])) >= target
        return -1.0 if won else _mean_loss(_losses(size, target), move[1], _levels(target))

    return min(_moves(_read(observation)), key=loss)[0]


def _mean_loss(losses: Losses, rows: Board, levels: int) -> float:
    """Return the probability of losing from a board on which a tile is about to appear."""
    number, empty, place = 0, [], 1
    for row in reversed(rows):
        for tile in reversed(row):
            if tile:
                number += (tile.bit_length() - 1) * place
            else:
                empty.append(place)
            place *= levels
    return sum(
        chance * float(losses[number + place * (tile // 2)]) for place in empty for tile, chance in _SPAWNS
    ) / len(empty)


def _levels(target: int) -> int:
    """Return the number of states of a cell while the game is not won: empty, 2, 4, ..., half the target."""
    return target.bit_length() - 1


@cache
def _loss_at_start(size: int, target: int) -> float:
    losses, levels = _losses(size, target), _levels(target)
    nothing: Board = ((0,) * size,) * size
    firsts = [(board, chance) for tile, chance in _SPAWNS for board in _spawned(nothing, tile)]
    total = sum(chance * _mean_loss(losses, board, levels) for board, chance in firsts)
    return total / size**2


@cache
def _losses(size: int, target: int) -> Losses:
    """Return the probability with which perfect play loses from every board.

    The digits of a board's number in base ``levels`` are the powers of two of its tiles. A move keeps the sum of the
    tiles and a new tile increases it, so boards are processed by their sum, the largest first. Of eight boards that are
    equal up to rotation and reflection only the smallest is computed. The table holds the probability of losing, not of
    winning, because 32-bit floats keep full precision near 0.
    """
    levels, cells = _levels(target), size**2
    grid = np.arange(cells).reshape(size, size)
    turns = [np.rot90(side, quarters).ravel() for side in (grid, grid.T) for quarters in range(4)]
    every = np.arange(levels**cells, dtype=np.int32).reshape((levels,) * cells)
    smallest = np.ones(every.shape, dtype=bool)
    for turn in turns[1:]:
        smallest &= every <= every.transpose(turn)
    boards = every[smallest]
    places = levels ** np.arange(cells, dtype=np.int32)[::-1]
    left, wins = _slides(size, levels)
    losses: Losses = np.ones(every.size, dtype=np.float32 if every.size > _MANY_BOARDS else np.float64)
    moved = np.ones_like(losses)  # the same for boards on which a tile is about to appear
    half_sums = sum((1 << boards // place % levels) >> 1 for place in places)
    order = np.argsort(half_sums, kind="stable")
    ends = np.flatnonzero(np.diff(half_sums[order])) + 1
    for layer in reversed(np.split(boards[order], ends)):
        tiles = layer // places[:, None] % levels
        images = [places @ tiles[turn] for turn in turns]
        mean = _mean_over_spawns(losses, layer, tiles, places)
        for image in images:
            moved[image] = mean
        fewest = np.ones(len(layer))
        # Sliding each rotation to the left is sliding the board in one of the four directions.
        for turn, image in zip(turns[:4], images, strict=False):
            rows = places[-size:] @ tiles[turn].reshape(size, size, -1)
            after = places[size - 1 :: size] @ left[rows]
            loss = np.where(after == image, 1.0, moved[after])
            loss[wins[rows].any(axis=0)] = 0.0
            np.minimum(fewest, loss, out=fewest)
        for image in images:
            losses[image] = fewest
    return losses


def _slides(size: int, levels: int) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Return for every row, by its number, the row after a slide to the left, and whether that makes the target."""
    rows = [_slid(tuple(1 << digit if digit else 0 for digit in row)) for row in product(range(levels), repeat=size)]
    digits = np.array([[tile.bit_length() - 1 if tile else 0 for tile in row] for row in rows], dtype=np.int32)
    return digits % levels @ (levels ** np.arange(size, dtype=np.int32)[::-1]), digits.max(axis=1) == levels


def _mean_over_spawns(losses: Losses, boards: Numbers, tiles: Numbers, places: Numbers) -> npt.NDArray[np.float64]:
    total: npt.NDArray[np.float64] = np.zeros(len(boards))
    count = np.zeros(len(boards))
    for place, cell in zip(places[::-1], tiles[::-1], strict=True):
        here = np.flatnonzero(cell == 0)
        total[here] += 0.9 * losses[boards[here] + place] + 0.1 * losses[boards[here] + 2 * place]
        count[here] += 1
    np.divide(total, count, out=total, where=count > 0)
    return total


def _worth(tiles: Row) -> float:
    """Rate a row: empty cells and equal neighbours are good, non-monotone rows and large tiles are bad."""
    levels = [tile.bit_length() - 1 if tile else 0 for tile in tiles]
    rises = sum(max(0, b**3 - a**3) for a, b in pairwise(levels))
    falls = sum(max(0, a**3 - b**3) for a, b in pairwise(levels))
    equal = sum(a == b > 0 for a, b in pairwise(levels))
    return 40.0 * levels.count(0) + 80.0 * equal - 2.0 * min(rises, falls) - sum(level**3 for level in levels)


def _look_ahead(observation: str) -> str:
    """Return the move with the best mean value, over the new tile, of the best next move."""
    rows = _read(observation)
    return max(_moves(rows), key=lambda move: _mean_worth(move[1]))[0]


def _mean_worth(rows: Board) -> float:
    boards = _spawned(rows, 2)
    return sum(map(_best_worth, boards)) / len(boards)


_DEAD = -1e6


def _best_worth(rows: Board) -> float:
    return max([_worth_of(after) for _, after in _moves(rows)], default=_DEAD)


def _worth_of(rows: Board) -> float:
    return sum([_line(row).worth for row in rows]) + sum([_line(col).worth for col in zip(*rows, strict=True)])
