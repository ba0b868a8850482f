"""Lights Out."""

import math
import re
from functools import cache, partial
from typing import ClassVar, NamedTuple

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.text import counted
from gym_trl.types import Policy

_ROW = re.compile(r"^[*.](?: [*.])*$", re.MULTILINE)
_BOARDS_BY_PRESSES = {
    4: (1, 16, 120, 560, 1387, 1440, 540, 32),
    5: (
        1, 25, 300, 2300, 12650, 53130, 176176, 467104, 982335, 1596279, 1935294, 1684446, 1004934, 383670, 82614, 7350
    ),
}  # fmt: skip
"""Number of boards that need 0, 1, 2, ... presses, for sizes with quiet patterns; a test counts them."""


class LightsOut(Puzzle):
    """Switch all lights off; a press switches a light and those above, below, left and right of it.

    >>> env = LightsOut(size=2, turns=3)
    >>> print(env.reset(options={"instance": 8})[0])
    * .
    . *
    3 turns left.
    >>> print(env.step("1 1")[0])
    . *
    * *
    2 turns left.
    >>> print(env.step("0 1")[0])
    Not a row and a column.
    . *
    * *
    1 turn left.
    >>> env.step("2 2")[1:4]
    (1.0, True, False)

    A light that is on is ``*``. An action is a row and a column, counted from 1 at the top left. The start is drawn
    uniformly from the boards that can be solved and are not dark.

    The order of presses does not matter and two equal presses cancel, so a solution is a set of lights that solves
    linear equations modulo 2. The solver adds every quiet pattern (a set that switches nothing) to one solution, and
    plays the smallest. Exact numbers, the dark board included, which the tests compute:

    ==== ======= =============== ======== ====
    size boards  can be solved   mean     most
    ==== ======= =============== ======== ====
    2    2**4    all             2.0      4
    3    2**9    all             4.5      9
    4    2**16   2**12           4.4307   7
    5    2**25   2**23           9.9029   15
    ==== ======= =============== ======== ====
    """

    presets: ClassVar = {
        "easy": {"size": 2, "turns": 8},
        "medium": {"size": 3, "turns": 18},
        "hard": {"size": 5, "turns": 30},
    }
    ranges: ClassVar = {"size": (1, 10), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "0 0"
    constant_action = "1 1"

    size: int

    _first = _lights = 0

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example is outside the board."""
        outside = f"{self.size + 1} {self.size + 1}"
        return (
            f"Lights Out: switch all lights (*) of the {self.size}x{self.size} board off (.) in "
            f"{counted(self.turns, 'turn')}. Pressing a light switches it and those directly above, below, left and "
            "right of it. Answer with the row and the column to press, counted from 1 at the top left, and nothing "
            f'else, written like "{outside}" (which is outside the board). Anything else costs a turn and '
            "switches nothing."
        )

    @property
    def num_instances(self) -> int:
        """The number of boards that can be solved and are not dark."""
        return 2 ** len(_algebra(self.size).independent) - 1  # type: ignore[no-any-return]

    @property
    def optimal_success(self) -> float | None:
        """Share of boards that ``turns`` presses suffice for; ``None`` where they are too many to count."""
        lights = self.size**2
        if self.turns >= lights:
            return 1.0
        if len(_algebra(self.size).quiet) == 1:  # each set of presses solves a different board
            return sum(math.comb(lights, presses) for presses in range(1, self.turns + 1)) / self.num_instances
        boards_by_presses = _BOARDS_BY_PRESSES.get(self.size)
        return None if boards_by_presses is None else sum(boards_by_presses[1 : self.turns + 1]) / self.num_instances

    def admissible_actions(self) -> tuple[str, ...]:
        """Presses of all lights, in every turn."""
        return _actions(self.size)

    def solver(self) -> Policy:
        """Return a policy that plays a smallest solution."""
        return Steady(partial(_press_one, self.size), _ROW.search)

    def _deal(self, instance: int | None) -> None:
        self._lights = 0
        for place, light in enumerate(_algebra(self.size).independent):
            if ((instance or 0) + 1) >> place & 1:
                self._lights ^= _switches(self.size)[light]
        self._first = self._lights

    def _act(self, action: str) -> Outcome:
        lights = _by_action(self.size)
        light = lights.get(action if action in lights else " ".join(action.split()))
        if light is None:
            return self._reject("Not a row and a column.")
        self._lights ^= _switches(self.size)[light]
        return self._end_turn()

    def _snapshot(self) -> int:
        return self._lights

    def _is_solved(self) -> bool:
        return self._lights == 0

    def _board(self) -> str:
        rows, size, lights = _rows(self.size), self.size, self._lights
        row = (1 << size) - 1
        return "".join([rows[lights >> first & row] for first in range(0, size * size, size)])

    def _fewest_actions(self) -> float:
        """Return the size of a smallest solution."""
        return _smallest(self.size, self._first).bit_count()

    def _potential(self) -> float:
        """Return the share of the lights that a smallest solution does not press."""
        return 1.0 - _smallest(self.size, self._lights).bit_count() / self.size**2


class _Algebra(NamedTuple):
    """Linear algebra modulo 2 of a size: boards and sets of presses are integers with a bit for every light."""

    independent: tuple[int, ...]
    """Lights whose presses make every solvable board, each in exactly one way."""
    undo: tuple[tuple[int, int], ...]
    """For each of these, a set of lights: it is pressed if an odd number of them is on."""
    quiet: tuple[int, ...]
    """All sets of presses that switch nothing, the empty one included."""


@cache
def _algebra(size: int) -> _Algebra:
    """Compute the algebra of a size by Gauss-Jordan elimination, modulo 2."""
    switches = _switches(size)
    # The matrix is symmetric: a press switches another light if the press of that one switches it.
    rows = [[switches[light], 1 << light] for light in range(size * size)]
    solved: dict[int, list[int]] = {}
    for press in range(size * size):
        pivot = next((row for row in rows if row[0] >> press & 1), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        for row in (*rows, *solved.values()):
            if row[0] >> press & 1:
                row[:] = row[0] ^ pivot[0], row[1] ^ pivot[1]
        solved[press] = pivot
    quiet = [0]
    for press in range(size * size):
        if press not in solved:
            pattern = 1 << press | sum(1 << other for other, (equation, _) in solved.items() if equation >> press & 1)
            quiet += [pattern ^ other for other in quiet]
    return _Algebra(tuple(solved), tuple((press, lights) for press, (_, lights) in solved.items()), tuple(quiet))


def _press_one(size: int, observation: str) -> str:
    shown = "".join(_ROW.findall(observation)).replace(" ", "")
    presses = _smallest(size, sum(1 << light for light, mark in enumerate(shown) if mark == "*"))
    return _actions(size)[(presses & -presses).bit_length() - 1]


def _smallest(size: int, lights: int) -> int:
    """Return the presses of a smallest solution."""
    algebra = _algebra(size)
    one = 0
    for press, odd in algebra.undo:
        one |= ((odd & lights).bit_count() & 1) << press
    return min((one ^ pattern for pattern in algebra.quiet), key=int.bit_count)


@cache
def _switches(size: int) -> tuple[int, ...]:
    """Return the lights that each press switches."""
    return tuple(
        sum(
            1 << other
            for other in range(size * size)
            if abs(light // size - other // size) + abs(light % size - other % size) <= 1
        )
        for light in range(size * size)
    )


@cache
def _actions(size: int) -> tuple[str, ...]:
    return tuple(f"{row} {col}" for row in range(1, size + 1) for col in range(1, size + 1))


@cache
def _by_action(size: int) -> dict[str, int]:
    return {action: light for light, action in enumerate(_actions(size))}


@cache
def _rows(size: int) -> tuple[str, ...]:
    """Return the text of each row by its bits."""
    return tuple(" ".join("*" if row >> col & 1 else "." for col in range(size)) + "\n" for row in range(1 << size))
