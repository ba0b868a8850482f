"""Tower of Hanoi."""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import ClassVar, TypeAlias

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome, Steady
from gym_trl.text import counted
from gym_trl.types import Policy

_PEGS = "ABC"
_GOAL = 2
_ORDERS = {f"{_PEGS[a]} {_PEGS[b]}": (a, b) for a in range(3) for b in range(3) if a != b}
_Pegs: TypeAlias = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Disks of each peg from its lowest to its top."""
_PEG = re.compile(r"^[ABC]: (.*)$", re.MULTILINE)


class TowerOfHanoi(Puzzle):
    """Bring all disks to peg C, one at a time and never a larger one onto a smaller one.

    >>> env = TowerOfHanoi(disks=2, start="tower", turns=4)
    >>> print(env.reset(seed=0)[0])
    A: 2 1
    B: -
    C: -
    4 turns left.
    >>> print(env.step("A B")[0])
    A: 2
    B: 1
    C: -
    3 turns left.
    >>> print(env.step("B B")[0])
    Name two different pegs.
    A: 2
    B: 1
    C: -
    2 turns left.
    >>> env.step("A C")[1:4], env.step("B C")[1:4]
    ((0.0, False, False), (1.0, True, False))

    A peg is shown from its lowest disk to its top; disk 1 is the smallest. With ``start="tower"`` all disks start on A:
    one instance. With ``start="random"`` the start is drawn uniformly from the ``3**disks - 1`` unsolved positions.
    Pass ``turns`` together with ``disks``.

    The solver plays the fewest moves, which are known for every position: ``2**disks - 1`` for the tower, and from a
    random position (the solved one included) each power of two below ``2**disks`` with probability 2/3:

    ===== ======= ==== ===============
    disks mean    most positions
    ===== ======= ==== ===============
    2     2       3    9
    3     4.667   7    27
    4     10      15   81
    5     20.667  31   243
    n     2/3 m   m    3**n, m = 2**n-1
    ===== ======= ==== ===============

    The numbers are exact: the tests compare them with the solver's games, and these with a search of all moves.
    """

    presets: ClassVar = {
        "easy": {"disks": 2, "start": "random", "turns": 4},
        "medium": {"disks": 3, "start": "random", "turns": 10},
        "hard": {"disks": 5, "start": "random", "turns": 40},
    }
    ranges: ClassVar = {"disks": (1, 64), "start": ("tower", "random"), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "A A"

    disks: int
    start: str

    _pegs: _Pegs = ((), (), ())

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example names a peg that does not exist."""
        return (
            f"Tower of Hanoi: bring all {self.disks} disks to peg C in {counted(self.turns, 'turn')}. Pegs A, B and C "
            "are shown with their disks from bottom to top; disk 1 is the smallest. A turn moves the top disk of one "
            "peg to another peg, never onto a smaller disk; anything else costs a turn and moves nothing. Answer with "
            'the peg to take from and the peg to put on, and nothing else, written like "D A" (but there is no peg D).'
        )

    @property
    def num_instances(self) -> int:
        """Number of positions that a game can start from."""
        return 1 if self.start == "tower" else 3**self.disks - 1

    @property
    def optimal_success(self) -> float:
        """Share of starts that ``turns`` moves suffice for."""
        fewest_for_all = 2**self.disks - 1
        if self.turns >= fewest_for_all:
            return 1.0
        return 0.0 if self.start == "tower" else (_positions_within(self.turns) - 1) / self.num_instances

    @property
    def constant_action(self) -> str:
        """First legal move, which depends on the position."""
        return self.admissible_actions()[0] if self._last is not None else "A C"

    def admissible_actions(self) -> list[str]:
        """Return the two or three legal moves; a game that is not over always has one."""
        a, b, c = self._pegs
        none = self.disks + 1
        return [*_legal(a[-1] if a else none, b[-1] if b else none, c[-1] if c else none)]

    def solver(self) -> Policy:
        """Return a policy that plays the shortest solution, which is unique."""
        return Steady(_best_move, _PEG.search)

    def _deal(self, instance: int | None) -> None:
        self._pegs = self._dealt = _position(self.disks, 0 if self.start == "tower" else instance or 0)

    def _act(self, action: str) -> Outcome:
        order = _ORDERS.get(action) or _ORDERS.get(" ".join(action.upper().split()))
        if order is None:
            return self._reject("Name two different pegs.")
        giver, taker = order
        source, target = self._pegs[giver], self._pegs[taker]
        if not source:
            return self._reject(f"Peg {_PEGS[giver]} is empty.")
        if target and target[-1] < source[-1]:
            return self._reject(f"Disk {source[-1]} is larger than disk {target[-1]}.")
        pegs = [*self._pegs]
        pegs[giver], pegs[taker] = source[:-1], (*target, source[-1])
        self._pegs = pegs[0], pegs[1], pegs[2]
        return self._end_turn()

    def _snapshot(self) -> _Pegs:
        return self._pegs

    def _is_solved(self) -> bool:
        return len(self._pegs[_GOAL]) == self.disks

    def _board(self) -> str:
        return _show(self._pegs)

    def _fewest_actions(self) -> float:
        """Return the length of the shortest solution from the start."""
        return _distance(self._dealt)

    def _potential(self) -> float:
        """Return 1 minus the moves left as a share of the moves that the tower needs."""
        return 1.0 - _distance(self._pegs) / ((1 << self.disks) - 1)


