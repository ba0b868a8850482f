"""Choices of training tasks that follow the model's success rate: by level, or by task."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

import numpy as np

from gym_trl.errors import ConfigError
from gym_trl.grpo.attach import attach
from gym_trl.grpo.saved_state import SavedState
from gym_trl.grpo.training_tasks import Choice, TrainingTasks
from gym_trl.kinds import Arguments, Count, Range, Whole, check_options, expected, option_types
from gym_trl.registration import did_you_mean
from gym_trl.types import EpisodeResult, Task, counted_successes

PRIORITIZED = "prioritized"
"""Name of ``PrioritizedTasks()``, for ``GymSpec(curriculum=...)``."""
_PRIOR = 2.0
"""Number of episodes that the success rate of all tasks counts as in that of one task."""
_Explore: TypeAlias = Annotated[float, Range(above=0, most=1)]  # above 0, so that no task starves
_Decay: TypeAlias = Annotated[float, Range(least=0, below=1)]
_UNDECLARED = 128
"""Number of episodes in a row without declared success after which prioritized tasks are refused."""


class Curriculum:
    """Difficulty levels: one level up if most episodes succeed, one level down if hardly any does.

    >>> curriculum = Curriculum([{"high": 10}, {"high": 50}, {"high": 1000, "turns": 10}], episodes=4)
    >>> curriculum.report([(0, True), (0, True), (0, False), (0, True)])
    >>> curriculum.level
    1
    >>> curriculum.report([(0, True)] * 8)  # of a level that is done
    >>> curriculum.level
    1
    >>> curriculum.report([(1, False)] * 4)
    >>> curriculum.level
    0

    ``GymSpec("TrlEnv/GuessNumber-v0", curriculum=curriculum)`` plays every task of a rollout on the level at the start
    of the rollout, and reports the episodes of all processes to the curriculum at its end. The level is therefore the
    same for all members of a group, even if the group is split between two processes. Evaluations play the last level,
    so their numbers are comparable. The state is saved with the trainer's checkpoints and restored on resume.

    Args:
        levels: Arguments of the environment by level, from easy to hard, in addition to ``GymSpec``'s ``env_kwargs``.
        rise: Success rate at or above which the level rises by one.
        fall: Success rate at or below which the level falls by one; a negative number never falls.
        episodes: Number of episodes counted before the level may change.
        level: Initial level.

    Raises:
        ConfigError: ``levels`` is empty, ``fall`` is not below ``rise``, or a number is out of range; in training, the
            environment declares no success.
    """

    draws: ClassVar[bool] = False
    """False: a rollout plays the tasks of its prompts."""

    def __init__(
        self,
        levels: Sequence[Arguments],
        *,
        rise: float = 0.75,
        fall: float = 0.1,
        episodes: Count = 128,
        level: Whole = 0,
    ) -> None:
        self.options = {"levels": levels, "rise": rise, "fall": fall, "episodes": episodes, "level": level}
        """Arguments that make another one."""
        check_options(self.options, option_types(Curriculum))
        if not 0 <= level < len(levels):
            raise ConfigError(f"level must be the index of one of the levels, got {level} of {len(levels)} levels")
        if not fall < rise <= 1:
            raise ConfigError(f"fall must be below rise, and rise at most 1; got fall={fall} and rise={rise}")
        self.levels = [dict(arguments) for arguments in levels]
        self.level = level
        self.rise, self.fall, self.episodes = rise, fall, episodes
        self._won = self._played = self._undeclared = 0

    def choose(self, tasks: TrainingTasks, seed: int) -> Choice:
        """Return a row of the dataset, all with the same probability, on the current level."""
        return Choice(seed % len(tasks), self.level)

    def count(self, played: Iterable[tuple[Task, bool | None]]) -> None:
        """Count episodes, given as ``(task, success)``; see ``report``."""
        self.report((int(task.options["level"]), won) for task, won in played)

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
        if self._undeclared >= self.episodes:
            raise _undeclared(self._undeclared)
        self._won += sum(declared)
        self._played += len(declared)
        if self._played < self.episodes:
            return
        share = self._won / self._played
        self._won = self._played = 0
        if share >= self.rise:
            self.level = min(self.level + 1, len(self.levels) - 1)
        elif share <= self.fall:
            self.level = max(self.level - 1, 0)


class PrioritizedTasks:
    """Training tasks drawn by the model's success rate, most often those that it solves about half of the time.

    >>> from gym_trl.grpo.dataset import make_dataset
    >>> played = [Task("TrlEnv/Nim-v0", seed) for seed in (0, 1, 2)]
    >>> tasks = TrainingTasks(make_dataset(played), lambda split, number: played[0])
    >>> curriculum = PrioritizedTasks(explore=0.1)
    >>> curriculum.probabilities(tasks).round(2).tolist()
    [[0.33], [0.33], [0.33]]
    >>> curriculum.count([(played[0], True)] * 8 + [(played[1], False)] * 8)
    >>> curriculum.count([(played[2], True), (played[2], False)] * 4)
    >>> curriculum.probabilities(tasks).round(2).tolist()
    [[0.22], [0.22], [0.56]]

    ``GymSpec(..., curriculum=PrioritizedTasks())`` plays each group of a training on a task that is drawn from
    ``train_dataset``, in place of the prompt's. A task is an instance of an environment (its seed where the environment
    does not count instances), on each of the ``levels`` if there are any. With the estimated success rate p_i of task
    *i* of *N*, it is drawn with probability

        P_i = (1 - explore) * w_i / sum_j w_j + explore / N,    w_i = p_i (1 - p_i)

    w_i is the variance of a group's success, which GRPO's gradient grows with ("learnability": Tzannetos et al. 2023,
    arXiv:2304.12877; Rutherford et al. 2024, arXiv:2408.15099). That a priority is mixed with another
    distribution, so that no task starves, is prioritized level replay (Jiang et al. 2021, arXiv:2010.03934, section 3),
    whose second part prefers tasks that were not played for long, where this one is uniform.

    With s_i successes in n_i episodes, p_i = (s_i + 2 q) / (n_i + 2), where q = (S + 1) / (N' + 2) is the rate of all
    tasks of the same environment and level, with S successes in N' episodes. Where a task is played again its earlier
    counts are multiplied by ``decay``, because the model has changed.

    The draws depend on the seed, the step and the group, and on the episodes of all processes until then: they are the
    same on every process and in a resumed training. The counts are saved with the trainer's checkpoints. Evaluations
    play their own tasks, on the last level.

    Args:
        levels: Arguments of the environment by level, as for ``Curriculum``. Default: none, the tasks as they are.
        explore: Share of the groups whose task is drawn uniformly, above 0.
        decay: Weight of the earlier counts of a task when it is played again, from 0 to below 1.

    Raises:
        ConfigError: A number is out of range; in training, the environment declares no success, or ``train_dataset``
            is streamed, has only one task, or has prompts without tasks.
    """

    draws: ClassVar[bool] = True
    """True: the tasks of prompts are replaced."""
    level: ClassVar[int] = 0
    """Level of the dataset's tasks before they are drawn."""

    def __init__(self, levels: Sequence[Arguments] = (), *, explore: _Explore = 0.1, decay: _Decay = 0.5) -> None:
        self.options = {"levels": levels, "explore": explore, "decay": decay}
        """Arguments that make another one."""
        check_options(self.options, option_types(PrioritizedTasks))
        self.levels = [dict(arguments) for arguments in levels]
        self.explore, self.decay = explore, decay
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
        return (1 - self.explore) * weights / weights.sum() + self.explore / weights.size

    def rate(self, task: Task, level: int = 0) -> float:
        """Return the estimated success rate of a task on a level.

        >>> PrioritizedTasks().rate(Task("TrlEnv/Nim-v0", 0))
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
                total[name] = [self.decay * old + one for old, one in zip(total.get(name, (0, 0)), more, strict=True)]
        self._cumulative = None


CurriculumOption: TypeAlias = Annotated[
    Curriculum | PrioritizedTasks | Arguments | str,
    'a Curriculum, a PrioritizedTasks, the arguments of one, or "prioritized"',
]
"""Value of the option ``curriculum``."""


def read_curriculum(given: CurriculumOption | None) -> Curriculum | PrioritizedTasks | None:
    """Return a curriculum from the value of the option, ``None`` for none.

    >>> read_curriculum({"levels": [{"high": 8}, {"high": 50}], "rise": 0.9}).rise
    0.9
    >>> read_curriculum({"explore": 0.2}).options
    {'levels': (), 'explore': 0.2, 'decay': 0.5}

    Raises:
        ConfigError: It is none, or its arguments are unknown or out of range.
    """
    if given is None or isinstance(given, Curriculum | PrioritizedTasks):
        return given
    if given == PRIORITIZED:
        return PrioritizedTasks()
    if not isinstance(given, Mapping):
        raise ConfigError(f"curriculum must be {expected(CurriculumOption)}, got {given!r:.200}")
    kinds: tuple[type[Curriculum], type[PrioritizedTasks]] = (Curriculum, PrioritizedTasks)
    kind = kinds[bool({"explore", "decay"} & given.keys())]
    for name in given:
        if name not in (known := option_types(kind)):
            raise ConfigError(f"curriculum has no argument {name!r}{did_you_mean(str(name), known)}")
    if kind is Curriculum and "levels" not in given:
        raise ConfigError(f"curriculum must have levels, or be {PRIORITIZED!r}; got {given!r:.200}")
    return kind(**given)


_Counts: TypeAlias = dict[str, list[float]]  # successes and episodes


def _names(task: Task, level: int) -> tuple[str, str]:
    """Return the names under which a task is counted: its own, and that of all tasks of its environment and level."""
    every = f"{task.env_id} level {level}"
    instance = task.options.get("instance")
    return f"{every} " + (f"seed {task.seed}" if instance is None else f"instance {instance}"), every


class Follower:
    """Curriculum of one ``rollout_func``, restored from the trainer's state and told what all processes played."""

    def __init__(self, curriculum: Curriculum | PrioritizedTasks) -> None:
        self.curriculum = curriculum
        self._saved = SavedState(curriculum, "gym_trl.curriculum")

    def begin(self, trainer: Any) -> None:
        """Restore the state that a resumed training has saved; called before each rollout of a training."""
        self._saved.restore(trainer)

    def end(self, trainer: Any, played: Iterable[EpisodeResult]) -> None:
        """Count the scored episodes of all processes; called after each rollout of a training, on every process."""
        from accelerate.utils import gather_object

        here = [(one.task, one.success) for one in played if one.scored]
        everywhere: list[tuple[Task, bool | None]] = gather_object(here)
        tasks = [task for task, _ in everywhere]
        declared = [(task.env_id, success) for task, success in everywhere]
        self.curriculum.count(zip(tasks, counted_successes(declared, attach(trainer).declaring), strict=True))
        self._saved.save(trainer)


def _undeclared(episodes: int) -> ConfigError:
    return ConfigError(
        f"a curriculum needs declared success, and the last {episodes} episodes declared none: set "
        "GymSpec(success=...) to a return to reach or 'info'"
    )
