"""Walk over a frozen lake, by Gymnasium's rules."""

import random
import re
from functools import lru_cache, partial
from typing import ClassVar, NamedTuple

import numpy as np

from gym_trl.envs.puzzle import Puzzle, plain
from gym_trl.envs.search import distances
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

# A lake is the text of its rows with line breaks: the character to the left of a row's first square is a line break
# too.
_MAPS = {
    "4x4": "SFFF\nFHFH\nFFFH\nHFFG\n",
    "8x8": "SFFFFFFF\nFFFFFFFF\nFFFHFFFF\nFFFFFHFF\nFFFHFFFF\nFHHFFFHF\nFHFFHFHF\nFFFHFFFG\n",
}
_MOVES = ("left", "down", "right", "up")
"""Moves in Gymnasium's order, in which the two perpendicular moves are neighbours of each move."""
_NUMBERS = {move: number for number, move in enumerate(_MOVES)}
_RANDOM_MAPS = 2**32
_MOST_DRAWS = 100
_ROW = re.compile(r"^[SFHGP]{2,}$", re.MULTILINE)
_TURNS_LEFT = re.compile(r"^([0-9]+) turns? left\.$", re.MULTILINE)


class FrozenLake(Puzzle):
    """Cross a frozen lake to the goal without falling into a hole, by the rules of Gymnasium's FrozenLake-v1.

    >>> env = FrozenLake(is_slippery=False)
    >>> print(env.reset(seed=0)[0])
    PFFF
    FHFH
    FFFH
    HFFG
    100 turns left.
    >>> print(env.step("down")[0])
    SFFF
    PHFH
    FFFH
    HFFG
    99 turns left.
    >>> observation, reward, terminated, *_ = env.step("right")
    >>> print(observation)
    You fell into a hole.
    SFFF
    FPFH
    FFFH
    HFFG
    98 turns left.
    >>> reward, terminated
    (0.0, True)

    A move off the lake does not change the position. On slippery ice a move goes in its direction with probability
    ``success_rate``, otherwise to one of the two sides with equal probability. With the same seed and moves, a fixed
    map slips exactly as Gymnasium's.

    Args:
        map_name: ``"4x4"`` or ``"8x8"``, Gymnasium's maps, or ``"random"``: a new one for each game, start in the top
            left and goal in the bottom right corner.
        size: Squares per side of a random map.
        holes: Probability of a hole, on all other squares of a random map. A map that cannot be crossed in ``turns``
            moves is drawn again; after 100 such maps, the holes on a shortest way over the last one are removed.
        is_slippery: Let moves slip to the sides.
        success_rate: Probability that a move goes in its direction on slippery ice.
        turns: Moves in an episode. Pass it together with ``map_name``.

    ``reward="efficient"`` pays the length of the shortest way over that of the way taken, slips included.

    The solver plays the best move for the turns that are left (a dynamic program over squares and turns), so it
    reaches the optimum. Exact values; the tests compute the optimum with a limit
    from Gymnasium's own table:

    =================================== ========= =========
    success                             4x4       8x8
    =================================== ========= =========
    optimum in 100 (4x4), 200 (8x8)     0.744190  0.913220
    optimum without a limit             14/17     1
    optimum, ``success_rate=0.8``       0.893954  0.996571
    optimum, ``success_rate=0.8``, 10   0.6896    0
    uniformly random, slippery or not   0.013940  0.001901
    always right, slippery              0.0315  0.3237
    always down, slippery               0.0495  0.0018
    =================================== ========= =========

    Always moving right scores well on 8x8 because Gymnasium's map has no holes in its top row and its right column.
    """

    presets: ClassVar = {
        "easy": {
            "map_name": "random", "size": 3, "holes": 0.2, "is_slippery": False, "success_rate": 1 / 3, "turns": 12
        },
        "medium": {
            "map_name": "4x4", "size": 4, "holes": 0.2, "is_slippery": True, "success_rate": 1 / 3, "turns": 100
        },
        "hard": {
            "map_name": "8x8", "size": 8, "holes": 0.2, "is_slippery": True, "success_rate": 1 / 3, "turns": 200
        },
    }  # fmt: skip
    ranges: ClassVar = {
        "map_name": ("4x4", "8x8", "random"), "size": (2, 32), "holes": (0, 1), "success_rate": (0, 1),
        "turns": (1, 10_000)
    }  # fmt: skip
    reward_modes = ("success", "efficient", "shaped")
    garbage = "forward"
    constant_action = "left"

    map_name: str
    size: int
    holes: float
    is_slippery: bool
    success_rate: float

    _at = 0

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.map_name == "random" and self.turns < 2 * (self.size - 1):
            raise ConfigError(
                f"turns must be at least {2 * (self.size - 1)} for a map of size {self.size}, got {self.turns}"
            )

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        slips = ""
        if self.is_slippery:
            slips = (
                f" The ice is slippery: a move goes where it should with probability {self.success_rate:.4g}, and else "
                "to one of the two sides at right angles to it."
            )
        return (
            "Cross the frozen lake. The map shows you (P), the start (S), ice (F), holes (H) and the goal (G). Reach G "
            f"within {counted(self.turns, 'turn')} and do not fall into a hole.{slips} A move off the map leaves you "
            "where you are, and costs a turn, as does anything else. Answer with one word: left, down, right or up."
        )

    @property
    def num_instances(self) -> int | None:
        """Number of maps where moves never slip; ``None`` otherwise, as slips cannot be counted."""
        if self.is_slippery:
            return None
        return _RANDOM_MAPS if self.map_name == "random" else 1

    @property
    def optimal_success(self) -> float | None:
        """Optimum by dynamic programming; for random maps 1.0 if nothing slips, otherwise ``None``."""
        if self.map_name == "random":
            return None if self.is_slippery else 1.0
        return _plan(_MAPS[self.map_name], self._rate, self.turns).success

    @property
    def optimum_is_shortest(self) -> bool:
        """True if moves never slip."""
        return not self.is_slippery

    def admissible_actions(self) -> list[str]:
        """Return all four moves, on every square."""
        return list(_MOVES)

    def solver(self) -> Policy:
        """Return a policy that plays the best move for the turns left: the optimum of every map."""
        return Steady(partial(_best_move, self._rate, self.turns), _ROW.search)

    @property
    def _rate(self) -> float:
        return float(self.success_rate) if self.is_slippery else 1.0

    @property
    def draws(self) -> bool:  # type: ignore[override]
        """True on slippery ice."""
        return self.is_slippery

    def _deal(self, instance: int | None) -> None:
        if self.map_name == "random":
            number = int(self.np_random.integers(_RANDOM_MAPS)) if instance is None else instance
            self._lake = _random_lake(self.size, self.holes, self.turns, number)
        else:
            self._lake = _MAPS[self.map_name]
            if self.is_slippery:
                self.np_random.random()  # Gymnasium draws the start, which is always the same
        self._steps = _steps(self._lake)
        self._at = 0

    def _act(self, action: str) -> Outcome:
        move = _NUMBERS.get(action if action in _NUMBERS else plain(action))
        if move is None:
            return self._reject("Answer left, down, right or up.")
        if self.is_slippery:
            move = self._slip(move)
        self._at = _go(self._lake, self._at, self._steps[move])
        square = self._lake[self._at]
        if square == "H":
            return self._end_turn("You fell into a hole.", done=True)
        return self._end_turn("You reached the goal." if square == "G" else "")

    def _snapshot(self) -> int:
        return self._at

    def _slip(self, move: int) -> int:
        fail = (1.0 - self.success_rate) / 2.0
        drawn = self.np_random.random()
        if drawn < fail:
            return (move - 1) % 4
        return move if drawn < fail + self.success_rate else (move + 1) % 4

    def _is_solved(self) -> bool:
        return self._lake[self._at] == "G"

    def _board(self) -> str:
        return f"{self._lake[: self._at]}P{self._lake[self._at + 1 :]}"

    def _fewest_actions(self) -> float:
        """Return the length of the shortest way, which can be walked only if no move slips away from it."""
        return _distances(self._lake)[0]

    def _potential(self) -> float:
        """Return 1 minus the shortest distance to the goal as a share of the number of squares."""
        return 1.0 - _distances(self._lake)[self._at] / len(self._lake)


