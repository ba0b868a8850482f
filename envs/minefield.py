"""Fields of mines: how mines lie, how likely each closed cell has one, and which cell to open next."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import TypeAlias

Neighbours: TypeAlias = Sequence[Sequence[int]]
_Node: TypeAlias = tuple[int, tuple[tuple[int, int], ...]]
"""Mines laid so far, and how many each number still needs."""
_FEW = 120
"""Most ways to lay the mines for a search to the end of the game."""
_COMPARED = 6
"""Most cells of equal risk that are compared a turn ahead."""


@lru_cache(64)
def neighbours_of(rows: int, columns: int) -> Neighbours:
    """Return for each cell the cells around it."""
    near = [(row, column) for row in (-1, 0, 1) for column in (-1, 0, 1) if (row, column) != (0, 0)]
    return tuple(
        tuple(
            (row + down) * columns + column + right
            for down, right in near
            if 0 <= row + down < rows and 0 <= column + right < columns
        )
        for row in range(rows)
        for column in range(columns)
    )


def lay(instance: int, cells: int, mines: int, first: int) -> frozenset[int]:
    """Return combination number ``instance`` of the cells without the first one."""
    mined, others = list[int](), cells - 1
    for place in range(others):
        here = comb(others - place - 1, mines - len(mined) - 1)  # ways in which this cell has a mine
        if instance >= here:
            instance -= here
            continue
        mined.append(place + (place >= first))
        if len(mined) == mines:
            break
    return frozenset(mined)


@lru_cache(4096)
def best_cell(board: tuple[int, ...], neighbours: Neighbours, mines: int) -> int:
    """Return a safe cell, or the best guess; a closed cell of the board is -1."""
    if max(board) < 0:
        return 0
    field = Minefield(board, neighbours, mines)
    least = min(field.risks.values(), default=0.0)
    equal = [cell for cell, risk in field.risks.items() if risk <= least + 1e-9] or [board.index(-1)]
    if least == 0 or len(equal) == 1:
        return equal[0]
    if field.total <= _FEW:
        return _Endgame(list(field.layouts()), neighbours).guess()
    equal.sort(key=lambda cell: (sum(board[near] < 0 for near in neighbours[cell]), cell))
    return max(equal[:_COMPARED], key=lambda cell: _safety_after(board, neighbours, mines, cell))


def _safety_after(board: tuple[int, ...], neighbours: Neighbours, mines: int, cell: int) -> float:
    """Return in how many layouts this cell and the least risky one after it are safe."""
    safe = 0.0
    for number in range(len(neighbours[cell]) + 1):
        field = Minefield((*board[:cell], number, *board[cell + 1 :]), neighbours, mines)
        safe += field.total * (1 - min(field.risks.values(), default=0.0))
    return safe


class Minefield:
    """All layouts of mines that agree with the numbers of a board, and each closed cell's risk.

    >>> field = Minefield([1, -1, -1], neighbours_of(1, 3), mines=1)
    >>> field.total, field.risks
    (1, {1: 1.0, 2: 0.0})

    The layouts are the paths through a graph: cell by cell, those beside numbers get a mine or none. Paths meet where
    the rest of them is the same: equally many mines are laid, and the numbers that are not settled need equally many.
    """

    total: int
    """Number of layouts."""
    risks: dict[int, float]
    """Probability of a mine by closed cell; empty if there is no layout."""

    def __init__(self, board: Sequence[int], neighbours: Neighbours, mines: int) -> None:
        closed = [cell for cell, number in enumerate(board) if number < 0]
        self._numbers = {cell: [near for near in neighbours[cell] if board[near] >= 0] for cell in closed}
        self._mines = mines
        self._beside = self._in_order(board, neighbours)
        self._away = [cell for cell in closed if not self._numbers[cell]]
        self._edges: list[list[tuple[_Node, int, _Node]]] = []
        """By cell: the node before it, whether it has a mine, and the node after it."""
        room = [sum(board[near] < 0 for near in around) for around in neighbours]
        possible = all(0 <= number <= room[cell] for cell, number in enumerate(board) if number >= 0)
        ways: list[dict[_Node, int]] = [{(0, ()): int(possible)}]
        for cell in self._beside:
            for number in self._numbers[cell]:
                room[number] -= 1
            edges, after = list[tuple[_Node, int, _Node]](), defaultdict[_Node, int](int)
            for node, count in ways[-1].items():
                for mine in (0, 1):
                    needs = dict(node[1])
                    for number in self._numbers[cell]:
                        needs[number] = needs.get(number, board[number]) - mine
                    if node[0] + mine <= mines and all(0 <= need <= room[number] for number, need in needs.items()):
                        left = tuple(sorted((number, need) for number, need in needs.items() if room[number]))
                        edges.append((node, mine, (node[0] + mine, left)))
                        after[edges[-1][2]] += count
            self._edges.append(edges)
            ways.append(after)
        self._count(ways)

    def _in_order(self, board: Sequence[int], neighbours: Neighbours) -> list[int]:
        """Return the cells beside numbers, each near those before it, so that few numbers are unsettled at a time."""
        order: dict[int, None] = {}
        for start, numbers in self._numbers.items():
            todo = [start] if numbers else []
            while todo:
                if (cell := todo.pop()) not in order:
                    order[cell] = None
                    todo += [near for number in self._numbers[cell] for near in neighbours[number] if board[near] < 0]
        return list(order)

    def _count(self, ways: list[dict[_Node, int]]) -> None:
        """Count all layouts, and those with a mine in each cell: ways to a node times ways from it."""
        rest = {node: comb(len(self._away), self._mines - node[0]) for node in ways[-1]}
        far = sum(ways[-1][node] * count * (self._mines - node[0]) for node, count in rest.items())
        mined = dict.fromkeys(self._away, far / len(self._away)) if self._away else dict[int, float]()
        for place in reversed(range(len(self._beside))):
            before = defaultdict[_Node, int](int)
            held = 0
            for node, mine, after in self._edges[place]:
                before[node] += rest[after]
                held += mine * ways[place][node] * rest[after]
            mined[self._beside[place]], rest = held, before
        self.total = ways[0][0, ()] * rest.get((0, ()), 0)
        self.risks = {cell: count / self.total for cell, count in sorted(mined.items())} if self.total else {}

    def layouts(self) -> Iterator[frozenset[int]]:
        """Yield all sets of mined cells."""
        paths: list[tuple[_Node, frozenset[int]]] = [((0, ()), frozenset())]
        for cell, edges in zip(self._beside, self._edges, strict=True):
            onward = defaultdict[_Node, list[tuple[int, _Node]]](list)
            for node, mine, after in edges:
                onward[node].append((mine, after))
            paths = [
                (after, mined | {cell} if mine else mined) for node, mined in paths for mine, after in onward[node]
            ]
        for node, mined in paths:
            yield from (mined | set(more) for more in combinations(self._away, self._mines - node[0]))


class _Endgame:
    """Perfect play among a few layouts, all equally likely; a set of layouts is an integer's bits, and is the state."""

    def __init__(self, layouts: Sequence[frozenset[int]], neighbours: Neighbours) -> None:
        self._all = (1 << len(layouts)) - 1
        self._parts: list[dict[int, int]] = [defaultdict(int) for _ in neighbours]
        """By cell and its number: the layouts in which it is safe and has this number."""
        for bit, mined in enumerate(layouts):
            for cell, around in enumerate(neighbours):
                if cell not in mined:
                    self._parts[cell][len(mined.intersection(around))] |= 1 << bit
        self._safe = [sum(parts.values()) for parts in self._parts]
        self._known: dict[int, int] = {}

    def guess(self) -> int:
        """Return the cell to open where none is safe."""
        unsafe = [cell for cell, safe in enumerate(self._safe) if 0 != safe != self._all]
        return max(unsafe, key=lambda cell: sum(map(self._wins, self._parts[cell].values())))

    def _wins(self, layouts: int) -> int:
        """Return how many of these layouts perfect play wins."""
        if layouts & (layouts - 1) == 0:
            return layouts.bit_count()
        if layouts not in self._known:
            self._known[layouts] = self._search(layouts)
        return self._known[layouts]

    def _search(self, layouts: int) -> int:
        guesses = []
        for safe, numbers in zip(self._safe, self._parts, strict=True):
            parts = [layouts & part for part in numbers.values() if layouts & part]
            if layouts & ~safe == 0 and len(parts) > 1:
                return sum(map(self._wins, parts))  # it is safe, and tells something
            if layouts & ~safe and parts:
                guesses.append(((layouts & safe).bit_count(), parts))
        best = 0
        for most, parts in sorted(guesses, reverse=True):
            if most <= best:
                break
            best = max(best, sum(map(self._wins, parts)))
        return best
