"""Minesweeper: open all cells without a mine."""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import comb
from typing import Any, ClassVar, NamedTuple, TypeAlias

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.search import distances
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text.textify import counted
from gym_trl.types import Policy

_ACTION = re.compile(r"\s*(reveal|flag)\s+([0-9]{1,3})(?:\s*,\s*|\s+)([0-9]{1,3})\s*", re.ASCII | re.IGNORECASE)
_MINES = re.compile(r"Mines: ([0-9]+)\.")
_CLOSED, _FLAG, _MINE = ".", "F", "*"
_DIGITS = "012345678"

_Neighbours: TypeAlias = tuple[tuple[int, ...], ...]


class Minesweeper(Puzzle):
    """Reveal all cells without a mine; a number counts the mines in the cells around it.

    >>> env = Minesweeper(difficulty="easy")
    >>> print(env.reset(options={"instance": 72})[0])
    Mines: 2. Turns left: 20.
       1 2 3 4
     1 . . . .
     2 . . . .
     3 . . . .
     4 . . . .
    >>> print(env.step("reveal 1 1")[0])
    Mines: 2. Turns left: 19.
       1 2 3 4
     1 0 0 1 .
     2 0 0 2 .
     3 0 0 2 .
     4 0 0 1 .
    >>> env.step("flag 2 4")[0].splitlines()[3]
    ' 2 0 0 2 F'

    An action is ``reveal ROW COLUMN`` or ``flag ROW COLUMN``, both from 1. The first cell that is revealed is never a
    mine; all other cells are equally likely to have one. Revealing a 0 also reveals the cells around it. The episode is
    won when all cells without a mine are open, regardless of flags, and lost on a mine. Flagging a cell again removes
    its flag; a flagged cell cannot be revealed.

    The board is a function of the instance and of the first cell: number ``instance`` of the
    ``comb(rows * columns - 1, mines)`` ways to lay the mines on the other cells, in the order of combinations.

    The presets' medium board is the beginner's; the expert board is ``rows=16, columns=30, mines=99, turns=480``.
    ``reward="efficient"`` pays the fewest reveals that open the board from the first cell on, divided by the turns
    taken.

    The optimum is unknown on large boards; for up to 600 instances (easy) it is computed here. The solver computes
    every cell's risk exactly. Where it has to guess it searches the rest of the game if few boards are left; otherwise
    it takes the least risk, and among equals the cell that leaves the least risk for the next turn. It wins, with
    standard errors:

    ================= =============== ============= =============
    board             solver          PSEQ          quasi-optimal
    ================= =============== ============= =============
    4 x 4, 2 mines    102/105 (exact)
    8 x 8, 10 mines   0.823 +- 0.006  0.8163        0.8179
    16 x 16, 40 mines 0.773 +- 0.013  0.7812        0.7822
    16 x 30, 99 mines 0.367 +- 0.028  0.3962        0.4006
    ================= =============== ============= =============

    4000, 1000 and 300 games were measured; the tests measure fewer, ``pytest -m nightly`` more. The other two columns
    are quoted from Tu et al. (AAAI-17 workshop) for the beginner, intermediate and expert boards. Their rule for the
    first cell may differ; here it is safe but need not be a 0.
    """

    presets: ClassVar = {
        "easy": {"rows": 4, "columns": 4, "mines": 2, "turns": 20},
        "medium": {"rows": 8, "columns": 8, "mines": 10, "turns": 80},
        "hard": {"rows": 16, "columns": 16, "mines": 40, "turns": 300},
    }
    ranges: ClassVar = {"rows": (1, 40), "columns": (1, 40), "mines": (1, None), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    garbage = "reveal 0 0"
    constant_action = "reveal 1 1"

    rows: int
    columns: int
    mines: int

    after_message: ClassVar[str] = " "

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.mines >= self.rows * self.columns:
            raise ConfigError(f"mines must be fewer than the {self.rows * self.columns} cells, got {self.mines}")

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._instances = comb(self.rows * self.columns - 1, self.mines)

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        return (
            f"Minesweeper: {self.rows} rows, {self.columns} columns, {counted(self.mines, 'mine')}. Reveal all cells "
            f"that have no mine in {counted(self.turns, 'turn')}. A number says how many of the up to 8 cells around "
            "it have a mine; . is closed, F is flagged. The first cell you reveal is safe. You lose if you reveal a "
            "mine. Flags are notes and not needed to win; "
            "flagging again takes a flag away, and a flagged cell cannot be revealed. Anything else costs a turn. "
            'Answer with one action: "reveal ROW COLUMN" or "flag ROW COLUMN", like: flag 1 1'
        )

    @property
    def num_instances(self) -> int:
        """Number of ways to lay the mines for a given first cell."""
        return self._instances

    @property
    def optimal_success(self) -> float | None:
        """Exact for boards of at most 600 instances, by exhaustive search; otherwise ``None``."""
        cells = self.rows * self.columns
        if self.num_instances > _SMALL or self.turns < cells - self.mines:
            return None
        return _small_board(cells, _neighbours(self.rows, self.columns), self.mines)[1] / self.num_instances

    def solver(self) -> Policy:
        """Return a policy that is perfect on at most 600 instances; else of least risk (wins 0.823 of medium).

        This equals the best published solvers (0.816 to 0.818, Tu et al. 2017).
        """
        return Steady(_LeastRisk(self.rows, self.columns), _MINES.search)

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that reveals or flags any closed cell."""
        rng = random.Random(seed)
        return lambda observation: self._random_action(rng)

    def _random_action(self, rng: random.Random) -> str:
        closed = [place for place, cell in enumerate(self._cells) if cell == _CLOSED]
        flagged = [place for place, cell in enumerate(self._cells) if cell == _FLAG]
        chosen = rng.randrange(2 * len(closed) + len(flagged))
        word = "reveal" if chosen < len(closed) else "flag"
        row, column = divmod((closed + closed + flagged)[chosen], self.columns)
        return f"{word} {row + 1} {column + 1}"

    def _deal(self, instance: int | None) -> None:
        self._instance = instance or 0
        self._first: int | None = None
        self._mined: frozenset[int] = frozenset()
        self._cells = [_CLOSED] * (self.rows * self.columns)
        self._lines = [self._line(row) for row in range(self.rows)]
        self._open = 0

    def _act(self, action: str) -> Outcome:
        read = _ACTION.fullmatch(action)
        if read is None:
            return self._reject('Not "reveal ROW COLUMN" or "flag ROW COLUMN".')
        row, column = int(read[2]) - 1, int(read[3]) - 1
        if not (0 <= row < self.rows and 0 <= column < self.columns):
            return self._reject("There is no such cell.")
        place = row * self.columns + column
        cell = self._cells[place]
        if cell in _DIGITS:
            return self._reject("That cell is open.")
        if read[1].lower() == "flag":
            self._cells[place] = _CLOSED if cell == _FLAG else _FLAG
            self._lines[row] = self._line(row)
            return self._end_turn()
        if cell == _FLAG:
            return self._reject("That cell is flagged.")
        return self._reveal(place)

    def _reveal(self, place: int) -> Outcome:
        if self._first is None:
            self._first = place
            self._mined = _lay(self._instance, self.rows * self.columns, self.mines, place)
        if place in self._mined:
            for mine in self._mined:
                self._cells[mine] = _MINE
            self._lines = [self._line(row) for row in range(self.rows)]
            return self._end_turn("A mine.", done=True)
        changed = self._flood(place)
        for row in {opened // self.columns for opened in changed}:
            self._lines[row] = self._line(row)
        self._open += len(changed)
        return self._end_turn("All safe cells are open." if self._is_solved() else "")

    def _snapshot(self) -> tuple[str, int | None]:
        return "".join(self._cells), self._first

    def _is_solved(self) -> bool:
        return self._open == len(self._cells) - self.mines

    def _flood(self, place: int) -> list[int]:
        """Open a cell and, around zeros, all others; flagged cells stay closed."""
        neighbours, mined, cells = _neighbours(self.rows, self.columns), self._mined, self._cells
        opened, todo = [], [place]
        cells[place] = "0"
        while todo:
            here = todo.pop()
            opened.append(here)
            around = neighbours[here]
            count = len(mined.intersection(around))
            if count:
                cells[here] = _DIGITS[count]
                continue
            for near in around:
                if cells[near] == _CLOSED:
                    cells[near] = "0"
                    todo.append(near)
        return opened

    def _fewest_actions(self) -> float:
        """Return the reveals needed: one per opening, plus each number beside none, with the first cell."""
        neighbours = _neighbours(self.rows, self.columns)
        zeros = {
            place
            for place in range(len(self._cells))
            if place not in self._mined and self._mined.isdisjoint(neighbours[place])
        }
        count, seen = 0, set[int]()
        for zero in zeros:
            if zero not in seen:
                count += 1
                seen.update(distances(zero, lambda here: neighbours[here] if here in zeros else ()))
        alone = len(self._cells) - self.mines - len(seen)
        return count + alone + (self._first in seen and self._first not in zeros)

    def _potential(self) -> float:
        """Return the share of the safe cells that are open."""
        return self._open / (len(self._cells) - self.mines)

    def _observe(self) -> str:
        head = _head(self.columns)
        return f"Mines: {self.mines}. Turns left: {self._turns_left}.\n{head}\n" + "\n".join(self._lines)

    def _line(self, row: int) -> str:
        cells = self._cells[row * self.columns : (row + 1) * self.columns]
        return f"{row + 1:2} {' '.join(cells)}" if self.columns < 10 else f"{row + 1:2}  {'  '.join(cells)}"


class _LeastRisk:
    """Policy that reveals cells that cannot be a mine, and otherwise the least likely mine."""

    def __init__(self, rows: int, columns: int) -> None:
        self._rows, self._columns = rows, columns
        self._safe: list[int] = []

    def __call__(self, observation: str) -> str:
        head, _, *lines = observation[observation.index("Mines: ") :].splitlines()
        shown = _MINES.match(head)
        assert shown is not None
        cells = [cell for line in lines[: self._rows] for cell in line[2:].split()]  # wrappers may append lines below
        flagged = next((place for place, cell in enumerate(cells) if cell == _FLAG), None)
        if flagged is not None:  # a flag set by earlier actions of another policy
            return self._say("flag", flagged)
        board = [-1 if cell == _CLOSED else int(cell) for cell in cells]
        self._safe = [place for place in self._safe if board[place] < 0]
        if not self._safe:
            self._safe = _best_moves(board, _neighbours(self._rows, self._columns), int(shown[1]))
        return self._say("reveal", self._safe.pop())

    def _say(self, word: str, place: int) -> str:
        row, column = divmod(place, self._columns)
        return f"{word} {row + 1} {column + 1}"


_CANDIDATES = 12
"""Most cells of equal risk that are compared a turn ahead; fewer where that takes long."""
_NODES = 20_000
"""Nodes of the search through the mines of one component; beyond that, risks are estimated."""
_NODES_AHEAD = 4_000
"""Nodes of the search for all cells that are compared a turn ahead."""
_FEW = 120
"""Most ways to lay the mines for a search to the end of the game."""
_SMALL = 600
"""Most instances of a board whose optimum is computed."""


def _best_moves(board: Sequence[int], neighbours: _Neighbours, mines: int) -> list[int]:
    """Return all safe cells, or the best guess."""
    if all(number < 0 for number in board):
        is_small = comb(len(board) - 1, mines) <= _SMALL
        return [_small_board(len(board), neighbours, mines)[0] if is_small else 0]
    safe = _plainly_safe(board, neighbours)
    if safe:
        return safe
    found = _analyse(board, neighbours, mines)
    safe = [place for place, risk in found.risks.items() if risk == 0]
    if safe:
        return safe
    if 0 < found.total <= _FEW:
        return [_Endgame(_ways(board, neighbours, mines), neighbours).guess()]
    least = min(found.risks.values())
    equal = [place for place, risk in found.risks.items() if risk <= least + 1e-9]
    if len(equal) == 1 or not found.total:
        return equal[:1]
    equal.sort(key=lambda place: (len([near for near in neighbours[place] if board[near] < 0]), place))
    candidates = equal[: min(_CANDIDATES, _NODES_AHEAD // found.nodes + 1)]
    return [max(candidates, key=lambda place: _later_safety(board, neighbours, mines, place, found.total))]


def _later_safety(board: Sequence[int], neighbours: _Neighbours, mines: int, place: int, total: int) -> float:
    """Return the probability of surviving this cell and the least risky cell after it."""
    safety = 0.0
    after = list(board)
    for number in range(len(neighbours[place]) + 1):
        after[place] = number
        found = _analyse(after, neighbours, mines)
        if found.total:
            safety += found.total / total * (1 - min(found.risks.values(), default=0.0))
    return safety


def _plainly_safe(board: Sequence[int], neighbours: _Neighbours) -> list[int]:
    """Return the cells that a single number proves safe: as many mines around it are known as it counts."""
    closed = {
        place: [near for near in neighbours[place] if board[near] < 0]
        for place, number in enumerate(board)
        if number > 0
    }
    mined = {near for place, around in closed.items() if len(around) == board[place] for near in around}
    safe = set()
    for place, around in closed.items():
        left = [near for near in around if near not in mined]
        if left and len(around) - len(left) == board[place]:
            safe.update(left)
    return sorted(safe)


class _Analysis(NamedTuple):
    total: int
    """Number of ways to lay the mines; 0 if there is none, or too many to count."""
    risks: dict[int, float]
    """Risk by closed cell."""
    nodes: int = 0
    """Nodes of the search."""


class _Box(NamedTuple):
    """Closed cells beside the same numbers, which are interchangeable."""

    cells: list[int]
    numbers: tuple[int, ...]


def _analyse(board: Sequence[int], neighbours: _Neighbours, mines: int) -> _Analysis:
    """Return every closed cell's risk, from all ways to lay the mines around the numbers."""
    at: dict[tuple[int, ...], list[int]] = {}
    away = []
    needs: dict[int, int] = {}
    for place, number in enumerate(board):
        if number >= 0:
            if any(board[near] < 0 for near in neighbours[place]):
                needs[place] = number
            continue
        numbers = tuple(near for near in neighbours[place] if board[near] >= 0)
        if numbers:
            at.setdefault(numbers, []).append(place)
        else:
            away.append(place)
    components = [_Component(boxes, needs) for boxes in _connected([_Box(c, n) for n, c in at.items()])]
    if not all(component.search() for component in components):
        return _Analysis(0, _estimate(board, neighbours, needs))
    return _combine(components, away, mines)._replace(nodes=1 + sum(component.nodes for component in components))


def _connected(boxes: list[_Box]) -> Iterator[list[_Box]]:
    """Yield the groups of boxes that share numbers, directly or indirectly; each box is near those before it."""
    at: dict[int, list[_Box]] = {}
    for box in boxes:
        for number in box.numbers:
            at.setdefault(number, []).append(box)
    seen: set[int] = set()
    for start in boxes:
        found, todo = [], [start]
        while todo:
            box = todo.pop()
            if box.cells[0] in seen:
                continue
            seen.add(box.cells[0])
            found.append(box)
            todo += [other for number in reversed(box.numbers) for other in at[number]]
        if found:
            yield found


class _Component:
    """Numbers of mines in a group of boxes: the ways for each total, and the mines in each box."""

    def __init__(self, boxes: list[_Box], needs: Mapping[int, int]) -> None:
        self.boxes = boxes
        self.ways: dict[int, int] = {}
        self.in_box: dict[int, list[int]] = {}
        """By the total number of mines: for each box, the mines in it, summed over all ways."""
        self._need = {number: needs[number] for box in boxes for number in box.numbers}
        self._room = dict.fromkeys(self._need, 0)
        for box in boxes:
            for number in box.numbers:
                self._room[number] += len(box.cells)
        self._counts = [0] * len(boxes)
        self.nodes = 0

    def search(self) -> bool:
        """Count all ways, and return False if the limit of nodes ended the search."""
        if all(0 <= need <= self._room[number] for number, need in self._need.items()):
            self._place(0, 0, 1)
        return self.nodes <= _NODES

    def _place(self, index: int, mines: int, ways: int) -> None:
        self.nodes += 1
        if self.nodes > _NODES:
            return
        if index == len(self.boxes):
            self.ways[mines] = self.ways.get(mines, 0) + ways
            held = self.in_box.setdefault(mines, [0] * index)
            for place, count in enumerate(self._counts):
                held[place] += ways * count
            return
        box, need, room = self.boxes[index], self._need, self._room
        size = len(box.cells)
        least = max(0, *(need[number] - room[number] + size for number in box.numbers))
        most = min(size, *(need[number] for number in box.numbers))
        for number in box.numbers:
            room[number] -= size
        for count in range(least, most + 1):
            self._counts[index] = count
            for number in box.numbers:
                need[number] -= count
            self._place(index + 1, mines + count, ways * comb(size, count))
            for number in box.numbers:
                need[number] += count
        for number in box.numbers:
            room[number] += size


def _combine(components: Sequence[_Component], away: Sequence[int], mines: int) -> _Analysis:
    """Combine the components: the remaining mines lie anywhere in the cells away from all numbers."""

    def laid_away(left: int) -> int:
        return comb(len(away), left) if left >= 0 else 0

    every = _convolve([component.ways for component in components])
    total = sum(ways * laid_away(mines - held) for held, ways in every.items())
    if not total:
        return _Analysis(0, {})
    risks: dict[int, float] = {}
    for component in components:
        others = _convolve([other.ways for other in components if other is not component])
        sums = [0] * len(component.boxes)
        for held, in_box in component.in_box.items():
            weight = sum(ways * laid_away(mines - held - more) for more, ways in others.items())
            if weight:
                sums = [have + weight * count for have, count in zip(sums, in_box, strict=True)]
        for box, count in zip(component.boxes, sums, strict=True):
            risks |= dict.fromkeys(box.cells, count / (total * len(box.cells)))
    if away:
        held_away = sum(ways * laid_away(mines - held) * (mines - held) for held, ways in every.items())
        risks |= dict.fromkeys(away, held_away / (total * len(away)))
    return _Analysis(total, risks)


def _convolve(parts: Sequence[Mapping[int, int]]) -> dict[int, int]:
    product = {0: 1}
    for part in parts:
        sums: dict[int, int] = {}
        for one, ways in product.items():
            for other, more in part.items():
                sums[one + other] = sums.get(one + other, 0) + ways * more
        product = sums
    return product


def _estimate(board: Sequence[int], neighbours: _Neighbours, needs: Mapping[int, int]) -> dict[int, float]:
    """Return for each cell the highest share of mines that any number beside it implies."""
    risks: dict[int, float] = {}
    for number, need in needs.items():
        around = [near for near in neighbours[number] if board[near] < 0]
        for place in around:
            risks[place] = max(risks.get(place, 0.0), need / len(around))
    return risks


def _ways(board: Sequence[int], neighbours: _Neighbours, mines: int) -> list[frozenset[int]]:
    """Return all sets of mines that agree with the numbers; cells beside numbers are decided first, to prune early."""
    closed = sorted(
        (place for place, number in enumerate(board) if number < 0),
        key=lambda place: all(board[near] < 0 for near in neighbours[place]),
    )
    ways, undecided = [frozenset[int]()], set(closed)
    for place in closed:
        undecided.remove(place)
        numbers = [near for near in neighbours[place] if board[near] >= 0]
        free = [len(undecided.intersection(neighbours[number])) for number in numbers]
        ways = [
            mined
            for mined in (*ways, *[way | {place} for way in ways])
            if len(mined) <= mines <= len(mined) + len(undecided)
            and all(
                0 <= board[number] - len(mined.intersection(neighbours[number])) <= left
                for number, left in zip(numbers, free, strict=True)
            )
        ]
    return ways


class _Endgame:
    """Perfect play among a few ways to lay the mines, all equally likely; a set of ways is a set of bits.

    A set of ways determines the state: the cells that are safe in all of them have been opened.
    """

    def __init__(self, ways: Sequence[frozenset[int]], neighbours: _Neighbours) -> None:
        self._all = (1 << len(ways)) - 1
        self._numbers: dict[int, dict[int, int]] = {}
        """For each cell, by its number, the ways in which it has this number and is safe."""
        for cell, around in enumerate(neighbours):
            found = self._numbers.setdefault(cell, {})
            for bit, mined in enumerate(ways):
                if cell not in mined:
                    number = len(mined.intersection(around))
                    found[number] = found.get(number, 0) | 1 << bit
        self._safe = {cell: sum(found.values()) for cell, found in self._numbers.items()}
        self._won: dict[int, int] = {}

    def wins_from(self, cell: int) -> int:
        """Return the number of ways in which it wins after revealing this cell now."""
        return sum(self._wins(ways) for ways in self._numbers[cell].values())

    def guess(self) -> int:
        """Return the cell to reveal where none is safe."""
        unsafe = [cell for cell, safe in self._safe.items() if 0 != safe != self._all]
        return max(unsafe, key=self.wins_from)

    def _wins(self, known: int) -> int:
        if known & (known - 1) == 0:
            return known.bit_count()
        if known not in self._won:
            self._won[known] = self._play(known)
        return self._won[known]

    def _play(self, known: int) -> int:
        guesses = []
        for cell, safe in self._safe.items():
            if known & ~safe:
                if known & safe:
                    guesses.append(((known & safe).bit_count(), cell))
                continue
            parts = [known & ways for ways in self._numbers[cell].values() if known & ways]
            if len(parts) > 1:
                return sum(map(self._wins, parts))
        best = 0
        for most, cell in sorted(guesses, reverse=True):
            if most <= best:
                break
            best = max(best, sum(self._wins(known & ways) for ways in self._numbers[cell].values() if known & ways))
        return best


@lru_cache(maxsize=64)
def _small_board(cells: int, neighbours: _Neighbours, mines: int) -> tuple[int, int]:
    """Return the best first cell of a small board, and the number of instances it wins."""
    best = (0, -1)
    for first in range(cells):
        ways = [_lay(instance, cells, mines, first) for instance in range(comb(cells - 1, mines))]
        won = _Endgame(ways, neighbours).wins_from(first)
        if won > best[1]:
            best = (first, won)
    return best


@lru_cache(maxsize=64)
def _neighbours(rows: int, columns: int) -> _Neighbours:
    """Return for each cell the cells around it."""
    return tuple(
        tuple(
            near_row * columns + near_column
            for near_row in range(max(0, row - 1), min(rows, row + 2))
            for near_column in range(max(0, column - 1), min(columns, column + 2))
            if (near_row, near_column) != (row, column)
        )
        for row in range(rows)
        for column in range(columns)
    )


@lru_cache(maxsize=64)
def _head(columns: int) -> str:
    """Return the numbers of the columns."""
    width = 1 if columns < 10 else 2
    return "   " + " ".join(f"{column:{width}}" for column in range(1, columns + 1)).rstrip()


def _lay(instance: int, cells: int, mines: int, first: int) -> frozenset[int]:
    """Return combination number ``instance`` of the cells without the first one."""
    mined, left, others = [], mines, cells - 1
    # Number of ways for the remaining mines if one is here; updated incrementally, which is faster than recomputing.
    here = comb(others - 1, mines - 1)
    for place in range(others):
        after = others - place - 1
        if instance < here:
            mined.append(place + (place >= first))
            left -= 1
            if left == 0:
                break
            here = here * left // after
        else:
            instance -= here
            here = here * (after - left + 1) // after
    return frozenset(mined)
