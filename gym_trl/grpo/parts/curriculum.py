"""Parts for ``curriculum``: training tasks that follow the model's success rate, by level or by task."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import numpy as np

from gym_trl.errors import ConfigError
from gym_trl.grpo.parts.part import Call, Part, Rollout
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.training_tasks import Choice, Draws, TrainingTasks, at_level
from gym_trl.kinds import Arguments
from gym_trl.options import Curriculum, PrioritizedTasks
from gym_trl.success import counted_successes
from gym_trl.types import Task

PRIORITIZED: Literal["prioritized"] = "prioritized"
"""Name of ``PrioritizedTasks()``, for ``GymSpec(curriculum=...)``."""
_PRIOR = 2.0
"""Number of episodes that the success rate of all tasks counts as in that of one task."""
_UNDECLARED = 128
"""Number of episodes in a row without declared success after which prioritized tasks are refused."""


class FollowCurriculum(Part, ABC):
    """Part that chooses the tasks of a training, and counts what all processes have played."""

    settings: Curriculum | PrioritizedTasks
    level: int = 0
    """Level of the dataset's tasks before they are drawn."""

    @property
    def levels(self) -> Sequence[Arguments]:
        """Arguments of the environment by level."""
        return self.settings.levels

    @abstractmethod
    def choose(self, tasks: TrainingTasks, seed: int) -> Choice:
        """Return a row of the dataset and a level."""

    @abstractmethod
    def count(self, played: Iterable[tuple[Task, bool | None]]) -> None:
        """Count the scored episodes of a rollout, given as ``(task, success)``."""

    def end(self, rollout: Rollout, call: Call) -> None:
        """Count the scored episodes of all processes."""
        played = [*rollout.episodes, *(one.episode for one in rollout.replaced)]
        everywhere = call.gather([(one.task, one.success) for one in played if one.scored])
        tasks = [task for task, _ in everywhere]
        declared = [(task.env_id, success) for task, success in everywhere]
        self.count(zip(tasks, counted_successes(declared, call.declaring), strict=True))


class LevelCurriculum(FollowCurriculum):
    """Level of a training with a ``Curriculum``, and the counts that decide when it changes.

    >>> curriculum = LevelCurriculum(Curriculum([{"high": 10}, {"high": 50}, {"high": 1000, "turns": 10}], episodes=4))
    >>> curriculum.report([(0, True), (0, True), (0, False), (0, True)])
    >>> curriculum.level
    1
    >>> curriculum.report([(0, True)] * 8)  # of a level that is done
    >>> curriculum.level
    1
    >>> curriculum.report([(1, False)] * 4)
    >>> curriculum.level
    0
    """

    name = "curriculum"
    settings: Curriculum

    def __init__(self, settings: Curriculum) -> None:
        self.settings = settings
        self.level = settings.level
        self._won = self._played = self._undeclared = 0

    def choose(self, tasks: TrainingTasks, seed: int) -> Choice:
        """Return a row of the dataset, all with the same probability, on the current level."""
        return Choice(seed % len(tasks), self.level)

    def count(self, played: Iterable[tuple[Task, bool | None]]) -> None:
        """Count episodes, given as ``(task, success)``; see ``report``."""
        self.report((int(task.options["level"]), won) for task, won in played)

    def plan(self, rows: list[Planned], call: Call) -> list[Planned]:
        """Return the rows on the current level."""
        return [replace(row, task=at_level(row.task, self.level)) for row in rows]

    @property
    def state(self) -> dict[str, int]:
        """Current level and counts as a JSON-compatible dict; can be assigned to restore them."""
        return {"level": self.level, "won": self._won, "played": self._played}

    @state.setter
    def state(self, state: Mapping[str, int]) -> None:
        # The list of levels may be shorter than when the state was saved.
        self.level = min(int(state["level"]), len(self.levels) - 1)
        self._won, self._played = int(state["won"]), int(state["played"])

    def report(self, played: Iterable[tuple[int, bool | None]]) -> None:
        """Count episodes, given as ``(level, success)``; episodes of other levels are ignored.

        Raises:
            ConfigError: The last ``episodes`` episodes or more declared no success.
        """
        here = [won for level, won in played if level == self.level]
        declared = [won for won in here if won is not None]
        self._undeclared = 0 if declared else self._undeclared + len(here)
        if self._undeclared >= self.settings.episodes:
            raise _undeclared(self._undeclared)
        self._won += sum(declared)
        self._played += len(declared)
        if self._played < self.settings.episodes:
            return
        share = self._won / self._played
        self._won = self._played = 0
        if share >= self.settings.rise:
            self.level = min(self.level + 1, len(self.levels) - 1)
        elif share <= self.settings.fall:
            self.level = max(self.level - 1, 0)


