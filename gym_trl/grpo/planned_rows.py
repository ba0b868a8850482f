"""Rows of a rollout, with the tasks of their prompts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from gym_trl.grpo.attach import Place
from gym_trl.grpo.dataset import read_prompt
from gym_trl.seeding import derive_seed
from gym_trl.types import Message, Task

Assign: TypeAlias = Callable[[str, int], Task]
"""Function that makes the task of a prompt without one, from a split and a number."""


class GameSeat(NamedTuple):
    """Place of a member of a group in the group's games, where the model plays all seats."""

    game: int
    """Index of the game in the group."""
    seat: int

    @classmethod
    def of(cls, member: int, seats: int) -> "GameSeat":
        """Return the place of a member: those of a game of ``seats`` are neighbours, in the order of their seats.

        >>> [tuple(GameSeat.of(member, seats=3)) for member in (0, 2, 3)]
        [(0, 0), (0, 2), (1, 0)]
        """
        return cls(*divmod(member, seats))


@dataclass(frozen=True, slots=True)
class Planned:
    """Row of a rollout that is to be played."""

    number: int
    """Index among the rows of all processes."""
    group: int
    """Index among the groups of all processes."""
    member: int
    """Index in its group."""
    preamble: Sequence[Message]
    task: Task
    dataset_row: int | None = None
    """Row of the training dataset that it was drawn from; ``None`` for the prompt's own task."""
    attempt: int = 0
    """Number of replacements of its group before it."""

    @property
    def first_of_group(self) -> bool:
        """True for one of the rows of its group, over all processes."""
        return self.member == 0

    def seat(self, number: int, seats: int) -> "Planned":
        """Return the row of a seat in the same game of ``seats``.

        >>> row = Planned(7, group=1, member=3, preamble=[], task=Task("TrlEnv/TicTacToe-v0", 0))
        >>> row.seat(0, 2).number, row.seat(0, 2).member
        (6, 2)
        """
        by = number - GameSeat.of(self.member, seats).seat
        return replace(self, number=self.number + by, member=self.member + by)

    def sampling_seed(self, seed: int, place: Place) -> int:
        """Return the seed of its sampling, different for each row and attempt."""
        again = (self.attempt,) if self.attempt else ()
        return derive_seed(seed, "sampling", place.split, place.step, place.call, self.number, *again)


def read_rows(prompts: Sequence[Any], place: Place, size: int, *, assign: Assign, seed: int) -> list[Planned]:
    """Return the rows of prompts, with groups of ``size``; a prompt without a task is assigned one."""
    rows = []
    for number, prompt in enumerate(prompts, start=place.first):
        group, member = divmod(number, size)
        preamble, task = read_prompt(prompt)
        if task is None:
            # The group's index among all processes, because a group may be split between two. Evaluations play the
            # same tasks at every step, so that their numbers are comparable.
            when = place.step if place.split == "train" else 0
            task = assign(place.split, derive_seed(seed, when, place.call, group))
        rows.append(Planned(number, group, member, preamble, task))
    return rows
