"""Pocket cube: Rubik's cube of 2x2x2."""

import re
from collections.abc import Callable
from functools import cache
from itertools import accumulate, permutations, product
from operator import itemgetter
from typing import ClassVar, TypeAlias

import numpy as np

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.text.textify import counted
from gym_trl.types import Policy

Stickers: TypeAlias = tuple[str, ...]
"""Stickers of the faces U, R, F, D, L and B, each from its top left to its bottom right."""

_FACES = "URFDLB"
_SOLVED: Stickers = tuple(face for face in _FACES for _ in range(4))
_FACE = re.compile(r"^[URFDLB]: (.*)$", re.MULTILINE)
_SHOWN = "".join(f"{face}: {{}} {{}} {{}} {{}}\n" for face in _FACES)
_BY_DISTANCE = (1, 9, 54, 321, 1847, 9992, 50136, 227536, 870072, 1887748, 623800, 2644)
"""Number of positions 0, 1, ..., 11 moves from the solved one; a test counts them."""


class PocketCube(Puzzle):
    """Solve a scrambled 2x2x2 cube with turns of its upper, right and front face.

    >>> env = PocketCube(scramble=1, turns=4)
    >>> print(env.reset(options={"instance": 3})[0])
    U: U F U F
    R: R R R R
    F: F D F D
    D: D B D B
    L: L L L L
    B: U B U B
    4 turns left.
    >>> env.step("L")[0].splitlines()[0]
    'Not a move.'
    >>> env.step("R'")[1:4]
    (1.0, True, False)

    A sticker is named by the face it belongs on, and a face is shown from its top left to its bottom right, as it lies
    in the usual net (R, L and B beside F, U above F, D below). A move turns a face clockwise as seen from outside:
    ``U``, ``R``, ``F``; ``'`` turns it the other way and ``2`` twice. Turns of the other faces would only change the
    orientation of the whole cube, so the corner of D, L and B stays fixed.

    With ``scramble=0`` the start is drawn uniformly from the 3,674,159 unsolved positions. Otherwise it is the result
    of ``scramble`` moves, drawn uniformly from the sequences that never turn a face twice in a row; a sequence that
    ends at the solved position is shortened by one move. Easy has one turn for one move, so that a constant move wins
    no more than random ones.

    The solver plays a shortest solution, from a table of all distances (3.7 MB, computed in a second or two at first
    use). The number of positions by distance, where a half turn counts as one move:

    ==== === === ==== ===== ===== ====== ======= ======= ========= ======= =====
    0    1   2   3    4     5     6      7       8       9         10      11
    ==== === === ==== ===== ===== ====== ======= ======= ========= ======= =====
    1    9   54  321  1847  9992  50136  227536  870072  1887748   623800  2644
    ==== === === ==== ===== ===== ====== ======= ======= ========= ======= =====

    The mean is 8.7556. The tests compute these, and the largest distance in quarter turns, 14; 11 and 14 are the known
    God's numbers.
    """

    presets: ClassVar = {
        "easy": {"scramble": 1, "turns": 1},
        "medium": {"scramble": 3, "turns": 6},
        "hard": {"scramble": 0, "turns": 22},
    }
    ranges: ClassVar = {"scramble": (0, 30), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "L"
    constant_action = "U"

    scramble: int

    _first = _stickers = _SOLVED

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example names a face that no move turns."""
        return (
            f"Solve the 2x2x2 cube in {counted(self.turns, 'turn')}: bring every sticker to the face that it is named "
            "after. The faces U (up), R (right), F (front), D (down), L (left) and B (back) are shown row by row, as "
            "they lie in the usual net around F. A move turns the face U, R or F clockwise, with ' after it the other "
            "way, with 2 by a half turn. Answer with one move, which is a letter and nothing, ' or 2 after it, written "
            "like L' (but L does not turn). Anything else costs a turn and changes nothing."
        )

    @property
    def num_instances(self) -> int:
        """Number of positions, or of sequences of moves, that a game can start from."""
        if self.scramble == 0:
            return sum(_BY_DISTANCE) - 1
        return int(9 * 6 ** (self.scramble - 1))

    @property
    def optimal_success(self) -> float | None:
        """Share of starts that ``turns`` moves suffice for; ``None`` for longer scrambles."""
        if self.turns >= min(self.scramble or 11, 11):
            return 1.0
        if self.scramble:
            return None
        return (list(accumulate(_BY_DISTANCE))[self.turns] - 1) / self.num_instances

    def admissible_actions(self) -> tuple[str, ...]:
        """Return all nine moves, in every turn."""
        return _ACTIONS

    def solver(self) -> Policy:
        """Return a policy that plays a shortest solution."""
        return Steady(_nearer, _FACE.search)

    def _deal(self, instance: int | None) -> None:
        number = instance or 0
        self._first = self._stickers = _scrambled(self.scramble, number) if self.scramble else _stickers(number + 1)

    def _act(self, action: str) -> Outcome:
        turn = _TURNS.get(action) or _TURNS.get(action.strip().upper().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'"))
        if turn is None:
            return self._reject("Not a move.")
        self._stickers = turn(self._stickers)
        return self._end_turn()

    def _snapshot(self) -> Stickers:
        return self._stickers

    def _is_solved(self) -> bool:
        return self._stickers == _SOLVED

    def _board(self) -> str:
        return _SHOWN.format(*self._stickers)

    def _fewest_actions(self) -> float:
        """Return the length of a shortest solution from the start."""
        return _distances()[_number(self._first)]

    def _potential(self) -> float:
        """Return 1 minus the distance as a share of the largest, 11."""
        return 1.0 - _distances()[_number(self._stickers)] / 11


_CYCLES = {
    "U": ((0, 2, 3, 1), (4, 20, 16, 8), (5, 21, 17, 9)),
    "R": ((4, 6, 7, 5), (1, 9, 13, 22), (3, 11, 15, 20)),
    "F": ((8, 10, 11, 9), (2, 19, 13, 4), (3, 17, 12, 6)),
}
"""For each clockwise quarter turn, cycles of places: each place gets the sticker of the place after it."""
_CORNERS = ((0, 16, 21), (1, 20, 5), (2, 8, 17), (3, 4, 9), (13, 11, 6), (15, 7, 22), (12, 19, 10))
"""Places of the stickers of each movable corner: that on U or D first, then clockwise."""
_CORNER_OF = {frozenset(_SOLVED[place] for place in places): corner for corner, places in enumerate(_CORNERS)}
_QUARTERS = {"": 1, "'": 3, "2": 2}
_ACTIONS = tuple(face + mark for face in "URF" for mark in _QUARTERS)


def _turn(face: str, quarters: int) -> Callable[[Stickers], Stickers]:
    sources = list(range(24))
    for cycle in _CYCLES[face]:
        for here, there in zip(cycle, cycle[quarters:] + cycle[:quarters], strict=True):
            sources[here] = there
    return itemgetter(*sources)


_TURNS = {action: _turn(action[0], _QUARTERS[action[1:]]) for action in _ACTIONS}


def _scrambled(length: int, number: int) -> Stickers:
    """Return the result of sequence number ``number``, or of all but its last move if that is the solved position."""
    stickers = before = _SOLVED
    faces = "URF"
    for _ in range(length):
        number, choice = divmod(number, 3 * len(faces))
        face = faces[choice // 3]
        before, stickers = stickers, _TURNS[face + list(_QUARTERS)[choice % 3]](stickers)
        faces = "URF".replace(face, "")
    return before if stickers == _SOLVED else stickers


# Positions have numbers, by the order and the twists of the seven movable corners; the solved one is number 0.


@cache
def _orders() -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], int]]:
    orders = list(permutations(range(7)))
    return orders, {order: number for number, order in enumerate(orders)}


@cache
def _twistings() -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], int]]:
    """Return all twists of the corners and their numbers; the twists add up to whole turns."""
    twistings = [(*twists, -sum(twists) % 3) for twists in product(range(3), repeat=6)]
    return twistings, {twists: number for number, twists in enumerate(twistings)}


def _position(stickers: Stickers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the corner at each place, and its twist: how many places on from U or D its sticker of U or D is."""
    shown = [[stickers[place] for place in places] for places in _CORNERS]
    twists = [0 if first in "UD" else 1 if second in "UD" else 2 for first, second, _ in shown]
    return tuple(_CORNER_OF[frozenset(names)] for names in shown), tuple(twists)


def _number(stickers: Stickers) -> int:
    corners, twists = _position(stickers)
    return _orders()[1][corners] * 729 + _twistings()[1][twists]


def _stickers(number: int) -> Stickers:
    """Return the position with a number."""
    order, twisting = divmod(number, 729)
    stickers = list(_SOLVED)
    for places, corner, twist in zip(_CORNERS, _orders()[0][order], _twistings()[0][twisting], strict=True):
        for step in range(3):
            stickers[places[(step + twist) % 3]] = _SOLVED[_CORNERS[corner][step]]
    return tuple(stickers)


@cache
def _distances(actions: tuple[str, ...] = _ACTIONS) -> bytes:
    """Return the fewest of these moves from every position to the solved one, by its number."""
    orders, order_numbers = _orders()
    twistings, _ = _twistings()
    moves = []
    for action in actions:
        corners, twists = _position(_TURNS[action](_SOLVED))
        turned = [order_numbers[tuple([order[corner] for corner in corners])] * 729 for order in orders]
        twisted = (np.array(twistings)[:, corners] + twists)[:, :6] % 3 @ 3 ** np.arange(5, -1, -1)
        moves.append((np.array(turned), twisted))
    distances = np.full(5040 * 729, 255, dtype=np.uint8)
    distances[0] = steps = 0
    reached = np.zeros(1, dtype=np.int64)
    while reached.size:
        steps += 1
        order, twisting = np.divmod(reached, 729)
        for turn, twist_ in moves:
            after = turn[order] + twist_[twisting]
            distances[after[distances[after] == 255]] = steps
        reached = np.flatnonzero(distances == steps)
    return distances.tobytes()


def _nearer(observation: str) -> str:
    """Return a move to a position that is nearer to the solved one."""
    stickers = tuple("".join(_FACE.findall(observation)).replace(" ", ""))
    distances = _distances()
    return min(_ACTIONS, key=lambda action: distances[_number(_TURNS[action](stickers))])
