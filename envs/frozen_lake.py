"""Walk over a frozen lake, by Gymnasium's rules."""

import random
from functools import lru_cache
from typing import ClassVar

import numpy as np

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

# A lake is the text of its rows with line breaks, so that a step off the map is one onto a line break or outside.
_MAPS = {
    "4x4": "SFFF\nFHFH\nFFFH\nHFFG\n",
    "8x8": "SFFFFFFF\nFFFFFFFF\nFFFHFFFF\nFFFFFHFF\nFFFHFFFF\nFHHFFFHF\nFHFFHFHF\nFFFHFFFG\n",
}
_MOVES = ("left", "down", "right", "up")
"""Moves in Gymnasium's order, in which the two perpendicular moves are neighbours of each move."""
_RANDOM_MAPS = 2**32
_SUCCESS_RATE = 1 / 3
_HOLES = 0.2


class FrozenLake(TextGame):
    """Cross a frozen lake to the goal without falling into a hole, by the rules of Gymnasium's FrozenLake-v1.

    >>> env = FrozenLake(is_slippery=False)
    >>> print(env.reset(seed=0)[0])
    PFFF
    FHFH
    FFFH
    HFFG
    100 turns left.
    >>> env.step("down")[0].splitlines()[:2], env.step("right")[0].splitlines()[0]
    (['SFFF', 'PHFH'], 'You fell into a hole.')

    On slippery ice a move goes in its direction with probability 1/3, otherwise to one of the two sides with equal
    probability. With the same seed and moves, a fixed map slips exactly as Gymnasium's.

    Args:
        map_name: ``"4x4"`` or ``"8x8"``, Gymnasium's maps, or ``"random"``: a new one for each game.
        size: Squares per side of a random map, with the start in the top left and the goal in the bottom right corner.
            Its other squares are holes with probability 0.2. A map that cannot be crossed in ``turns`` moves is drawn
            again.

    The solver plays the best move for the turns that are left (a dynamic program over squares and turns), so it reaches
    the optimum: 0.744190 of medium and 0.913220 of hard. Random moves win 0.013940 and 0.001901; always moving right
    wins 0.3237 of hard, as Gymnasium's map has no holes in its top row and its right column.
    """

    presets: ClassVar = {
        "easy": {"map_name": "random", "size": 3, "is_slippery": False, "turns": 12},
        "medium": {"map_name": "4x4", "size": 4, "is_slippery": True, "turns": 100},
        "hard": {"map_name": "8x8", "size": 8, "is_slippery": True, "turns": 200},
    }
    ranges: ClassVar = {"map_name": (*_MAPS, "random"), "size": (2, 32), "turns": (1, 10_000)}
    map_name: str
    size: int
    is_slippery: bool

    def prepare(self) -> None:
        """Check that a random map can be crossed, count the maps, and write the rules."""
        if self.map_name == "random" and self.turns < 2 * (self.size - 1):
            raise ConfigError(f"turns must be at least {2 * (self.size - 1)} for size {self.size}, got {self.turns}")
        self.draws, slips = self.is_slippery, ""
        if not self.is_slippery:  # slips cannot be counted
            self.num_instances = _RANDOM_MAPS if self.map_name == "random" else 1
        else:
            slips = (
                f" The ice is slippery: a move goes where it should with probability {_SUCCESS_RATE:.4g}, and else "
                "to one of the two sides at right angles to it."
            )
        self.instructions = (
            "Cross the frozen lake. The map shows you (P), the start (S), ice (F), holes (H) and the goal (G). Reach G "
            f"within {counted(self.turns, 'turn')} and do not fall into a hole.{slips} A move off the map leaves you "
            "where you are, and costs a turn, as does anything else. Answer with one word: left, down, right or up."
        )

    @property
    def optimal_success(self) -> float | None:  # type: ignore[override]
        """Optimum by dynamic programming; for random maps 1.0 if nothing slips, otherwise ``None``."""
        if self.map_name == "random":
            return None if self.is_slippery else 1.0
        return _plan(_MAPS[self.map_name], self.is_slippery, self.turns)[0]

    def deal(self) -> None:
        """Choose the map."""
        if self.map_name == "random":
            number = int(self.np_random.integers(_RANDOM_MAPS)) if self.instance is None else self.instance
            self.lake = _random_lake(self.size, self.turns, number)
        else:
            self.lake = _MAPS[self.map_name]
            if self.is_slippery:
                self.np_random.random()  # Gymnasium draws the start, which is always the same
        self.place = 0

    def look(self) -> str:
        """Return the map."""
        return f"{self.lake[: self.place]}P{self.lake[self.place + 1 :]}".rstrip()

    def legal(self) -> tuple[str, ...]:
        """All four moves, on every square."""
        return _MOVES

    def play(self, action: str) -> Step:
        """Move, or slip."""
        read = self.read(action)
        if read is None:
            return self.reject("Answer left, down, right or up.")
        move = _MOVES.index(read)
        if self.is_slippery:
            drawn, fail = self.np_random.random(), (1.0 - _SUCCESS_RATE) / 2.0
            move += -1 if drawn < fail else 0 if drawn < fail + _SUCCESS_RATE else 1
        self.place = _go(self.lake, self.place, move % 4)
        if self.lake[self.place] == "H":
            return self.turn("You fell into a hole.", done=True)
        return self.turn("You reached the goal.", success=True) if self.lake[self.place] == "G" else self.turn()

    def solve(self) -> str:
        """Return the best move for the turns that are left."""
        moves = _plan(self.lake, self.is_slippery, self.turns)[1]
        return _MOVES[moves[min(self.turns_left, len(moves) - 1)][self.place]]

    def state(self) -> int:
        """Return the square."""
        return self.place