@lru_cache(4096)
def _position(disks: int, code: int) -> _Pegs:
    """Return a position by its number, whose digits to the base 3 are the pegs of the disks from the largest."""
    pegs: list[list[int]] = [[], [], []]
    for disk in range(disks, 0, -1):
        code, peg = divmod(code, 3)
        pegs[peg].append(disk)
    return tuple(pegs[0]), tuple(pegs[1]), tuple(pegs[2])


@lru_cache(4096)
def _show(pegs: _Pegs) -> str:
    return "".join(f"{name}: {' '.join(map(str, peg)) or '-'}\n" for name, peg in zip(_PEGS, pegs, strict=True))


@lru_cache(4096)
def _legal(*tops: int) -> tuple[str, ...]:
    """Return the moves from a peg to one whose top disk is larger."""
    return tuple(order for order, (source, target) in _ORDERS.items() if tops[source] < tops[target])


def _still_to_move(pegs: Iterable[Iterable[int]]) -> list[tuple[int, int, int]]:
    """Return the disks that must move before all lie on C, with their pegs from and to, the largest first.

    Before a disk can move to its place, all smaller ones must lie on the third peg. So each such disk moves once and
    costs one move more than a tower of the smaller disks.
    """
    place = {disk: peg for peg, disks in enumerate(pegs) for disk in disks}
    goal, moves = _GOAL, []
    for disk in sorted(place, reverse=True):
        if place[disk] != goal:
            moves.append((disk, place[disk], goal))
            goal = 3 - goal - place[disk]
    return moves


def _distance(pegs: Iterable[Iterable[int]]) -> int:
    return sum(1 << disk - 1 for disk, _, _ in _still_to_move(pegs))


def _best_move(observation: str) -> str:
    pegs = [[int(disk) for disk in shown.split() if disk != "-"] for shown in _PEG.findall(observation)]
    _, source, target = _still_to_move(pegs)[-1]
    return f"{_PEGS[source]} {_PEGS[target]}"


def _positions_within(moves: int) -> int:
    """Return the number of positions at most ``moves`` away: 2**ones are ``d`` away, by the ones in ``d``."""
    count: int = 0
    ones_above = 0
    for bit in reversed(range(moves.bit_length())):
        if moves >> bit & 1:
            # All smaller numbers whose highest differing bit is this one: their lower bits are free, each worth 1 + 2.
            count += (1 << ones_above) * 3**bit
            ones_above += 1
    return count + (1 << ones_above)