class PrioritizedCurriculum(FollowCurriculum):
    """Successes of a training with ``PrioritizedTasks``, from which it draws its tasks.

    >>> from gym_trl.grpo.dataset import make_dataset
    >>> played = [Task("TrlEnv/TicTacToe-v0", seed) for seed in (0, 1, 2)]
    >>> tasks = TrainingTasks(make_dataset(played), lambda split, number: played[0])
    >>> curriculum = PrioritizedCurriculum(PrioritizedTasks(explore=0.1))
    >>> curriculum.probabilities(tasks).round(2).tolist()
    [[0.33], [0.33], [0.33]]
    >>> curriculum.count([(played[0], True)] * 8 + [(played[1], False)] * 8)
    >>> curriculum.count([(played[2], True), (played[2], False)] * 4)
    >>> curriculum.probabilities(tasks).round(2).tolist()
    [[0.22], [0.22], [0.56]]
    """

    name = "curriculum"
    settings: PrioritizedTasks

    def __init__(self, settings: PrioritizedTasks) -> None:
        self.settings = settings
        self.draws: Draws | None = None
        """Draws of rows of the training dataset, as ``choose`` chooses them."""
        self._tasks: _Counts = {}
        self._all: _Counts = {}
        self._undeclared = 0
        self._cumulative: tuple[TrainingTasks, Any] | None = None

    @property
    def state(self) -> dict[str, Any]:
        """Counts as a JSON-compatible dict; can be assigned to restore them."""
        return {"tasks": dict(self._tasks), "all": dict(self._all)}

    @state.setter
    def state(self, state: Mapping[str, Any]) -> None:
        if not {"tasks", "all"} <= state.keys():
            raise ConfigError(
                f"the checkpoint was saved with another curriculum, whose state has {sorted(state)}: resume with it"
            )
        self._tasks = {name: list(counts) for name, counts in state["tasks"].items()}
        self._all = {name: list(counts) for name, counts in state["all"].items()}
        self._cumulative = None

    def plan(self, rows: list[Planned], call: Call) -> list[Planned]:
        """Return the rows with drawn tasks."""
        assert self.draws is not None
        return self.draws.first(rows, call.trainer, call.place)

    def choose(self, tasks: TrainingTasks, seed: int) -> Choice:
        """Return a row of the dataset and a level, drawn by their probabilities."""
        if self._cumulative is None or self._cumulative[0] is not tasks:
            self._cumulative = tasks, self.probabilities(tasks).ravel().cumsum()
        cumulative = self._cumulative[1]
        place = int(cumulative.searchsorted(seed / 2**63 * cumulative[-1], side="right"))
        row, level = divmod(min(place, len(cumulative) - 1), max(1, len(self.levels)))
        return Choice(row, level if self.levels else None)

    def probabilities(self, tasks: TrainingTasks) -> Any:
        """Return the probability of each row of the dataset on each level, as an array of shape (rows, levels)."""
        levels = range(max(1, len(self.levels)))
        rates = np.array([[self.rate(task, level) for level in levels] for task in tasks.tasks])
        weights = rates * (1 - rates)
        explore = self.settings.explore
        return (1 - explore) * weights / weights.sum() + explore / weights.size

    def rate(self, task: Task, level: int = 0) -> float:
        """Return the estimated success rate of a task on a level.

        >>> PrioritizedCurriculum(PrioritizedTasks()).rate(Task("TrlEnv/TicTacToe-v0", 0))
        0.5
        """
        name, every = _names(task, level)
        won, played = self._all.get(every, (0.0, 0.0))
        prior = (won + 1) / (played + 2)
        won, played = self._tasks.get(name, (0.0, 0.0))
        return (won + _PRIOR * prior) / (played + _PRIOR)

    def count(self, played: Iterable[tuple[Task, bool | None]]) -> None:
        """Count the scored episodes of a rollout, given as ``(task, success)``.

        Raises:
            ConfigError: The last 128 episodes or more declared no success.
        """
        new: tuple[_Counts, _Counts] = ({}, {})
        episodes = list(played)
        for task, won in episodes:
            if won is None:
                continue
            for counts, name in zip(new, _names(task, int(task.options.get("level", 0))), strict=True):
                counts.setdefault(name, [0.0, 0.0])
                counts[name] = [counts[name][0] + won, counts[name][1] + 1]
        self._undeclared = 0 if new[0] else self._undeclared + len(episodes)
        if self._undeclared >= _UNDECLARED:
            raise _undeclared(self._undeclared)
        for total, counts in zip((self._tasks, self._all), new, strict=True):
            for name, more in counts.items():
                before = total.get(name, (0, 0))
                total[name] = [self.settings.decay * old + one for old, one in zip(before, more, strict=True)]
        self._cumulative = None


def make_curriculum(
    settings: Curriculum | PrioritizedTasks | Literal["prioritized"] | None,
) -> LevelCurriculum | PrioritizedCurriculum | None:
    """Return the choice of tasks that the option ``curriculum`` describes, in its initial state; ``None`` for none.

    >>> make_curriculum("prioritized").settings
    PrioritizedTasks(levels=(), explore=0.1, decay=0.5)
    """
    if settings is None:
        return None
    if isinstance(settings, Curriculum):
        return LevelCurriculum(settings)
    return PrioritizedCurriculum(PrioritizedTasks() if settings == PRIORITIZED else settings)


_Counts: TypeAlias = dict[str, list[float]]  # successes and episodes


def _names(task: Task, level: int) -> tuple[str, str]:
    """Return the names under which a task is counted: its own, and that of all tasks of its environment and level."""
    every = f"{task.env_id} level {level}"
    instance = task.options.get("instance")
    return f"{every} " + (f"seed {task.seed}" if instance is None else f"instance {instance}"), every


def _undeclared(episodes: int) -> ConfigError:
    return ConfigError(
        f"a curriculum needs declared success, and the last {episodes} episodes declared none: set "
        "GymSpec(success=...) to a return to reach or 'info'"
    )
