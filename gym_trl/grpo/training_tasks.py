"""Draws of tasks from a trainer's training dataset, which a rollout plays in place of those of its prompts."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import Place
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.planned_rows import Assign, Planned
from gym_trl.seeding import derive_seed
from gym_trl.types import Message, Task

_TRIES = 16
"""Number of choices in which another task is looked for."""


class Choice(NamedTuple):
    """Row of the training dataset, and the level of a curriculum on which its task is played."""

    row: int
    level: int | None = None
    """``None`` without levels."""


class Drawn(NamedTuple):
    """Row of the training dataset that was drawn, with what is played."""

    row: int
    preamble: list[Message]
    task: Task


def at_level(task: Task, level: int) -> Task:
    """Return the task with its level set."""
    return replace(task, options={**task.options, "level": level})


class TrainingTasks:
    """Rows of a training dataset with their tasks, by index.

    >>> from gym_trl.grpo.dataset import make_dataset
    >>> rows = make_dataset([Task("TrlEnv/Echo-v0", seed) for seed in (3, 5)])
    >>> tasks = TrainingTasks(rows, lambda split, number: Task("TrlEnv/Echo-v0", number))
    >>> len(tasks), tasks.draw([Choice(1), Choice(1)], other_than=Task("TrlEnv/Echo-v0", 5)).row
    (2, 0)

    Args:
        dataset: The trainer's ``train_dataset``.
        assign: Function that makes the task of a prompt without one, from a split and a number.

    Raises:
        ConfigError: The dataset is streamed, so that its rows cannot be chosen, or has no two different tasks.
    """

    def __init__(self, dataset: Any, assign: Callable[[str, int], Task]) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise ConfigError(
                "resample_dead_groups draws rows of train_dataset, and a streaming dataset "
                f"({type(dataset).__name__}) has none to choose from: give the trainer spec.train_dataset, or another "
                "datasets.Dataset"
            )
        self.dataset = dataset
        self._assign = assign
        first = self._task_in(0) if len(self) else None
        if first is not None and all(self._task_in(row) == first for row in range(1, len(self))):
            raise ConfigError(
                f"resample_dead_groups chooses among tasks, and train_dataset has only one, {first}: give it at least "
                "two (num_tasks), or leave the option out"
            )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.dataset)

    def draw(self, choices: Iterable[Choice], *, other_than: Task | None = None, number: int = 0) -> Drawn:
        """Return the first of ``choices`` with another task than ``other_than``, else the next such row of the dataset.

        Args:
            choices: At least one.
            other_than: Task that is not wanted.
            number: Number of the task if the row has none.
        """
        last = Choice(0)
        for last in choices:
            if (drawn := self._at(last, number)).task != other_than:
                return drawn
        rest = (last._replace(row=(last.row + step) % len(self)) for step in range(1, len(self) + 1))
        others = (self._at(choice, number) for choice in rest)
        return next((drawn for drawn in others if drawn.task != other_than), self._at(last, number))

    def _task_in(self, row: int) -> Task | None:
        return read_prompt(self.dataset[row]["prompt"])[1]

    def _at(self, choice: Choice, number: int) -> Drawn:
        preamble, task = read_prompt(self.dataset[choice.row]["prompt"])
        task = self._assign("train", number) if task is None else task
        return Drawn(choice.row, preamble, task if choice.level is None else at_level(task, choice.level))


Choose: TypeAlias = Callable[[TrainingTasks, int], Choice]
"""Function that chooses a row of the training dataset by a seed."""


class Draws:
    """Draws of rows of the training dataset, the same for all members of a group on every process.

    They depend on the seed, the step, the call of the rollout, the group and the attempt, and on what ``choose``
    depends on: if checkpoints hold that, a resumed training draws the same.

    Args:
        assign: Function that makes the task of a row without one.
        seed: Seed of the draws.
        choose: Function that chooses a row. Default: all with the same probability.
    """

    def __init__(self, assign: Assign, seed: int, choose: Choose | None = None) -> None:
        self._assign = assign
        self._seed = seed
        self._choose = choose or _any_row
        self._tasks: TrainingTasks | None = None

    def tasks(self, trainer: Any) -> TrainingTasks:
        """Return the tasks of the trainer's training dataset.

        Raises:
            ConfigError: None can be drawn.
        """
        dataset = trainer.train_dataset
        if self._tasks is None or self._tasks.dataset is not dataset:
            self._tasks = TrainingTasks(dataset, self._assign)
        return self._tasks

    def others(self, rows: Sequence[Planned], trainer: Any, place: Place) -> list[Planned]:
        """Return the rows of groups that are replaced, with other tasks; members of a group share the task."""
        now = {row.group: row for row in rows}
        drawn = {group: self._draw(trainer, place, group, one.attempt + 1, one.task) for group, one in now.items()}
        return [_placed(row, drawn[row.group], row.attempt + 1) for row in rows]

    def _draw(self, trainer: Any, place: Place, group: int, attempt: int, now: Task | None) -> Drawn:
        seed = derive_seed(self._seed, "drawn", place.step, place.call, group, attempt)
        tasks = self.tasks(trainer)
        choices = (self._choose(tasks, derive_seed(seed, number)) for number in range(_TRIES))
        return tasks.draw(choices, other_than=now, number=seed)


def _any_row(tasks: TrainingTasks, seed: int) -> Choice:
    return Choice(seed % len(tasks))


def _placed(row: Planned, drawn: Drawn, attempt: int) -> Planned:
    return Planned(row.number, row.group, row.member, drawn.preamble, drawn.task, drawn.row, attempt)