def _best_move(rate: float, turns: int, observation: str) -> str:
    """Return the best move for the map, the position and the turns left that an observation shows."""
    lake = "".join(f"{row}\n" for row in _ROW.findall(observation))
    moves = _plan(lake.replace("P", "F").replace("S", "F"), rate, turns).moves
    left = int(_TURNS_LEFT.findall(observation)[-1])
    return _MOVES[moves[min(left, len(moves) - 1)][lake.index("P")]]


class _Plan(NamedTuple):
    success: float
    """Probability of success from the start, with all turns left."""
    moves: list[bytes]
    """Best moves by turns left and square; the last entry also applies to more turns."""


@lru_cache(maxsize=16)
def _plan(lake: str, rate: float, turns: int) -> _Plan:
    """Compute the best moves by backward induction; ties go to the move towards a shorter way."""
    squares = np.array(list(lake))
    targets = np.array([[_go(lake, at, step) for at in range(len(lake))] for step in _steps(lake)])
    away = _distances(lake)
    further = 1e-12 * np.array([away.get(at, len(lake)) for at in range(len(lake))])[targets]
    ice, fail = (squares == "F") | (squares == "S"), (1.0 - rate) / 2.0
    value = (squares == "G").astype(float)
    moves = [bytes(len(lake))]
    for _ in range(turns):
        there = value[targets]
        by_move = rate * there + fail * (np.roll(there, 1, axis=0) + np.roll(there, -1, axis=0))
        better = np.where(ice, by_move.max(axis=0), value)
        best = (by_move - further).argmax(axis=0).astype(np.uint8).tobytes()
        moves.append(best if best != moves[-1] else moves[-1])  # share one object, as the moves soon stop changing
        if np.array_equal(better, value):
            break
        value = better
    return _Plan(float(value[0]), moves)


def _steps(lake: str) -> tuple[int, int, int, int]:
    """Return the offset in the text of each move."""
    row = lake.index("\n") + 1
    return (-1, row, 1, -row)


def _go(lake: str, at: int, step: int) -> int:
    target = at + step
    return target if 0 <= target < len(lake) and lake[target] != "\n" else at


@lru_cache(maxsize=64)
def _distances(lake: str) -> dict[int, int]:
    """Return the length of the shortest way to the goal over ice, for every square that has one."""
    steps = _steps(lake)
    return distances(lake.index("G"), lambda at: [near for step in steps if lake[near := _go(lake, at, step)] != "H"])


def _random_lake(size: int, holes: float, turns: int, number: int) -> str:
    rng = random.Random(number)
    lake = ""
    for _ in range(_MOST_DRAWS):
        squares = "".join("H" if rng.random() < holes else "F" for _ in range(size * size))
        squares = f"S{squares[1:-1]}G"
        lake = "".join(f"{squares[row : row + size]}\n" for row in range(0, size * size, size))
        if _distances(lake).get(0, turns + 1) <= turns:
            return lake
    ways = [1] * (size - 1) + [size + 1] * (size - 1)
    rng.shuffle(ways)
    at = 0
    for step in ways[:-1]:
        at += step
        lake = f"{lake[:at]}F{lake[at + 1 :]}"
    return lake
