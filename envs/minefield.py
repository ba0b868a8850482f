"""Fields of mines: how mines lie, how likely each cell has one, and which cell to open next."""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from math import comb
from typing import NamedTuple, TypeAlias

Neighbours: TypeAlias = tuple[tuple[int, ...], ...]
_CANDIDATES = 12
"""Most cells of equal risk that are compared a turn ahead; fewer where that takes long."""
_NODES = 20_000
"""Nodes of the search through the mines of one component; beyond that, risks are estimated."""
_NODES_AHEAD = 4_000
"""Nodes of the search for all cells that are compared a turn ahead."""
_FEW = 120
"""Most ways to lay the mines for a search to the end of the game."""
SMALL = 600
"""Most instances of a board whose optimum is computed."""


def best_moves(board: Sequence[int], neighbours: Neighbours, mines: int) -> list[int]:
    """Return all safe cells, or the best guess."""
    if all(number < 0 for number in board):
        is_small = comb(len(board) - 1, mines) <= SMALL
        return [small_board(len(board), neighbours, mines)[0] if is_small else 0]
    safe = _plainly_safe(board, neighbours)
    if safe:
        return safe
    analysis = analyse(board, neighbours, mines)
    safe = [place for place, risk in analysis.risks.items() if risk == 0]
    if safe:
        return safe
    if 0 < analysis.total <= _FEW:
        return [_Endgame(_ways(board, neighbours, mines), neighbours).guess()]
    least = min(analysis.risks.values())
    equal = [place for place, risk in analysis.risks.items() if risk <= least + 1e-9]
    if len(equal) == 1 or not analysis.total:
        return equal[:1]
    equal.sort(key=lambda place: (len([near for near in neighbours[place] if board[near] < 0]), place))
    candidates = equal[: min(_CANDIDATES, _NODES_AHEAD // analysis.nodes + 1)]
    return [max(candidates, key=lambda place: _later_safety(board, neighbours, mines, place, analysis.total))]


def _later_safety(board: Sequence[int], neighbours: Neighbours, mines: int, place: int, total: int) -> float:
    """Return the probability of surviving this cell and the least risky cell after it."""
    safety = 0.0
    after = list(board)
    for number in range(len(neighbours[place]) + 1):
        after[place] = number
        analysis = analyse(after, neighbours, mines)
        if analysis.total:
            safety += analysis.total / total * (1 - min(analysis.risks.values(), default=0.0))
    return safety


def _plainly_safe(board: Sequence[int], neighbours: Neighbours) -> list[int]:
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


def analyse(board: Sequence[int], neighbours: Neighbours, mines: int) -> _Analysis:
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
            mines_in_boxes = self.in_box.setdefault(mines, [0] * index)
            for place, count in enumerate(self._counts):
                mines_in_boxes[place] += ways * count
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
        weights = {
            held: sum(ways * laid_away(mines - held - more) for more, ways in others.items())
            for held in component.in_box
        }
        for place, box in enumerate(component.boxes):
            count = sum(weights[held] * in_box[place] for held, in_box in component.in_box.items())
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


def _estimate(board: Sequence[int], neighbours: Neighbours, needs: Mapping[int, int]) -> dict[int, float]:
    """Return for each cell the highest share of mines that any number beside it implies."""
    risks: dict[int, float] = {}
    for number, need in needs.items():
        around = [near for near in neighbours[number] if board[near] < 0]
        for place in around:
            risks[place] = max(risks.get(place, 0.0), need / len(around))
    return risks


def _ways(board: Sequence[int], neighbours: Neighbours, mines: int) -> list[frozenset[int]]:
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

    def __init__(self, ways: Sequence[frozenset[int]], neighbours: Neighbours) -> None:
        self._all = (1 << len(ways)) - 1
        self._numbers: dict[int, dict[int, int]] = {}
        """For each cell, by its number, the ways in which it has this number and is safe."""
        for cell, around in enumerate(neighbours):
            by_number = self._numbers.setdefault(cell, {})
            for bit, mined in enumerate(ways):
                if cell not in mined:
                    number = len(mined.intersection(around))
                    by_number[number] = by_number.get(number, 0) | 1 << bit
        self._safe = {cell: sum(by_number.values()) for cell, by_number in self._numbers.items()}
        self._won: dict[int, int] = {}

    def wins_from(self, cell: int) -> int:
        """Return the number of ways in which it wins after revealing this cell now."""
        return sum(self._wins(ways) for ways in self._numbers[cell].values())

    def guess(self) -> int:
        """Return the cell to reveal where none is safe."""
        unsafe = [cell for cell, safe in self._safe.items() if 0 != safe != self._all]
        return max(unsafe, key=self.wins_from)

    def _wins(self, ways: int) -> int:
        if ways & (ways - 1) == 0:
            return ways.bit_count()
        if ways not in self._won:
            self._won[ways] = self._play(ways)
        return self._won[ways]

    def _play(self, ways: int) -> int:
        guesses = []
        for cell, safe in self._safe.items():
            if ways & ~safe:
                if ways & safe:
                    guesses.append(((ways & safe).bit_count(), cell))
                continue
            parts = [ways & part for part in self._numbers[cell].values() if ways & part]
            if len(parts) > 1:
                return sum(map(self._wins, parts))
        best = 0
        for most, cell in sorted(guesses, reverse=True):
            if most <= best:
                break
            best = max(best, sum(self._wins(ways & part) for part in self._numbers[cell].values() if ways & part))
        return best


@lru_cache(maxsize=64)
def small_board(cells: int, neighbours: Neighbours, mines: int) -> tuple[int, int]:
    """Return the best first cell of a small board, and the number of instances it wins."""
    best = (0, -1)
    for first in range(cells):
        ways = [lay(instance, cells, mines, first) for instance in range(comb(cells - 1, mines))]
        won = _Endgame(ways, neighbours).wins_from(first)
        if won > best[1]:
            best = (first, won)
    return best


@lru_cache(maxsize=64)
def neighbours_of(rows: int, columns: int) -> Neighbours:
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


def lay(instance: int, cells: int, mines: int, first: int) -> frozenset[int]:
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
