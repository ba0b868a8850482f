"""Part for ``curriculum``: training tasks whose level follows the model's success rate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gym_trl.errors import ConfigError
from gym_trl.grpo.parts.part import Call, Part, Rollout
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.training_tasks import Choice, TrainingTasks, at_level
from gym_trl.kinds import Arguments
from gym_trl.options import Curriculum
from gym_trl.success import counted_successes


class LevelCurriculum(Part):
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

    def __init__(self, settings: Curriculum) -> None:
        self.settings = settings
        self.level = settings.level
        """Level of the dataset's tasks."""
        self._won = self._played = self._undeclared = 0

    @property
    def levels(self) -> Sequence[Arguments]:
        """Arguments of the environment by level."""
        return self.settings.levels

    def choose(self, tasks: TrainingTasks, seed: int) -> Choice:
        """Return a row of the dataset, all with the same probability, on the current level."""
        return Choice(seed % len(tasks), self.level)

    def end(self, rollout: Rollout, call: Call) -> None:
        """Count the scored episodes of all processes."""
        played = [*rollout.episodes, *(one.episode for one in rollout.replaced)]
        everywhere = call.gather([(one.task, one.success) for one in played if one.scored])
        declared = counted_successes([(task.env_id, success) for task, success in everywhere], call.declaring)
        levels = [int(task.options["level"]) for task, _ in everywhere]
        self.report(zip(levels, declared, strict=True))

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
            raise ConfigError(
                f"a curriculum needs declared success, and the last {self._undeclared} episodes declared none: set "
                "GymSpec(success=...) to a return to reach or 'info'"
            )
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


def make_curriculum(settings: Curriculum | None) -> LevelCurriculum | None:
    """Return the choice of tasks that the option ``curriculum`` describes, in its initial state; ``None`` for none."""
    return None if settings is None else LevelCurriculum(settings)
