"""Tasks that the rows of a rollout play: those of their prompts, or drawn from the training dataset."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gym_trl.grpo.attach import Place
from gym_trl.grpo.curriculum import Follower
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.training_tasks import Choice, Drawn, TrainingTasks, at_level
from gym_trl.seeding import derive_seed
from gym_trl.types import Message, Task

_TRIES = 16
"""Number of draws, as the curriculum chooses, in which another task is looked for."""


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

        >>> row = Planned(7, group=1, member=3, preamble=[], task=Task("TrlEnv/Nim-v0", 0))
        >>> row.seat(0, 2).number, row.seat(0, 2).member
        (6, 2)
        """
        by = number - GameSeat.of(self.member, seats).seat
        return replace(self, number=self.number + by, member=self.member + by)

    def sampling_seed(self, seed: int, place: Place) -> int:
        """Return the seed of its sampling, different for each row and attempt."""
        again = (self.attempt,) if self.attempt else ()
        return derive_seed(seed, "sampling", place.split, place.step, place.call, self.number, *again)


class Planner:
    """Choice of the tasks of a ``rollout_func``, the same for all members of a group on every process.

    What it draws depends on the seed, the step, the call of the rollout, the group and the attempt, and on the
    curriculum's state, which checkpoints hold: a resumed training draws the same.

    Args:
        assign: Function that makes the task of a prompt without one, from a split and a number.
        seed: Seed of the draws and of the assigned tasks.
        follower: Curriculum that chooses.
    """

    def __init__(self, assign: Callable[[str, int], Task], seed: int, follower: Follower | None) -> None:
        self._assign = assign
        self._seed = seed
        self._follower = follower
        self._tasks: TrainingTasks | None = None

    def tasks(self, trainer: Any) -> TrainingTasks:
        """Return the tasks of the trainer's training dataset."""
        dataset = getattr(trainer, "train_dataset", None)
        if self._tasks is None or self._tasks.dataset is not dataset:
            self._tasks = TrainingTasks(dataset, self._assign)
        return self._tasks

    def rows(self, prompts: Sequence[Any], trainer: Any, place: Place) -> list[Planned]:
        """Return the rows of a rollout as they are played first."""
        training = place.split == "train"
        curriculum = self._follower.curriculum if self._follower is not None and training else None
        size = trainer.num_generations if training else trainer.num_generations_eval
        drawn: dict[int, Drawn] = {}
        rows = []
        for number, prompt in enumerate(prompts, start=place.first):
            group, member = divmod(number, size)
            if curriculum is not None and curriculum.draws:
                if group not in drawn:
                    drawn[group] = self._draw(trainer, place, group, 0, None)
                row = drawn[group]
                rows.append(Planned(number, group, member, row.preamble, row.task, row.row))
                continue
            preamble, task = read_prompt(prompt)
            if task is None:
                # The group's index among all processes, because a group may be split between two. Evaluations play the
                # same tasks at every step, so that their numbers are comparable.
                when = place.step if training else 0
                task = self._assign(place.split, derive_seed(self._seed, when, place.call, group))
            elif curriculum is not None:
                task = at_level(task, curriculum.level)
            rows.append(Planned(number, group, member, preamble, task))
        return rows

    def others(self, rows: Sequence[Planned], trainer: Any, place: Place) -> list[Planned]:
        """Return the rows of groups that are replaced, with other tasks; members of a group share the task."""
        drawn: dict[int, Drawn] = {}
        for row in rows:
            if row.group not in drawn:
                drawn[row.group] = self._draw(trainer, place, row.group, row.attempt + 1, row.task)
        return [
            replace(
                row,
                preamble=drawn[row.group].preamble,
                task=drawn[row.group].task,
                dataset_row=drawn[row.group].row,
                attempt=row.attempt + 1,
            )
            for row in rows
        ]

    def _draw(self, trainer: Any, place: Place, group: int, attempt: int, now: Task | None) -> Drawn:
        seed = derive_seed(self._seed, "drawn", place.step, place.call, group, attempt)
        tasks = self.tasks(trainer)
        choices = (self._choose(tasks, derive_seed(seed, number)) for number in range(_TRIES))
        return tasks.draw(choices, other_than=now, number=seed)

    def _choose(self, tasks: TrainingTasks, seed: int) -> Choice:
        return Choice(seed % len(tasks)) if self._follower is None else self._follower.curriculum.choose(tasks, seed)
