"""Pocket cube: Rubik's cube of 2x2x2."""

import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, permutations, product
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.text.textify import counted
from gym_trl.types import Policy

Stickers: TypeAlias = tuple[str, ...]
"""Stickers of the faces U, R, F, D, L and B, each from its top left to its bottom right."""
Vector: TypeAlias = tuple[int, int, int]
"""Coordinates to the right, up, and to the front."""

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
    orientation of the whole cube, so the corner of D, L and B stays fixed. An invalid action costs a turn and changes
    nothing.

    With ``scramble=0`` the start is drawn uniformly from the 3,674,159 unsolved positions. Otherwise it is the result
    of ``scramble`` moves, drawn uniformly from the sequences that never turn a face twice in a row; a sequence that
    ends at the solved position is shortened by one move. Easy is 1 move and 1 turn, so that a constant move wins no
    more than random ones; medium is 3 moves and 6 turns, and hard any position and 22 turns, twice the largest
    distance. Random moves win 1/9 of the easy games and 0.0036 of the medium ones. Arguments that are given replace the
    preset's.

    The solver plays a shortest solution, from a table of all distances (3.7 MB, computed in a second or two at first
    use). The number of positions by distance, where a half turn counts as one move:

    ==== === === ==== ===== ===== ====== ======= ======= ========= ======= =====
    0    1   2   3    4     5     6      7       8       9         10      11
    ==== === === ==== ===== ===== ====== ======= ======= ========= ======= =====
    1    9   54  321  1847  9992  50136  227536  870072  1887748   623800  2644
    ==== === === ==== ===== ===== ====== ======= ======= ========= ======= =====

    The mean is 8.7556. The tests compute these, and the largest distance in quarter turns, 14; 11 and 14 are the known
    God's numbers.

    Raises:
        ConfigError: ``scramble`` is not from 0 to 30, or ``turns`` is below 1.
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

    @property
    def constant_action(self) -> str:
        """Turn of the upper face."""
        return "U"

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


# ---------------------------------------------------------------------------------------------------------------------
# Moves of stickers
# ---------------------------------------------------------------------------------------------------------------------


def _places() -> list[tuple[Vector, Vector]]:
    """Return the corner and the direction of every sticker, in the displayed order."""
    corners: dict[str, Callable[[int, int], Vector]] = {
        "U": lambda row, col: (col, 1, row),
        "R": lambda row, col: (1, -row, -col),
        "F": lambda row, col: (col, -row, 1),
        "D": lambda row, col: (col, -1, -row),
        "L": lambda row, col: (-1, -row, col),
        "B": lambda row, col: (-col, -row, -1),
    }
    return [(corners[face](row, col), _NORMALS[face]) for face in _FACES for row in (-1, 1) for col in (-1, 1)]


_NORMALS: dict[str, Vector] = {
    "U": (0, 1, 0),
    "R": (1, 0, 0),
    "F": (0, 0, 1),
    "D": (0, -1, 0),
    "L": (-1, 0, 0),
    "B": (0, 0, -1),
}
_PLACES = _places()
_CLOCKWISE: dict[str, Callable[[Vector], Vector]] = {
    "U": lambda vector: (-vector[2], vector[1], vector[0]),
    "R": lambda vector: (vector[0], vector[2], -vector[1]),
    "F": lambda vector: (vector[1], -vector[0], vector[2]),
}


def _sources(face: str, quarters: int) -> list[int]:
    """Return for every place the place that its sticker comes from."""
    sources = list(range(24))
    for here, (corner, facing) in enumerate(_PLACES):
        if _dot(corner, _NORMALS[face]) == 1:
            there = (_turned(corner, face, quarters), _turned(facing, face, quarters))
            sources[_PLACES.index(there)] = here
    return sources


def _turned(vector: Vector, face: str, quarters: int) -> Vector:
    for _ in range(quarters):
        vector = _CLOCKWISE[face](vector)
    return vector


def _dot(a: Vector, b: Vector) -> int:
    return sum(x * y for x, y in zip(a, b, strict=True))


