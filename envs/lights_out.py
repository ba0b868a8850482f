"""Lights Out."""

from functools import cache
from itertools import product
from typing import ClassVar

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.text import counted


class LightsOut(TextGame):
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
    >>> env.step("0 1")[0].splitlines()[0], env.step("2 2")[1:3]
    ('Not a row and a column.', (1.0, True))

    A light that is on is ``*``. An action is a row and a column, counted from 1 at the top left. The start is drawn
    uniformly from the boards that can be solved and are not dark.

    The order of presses does not matter and two equal presses cancel, so a solution is a set of lights that solves
    linear equations modulo 2. The solver adds every quiet pattern (a set that switches nothing) to one solution, and
    plays the smallest: 2 presses of easy in the mean, 4.5 of medium and 9.9029 of hard, at most 4, 9 and 15.
    """

    presets: ClassVar = {
        "easy": {"size": 2, "turns": 8},
        "medium": {"size": 3, "turns": 18},
        "hard": {"size": 5, "turns": 30},
    }
    ranges: ClassVar = {"size": (1, 10)}
    size: int

    def prepare(self) -> None:
        """Count the boards, and write the rules, whose example is outside the board."""
        self.num_instances = (1 << len(_equations(self.size)[0])) - 1
        self.optimal_success = 1.0 if self.turns >= self.size**2 else None
        self.instructions = (
            f"Lights Out: switch all lights (*) of the {self.size}x{self.size} board off (.) in "
            f"{counted(self.turns, 'turn')}. Pressing a light switches it and those directly above, below, left and "
            "right of it. Answer with the row and the column to press, counted from 1 at the top left, and nothing "
            f'else, written like "{self.size + 1} {self.size + 1}" (which is outside the board). Anything else costs '
            "a turn and switches nothing."
        )

    def deal(self) -> None:
        """Press some lights of a dark board."""
        self.lights = 0
        for place, press in enumerate(_equations(self.size)[0]):
            if (self.instance or 0) + 1 >> place & 1:
                self.lights ^= _switches(self.size)[press]

    def look(self) -> str:
        """Return the board."""
        marks = ["*" if self.lights >> light & 1 else "." for light in range(self.size**2)]
        return "\n".join(" ".join(marks[row : row + self.size]) for row in range(0, self.size**2, self.size))

    def legal(self) -> list[str]:
        """Presses of all lights, in every turn."""
        return [f"{row} {column}" for row, column in product(range(1, self.size + 1), repeat=2)]

    def play(self, action: str) -> Step:
        """Press a light."""
        press = self.read(action)
        if press is None:
            return self.reject("Not a row and a column.")
        self.lights ^= _switches(self.size)[self.legal().index(press)]
        return self.turn(success=self.lights == 0)

    def solve(self) -> str:
        """Return the first press of a smallest solution."""
        equations, quiet = _equations(self.size)
        one = sum(((odd & self.lights).bit_count() & 1) << press for press, odd in equations.items())
        presses = min((one ^ pattern for pattern in quiet), key=int.bit_count)
        return self.legal()[(presses & -presses).bit_length() - 1]

    def state(self) -> int:
        """Return the lights that are on, as bits."""
        return self.lights


@cache
def _switches(size: int) -> tuple[int, ...]:
    """Return the lights that each press switches, as bits."""
    places = tuple(product(range(size), repeat=2))
    return tuple(
        sum(1 << light for light, (a, b) in enumerate(places) if abs(a - row) + abs(b - column) <= 1)
        for row, column in places
    )


@cache
def _equations(size: int) -> tuple[dict[int, int], list[int]]:
    """Solve the equations of a size by Gauss-Jordan elimination, modulo 2.

    Returns presses that make every solvable board, each in one way, with a set of lights for each: it is pressed if an
    odd number of these is on. And all sets of presses that switch nothing, the empty one included.
    """
    # The matrix is symmetric: a press switches another light if the press of that one switches it.
    rows = [[lights, 1 << light] for light, lights in enumerate(_switches(size))]
    solved: dict[int, list[int]] = {}
    for press in range(size**2):
        pivot = next((row for row in rows if row[0] >> press & 1), None)
        if pivot is None:
            continue
        rows.remove(pivot)
        for row in (*rows, *solved.values()):
            if row[0] >> press & 1:
                row[:] = row[0] ^ pivot[0], row[1] ^ pivot[1]
        solved[press] = pivot
    quiet = [0]
    for press in set(range(size**2)) - solved.keys():
        pattern = 1 << press | sum(1 << other for other, (equation, _) in solved.items() if equation >> press & 1)
        quiet += [pattern ^ other for other in quiet]
    return {press: odd for press, (_, odd) in solved.items()}, quiet
