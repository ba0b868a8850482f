"""Tower of Hanoi."""

from itertools import permutations
from typing import ClassVar

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.text import counted

_PEGS = "ABC"
_ORDERS = {f"{_PEGS[source]} {_PEGS[target]}": (source, target) for source, target in permutations(range(3), 2)}


class TowerOfHanoi(TextGame):
    """Bring all disks to peg C, one at a time and never a larger one onto a smaller one.

    >>> env = TowerOfHanoi(disks=2, turns=4)
    >>> print(env.reset(options={"instance": 0})[0])
    A: 2 1
    B: -
    C: -
    4 turns left.
    >>> env.step("B B")[0].splitlines()[0], [env.step(order)[1] for order in ("A B", "A C", "B C")]
    ('Name two different pegs.', [0.0, 0.0, 1.0])

    A peg is shown from its lowest disk to its top; disk 1 is the smallest. The start is drawn uniformly from the
    ``3**disks - 1`` unsolved positions; instance 0 has all disks on A. Pass ``turns`` together with ``disks``.

    The solver plays the fewest moves: ``2**disks - 1`` for the tower, and from a random position (the solved one
    included) two thirds of that in the mean.
    """

    presets: ClassVar = {
        "easy": {"disks": 2, "turns": 4},
        "medium": {"disks": 3, "turns": 10},
        "hard": {"disks": 5, "turns": 40},
    }
    ranges: ClassVar = {"disks": (1, 64)}
    disks: int

    def prepare(self) -> None:
        """Count the starts, and write the rules, whose example names a peg that does not exist."""
        self.num_instances = int(3**self.disks) - 1
        # As many positions are d moves away as 2 to the power of the ones in d.
        near = self.num_instances
        if self.turns < 2**self.disks - 1:
            near = sum(1 << moves.bit_count() for moves in range(1, self.turns + 1))
        self.optimal_success = near / self.num_instances
        self.instructions = (
            f"Tower of Hanoi: bring all {self.disks} disks to peg C in {counted(self.turns, 'turn')}. Pegs A, B and C "
            "are shown with their disks from bottom to top; disk 1 is the smallest. A turn moves the top disk of one "
            "peg to another peg, never onto a smaller disk; anything else costs a turn and moves nothing. Answer with "
            'the peg to take from and the peg to put on, and nothing else, written like "D A" (but there is no peg D).'
        )

    def deal(self) -> None:
        """Place the disks, from the largest: the digits of the instance to the base 3 are their pegs."""
        self.pegs: list[list[int]] = [[], [], []]
        code = self.instance or 0
        for disk in range(self.disks, 0, -1):
            code, peg = divmod(code, 3)
            self.pegs[peg].append(disk)

    def look(self) -> str:
        """Return the disks of each peg."""
        return "\n".join(
            f"{name}: {' '.join(map(str, peg)) or '-'}" for name, peg in zip(_PEGS, self.pegs, strict=True)
        )

    def legal(self) -> list[str]:
        """Moves from a peg to one whose top disk is larger."""
        tops = [peg[-1] if peg else self.disks + 1 for peg in self.pegs]
        return [order for order, (source, target) in _ORDERS.items() if tops[source] < tops[target]]

    def play(self, action: str) -> Step:
        """Move a disk."""
        order = _ORDERS.get(" ".join(action.upper().split()))
        if order is None:
            return self.reject("Name two different pegs.")
        source, target = (self.pegs[peg] for peg in order)
        if not source:
            return self.reject(f"Peg {_PEGS[order[0]]} is empty.")
        if target and target[-1] < source[-1]:
            return self.reject(f"Disk {source[-1]} is larger than disk {target[-1]}.")
        target.append(source.pop())
        return self.turn(success=len(self.pegs[2]) == self.disks)

    def solve(self) -> str:
        """Return the next move of the shortest solution.

        Before a disk can move to its place, all smaller ones must lie on the third peg, so this is where they go.
        """
        peg_of = {disk: peg for peg, disks in enumerate(self.pegs) for disk in disks}
        goal, move = 2, (0, 2)
        for disk in range(self.disks, 0, -1):
            if peg_of[disk] != goal:
                move, goal = (peg_of[disk], goal), 3 - goal - peg_of[disk]
        return f"{_PEGS[move[0]]} {_PEGS[move[1]]}"

    def state(self) -> tuple[tuple[int, ...], ...]:
        """Return the disks of each peg."""
        return tuple(map(tuple, self.pegs))