_QUARTERS = {"": 1, "'": 3, "2": 2}
_ACTIONS = tuple(face + mark for face in "URF" for mark in _QUARTERS)
_TURNS: dict[str, Callable[[Stickers], Stickers]] = {
    action: itemgetter(*_sources(action[0], _QUARTERS[action[1:]])) for action in _ACTIONS
}


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


# ---------------------------------------------------------------------------------------------------------------------
# Positions by number: the order and the twists of the seven movable corners; the solved one is number 0
# ---------------------------------------------------------------------------------------------------------------------


class _Position(NamedTuple):
    corners: tuple[int, ...]
    """Corner at every place."""
    twists: tuple[int, ...]
    """Place of its sticker of U or D: 0 on U or D, else 1 or 2 places on, clockwise."""


def _corner_places() -> list[tuple[int, ...]]:
    """Return the places of the stickers of each movable corner: that on U or D first, then clockwise."""
    found: dict[Vector, list[int]] = {}
    for place, (corner, _) in enumerate(_PLACES):
        found.setdefault(corner, []).append(place)
    del found[-1, -1, -1]
    return [_clockwise(places) for places in found.values()]


def _clockwise(places: Sequence[int]) -> tuple[int, ...]:
    first, second, third = sorted(places, key=lambda place: _PLACES[place][1][1] == 0)
    a, b, c = (_PLACES[place][1] for place in (first, second, third))
    cross = (a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0])
    return (first, second, third) if _dot(cross, c) < 0 else (first, third, second)


_CORNERS = _corner_places()
_CORNER_OF = {frozenset(_SOLVED[place] for place in places): corner for corner, places in enumerate(_CORNERS)}


@cache
def _orders() -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], int]]:
    orders = list(permutations(range(7)))
    return orders, {order: number for number, order in enumerate(orders)}


@cache
def _twistings() -> tuple[list[tuple[int, ...]], dict[tuple[int, ...], int]]:
    """Return all twists of the corners and their numbers; the twists add up to whole turns."""
    twistings = [(*twists, -sum(twists) % 3) for twists in product(range(3), repeat=6)]
    return twistings, {twists: number for number, twists in enumerate(twistings)}


def _position(stickers: Stickers) -> _Position:
    shown = [[stickers[place] for place in places] for places in _CORNERS]
    return _Position(
        tuple(_CORNER_OF[frozenset(names)] for names in shown),
        tuple(next(twist for twist, name in enumerate(names) if name in "UD") for names in shown),
    )


def _number(stickers: Stickers) -> int:
    position = _position(stickers)
    return _orders()[1][position.corners] * 729 + _twistings()[1][position.twists]


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
    twistings, twisting_numbers = _twistings()
    moves = []
    for action in actions:
        corners, twists = _position(_TURNS[action](_SOLVED))
        moves.append(
            (
                np.array([order_numbers[tuple(order[corner] for corner in corners)] for order in orders]) * 729,
                np.array(
                    [
                        twisting_numbers[
                            tuple((twisting[corner] + twist) % 3 for corner, twist in zip(corners, twists, strict=True))
                        ]
                        for twisting in twistings
                    ]
                ),
            )
        )
    return _breadth_first(moves).tobytes()


def _breadth_first(moves: Sequence[tuple[Any, Any]]) -> npt.NDArray[np.uint8]:
    distances = np.full(5040 * 729, 255, dtype=np.uint8)
    distances[0] = steps = 0
    reached = np.zeros(1, dtype=np.int64)
    while reached.size:
        steps += 1
        orders, twistings = np.divmod(reached, 729)
        for order, twisting in moves:
            after = order[orders] + twisting[twistings]
            distances[after[distances[after] == 255]] = steps
        reached = np.flatnonzero(distances == steps)
    return distances


def _nearer(observation: str) -> str:
    """Return a move to a position that is nearer to the solved one."""
    stickers = tuple("".join(_FACE.findall(observation)).replace(" ", ""))
    distances = _distances()
    return min(_ACTIONS, key=lambda action: distances[_number(_TURNS[action](stickers))])
