"""Difficulty schedule that follows the model's success rate."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gym_trl.errors import ConfigError, check_counts
from gym_trl.grpo.dataset import read_prompt
from gym_trl.grpo.rollout_func import RolloutFunc
from gym_trl.types import Task

_SAVED_AS = "gym_trl.curriculum"  # in the trainer's state, which its checkpoints hold


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

    def __init__(
        self,
        levels: Sequence[Mapping[str, Any]],
        *,
        rise: float = 0.75,
        fall: float = 0.1,
        episodes: int = 128,
        level: int = 0,
    ) -> None:
        if not levels or not 0 <= level < len(levels):
            raise ConfigError(f"level must be the index of one of the levels, got {level} of {len(levels)} levels")
        if not fall < rise <= 1:
            raise ConfigError(f"fall must be below rise, and rise at most 1; got fall={fall} and rise={rise}")
        check_counts(episodes=episodes)
        self.levels = [dict(arguments) for arguments in levels]
        self.level = level
        self.rise, self.fall, self.episodes = rise, fall, episodes
        self._won = self._played = self._undeclared = 0

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
            raise ConfigError(
                f"a curriculum needs declared success, and the last {self._undeclared} episodes declared none: set "
                "GymSpec(success=...) to a return to reach or 'info'"
            )
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


def at_level(task: Task, level: int) -> Task:
    """Return the task with its level set."""
    return replace(task, options={**task.options, "level": level})


def with_curriculum(rollout: RolloutFunc, curriculum: Curriculum) -> RolloutFunc:
    """Return a rollout function that plays training episodes on the curriculum's level and reports them to it."""
    training: Any = None

    def play(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        nonlocal training
        if not trainer.model.training:
            return rollout(prompts, trainer)
        saved = trainer.state.stateful_callbacks
        if trainer.state is not training:  # a new one, possibly from a checkpoint
            training, curriculum.state = trainer.state, saved.get(_SAVED_AS, curriculum.state)
        columns = rollout([_placed(prompt, curriculum.level) for prompt in prompts], trainer)
        curriculum.report(_everywhere(columns))
        saved[_SAVED_AS] = curriculum.state
        return columns

    return play


def _placed(prompt: Any, level: int) -> Any:
    _, task = read_prompt(prompt)
    if task is None:
        return prompt
    return [*prompt[:-1], {**prompt[-1], "task": at_level(task, level).to_json()}]


def _everywhere(columns: Mapping[str, list[Any]]) -> list[tuple[int, bool | None]]:
    """Return level and success of the scored episodes of all processes; the same list on each process."""
    from accelerate.utils import gather_object

    rows = zip(columns["task"], columns["success"], columns["episode_return"], strict=True)
    here = [(Task.from_json(task).options["level"], won) for task, won, value in rows if value is not None]
    return [(int(level), won) for level, won in gather_object(here)]