def _go(lake: str, place: int, move: int) -> int:
    """Return the square after a move."""
    row = lake.index("\n") + 1
    there = place + (-1, row, 1, -row)[move]
    return there if 0 <= there < len(lake) and lake[there] != "\n" else place


def _distances(lake: str) -> dict[int, int]:
    """Return the length of the shortest way to the goal over ice, for every square that has one."""
    ring = [lake.index("G")]
    found = {ring[0]: 0}
    for place in ring:  # which grows
        for move in range(4):
            near = _go(lake, place, move)
            if lake[near] != "H" and near not in found:
                found[near] = found[place] + 1
                ring.append(near)
    return found


@lru_cache(16)
def _plan(lake: str, is_slippery: bool, turns: int) -> tuple[float, list[bytes]]:
    """Return the probability of success, and the best moves by turns left and square; the last hold for more turns.

    They are computed by backward induction; ties go to the move towards a shorter way.
    """
    rate = _SUCCESS_RATE if is_slippery else 1.0
    squares, away = np.array(list(lake)), _distances(lake)
    targets = np.array([[_go(lake, place, move) for place in range(len(lake))] for move in range(4)])
    further = 1e-12 * np.array([away.get(place, len(lake)) for place in range(len(lake))])[targets]
    ice, value = (squares == "F") | (squares == "S"), (squares == "G").astype(float)
    moves = [bytes(len(lake))]
    for _ in range(turns):
        there = value[targets]
        by_move = rate * there + (1.0 - rate) / 2.0 * (np.roll(there, 1, axis=0) + np.roll(there, -1, axis=0))
        better = np.where(ice, by_move.max(axis=0), value)
        moves.append((by_move - further).argmax(axis=0).astype(np.uint8).tobytes())
        if np.array_equal(better, value):
            break
        value = better
    return float(value[0]), moves


def _random_lake(size: int, turns: int, number: int) -> str:
    """Return a map that can be crossed."""
    rng = random.Random(number)
    while True:
        squares = f"S{''.join('H' if rng.random() < _HOLES else 'F' for _ in range(size * size))[1:-1]}G"
        lake = "".join(f"{squares[row : row + size]}\n" for row in range(0, size * size, size))
        if _distances(lake).get(0, turns + 1) <= turns:
            return lake
