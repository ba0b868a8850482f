"""Episodes of a training that are recorded: whole groups of each rollout, with the advantages of their turns."""

import math
from collections.abc import Callable, Sequence
from typing import Any

from gym_trl.episode import Episode
from gym_trl.grpo.rollout_func import Rollout
from gym_trl.outcome import FailureNotes
from gym_trl.records.schema import CreditRecord
from gym_trl.training.run_folder import RunFolder


class Recorder:
    """Writer of some of the episodes of each rollout into a run's folder."""

    def __init__(self, folder: RunFolder, note: Callable[[str], None], *, episodes: int, group_size: int) -> None:
        self.greedy = False
        """True while the model is evaluated without sampling."""
        self._folder, self._episodes, self._group_size = folder, episodes, group_size
        self._failures = FailureNotes(note)
        self._about: dict[str, Any] = {}
        self._placed = 0  # episodes of the step or evaluation so far
        self._recorded: list[tuple[int, int]] = []  # of the last rollout: place in it and in the records

    def on_rollout(self, rollout: Rollout) -> None:
        """Record some of the episodes."""
        # In training, a rollout precedes its step.
        step = rollout.step + (rollout.split == "train")
        group_size = self._group_size if rollout.split == "train" else 1
        about = {"step": step, "split": rollout.split, "greedy": self.greedy}
        # A step or an evaluation may consist of several rollouts.
        if self._about != about:
            self._about, self._placed = about, 0
        chosen = some_of(rollout.episodes, self._episodes, group_size)
        self._recorded = [(place, self._placed + place) for place in chosen]
        placed = [(self._placed + place, rollout.episodes[place]) for place in chosen]
        self._placed += math.ceil(len(rollout.episodes) / group_size) * group_size  # whole groups
        self._folder.rollouts(placed, group_size=group_size, tokens=True, **about)
        again = [(self._placed + place, one) for place, one in by_task(rollout.replaced, self._episodes, group_size)]
        self._placed += len({place // group_size for place, _ in again}) * group_size
        self._folder.rollouts(again, group_size=group_size, tokens=True, replaced=True, **about)
        for episode in rollout.episodes:
            self._failures.add(str(episode.stop_reason), episode.error, scored=episode.scored)

    def on_advantages(self, advantages: Sequence[Sequence[float]]) -> None:
        """Record the advantages of the turns of the recorded episodes of the last rollout."""
        for row, place in self._recorded:
            group, attempt = divmod(place, self._group_size)
            if advantages[row]:  # an unscored episode has none
                record = CreditRecord(
                    step=self._about["step"],
                    split=self._about["split"],
                    group=group,
                    attempt=attempt,
                    advantages=list(advantages[row]),
                )
                self._folder.credit(record)


def by_task(episodes: Sequence[Episode], count: int, group_size: int) -> list[tuple[int, Episode]]:
    """Return about ``count`` replaced episodes, whole groups of one task each, with positions."""
    groups: list[list[Episode]] = []
    for episode in episodes:
        if not groups or len(groups[-1]) == group_size or groups[-1][0].task != episode.task:
            groups.append([])
        groups[-1].append(episode)
    chosen = groups[: math.ceil(count / group_size)]
    return [
        (number * group_size + place, one) for number, group in enumerate(chosen) for place, one in enumerate(group)
    ]


def some_of(episodes: Sequence[Episode], count: int, group_size: int) -> list[int]:
    """Return positions of about ``count`` episodes: whole groups spread over the batch, and a failed one if any.

    A game is never cut: the last one is completed beyond ``count``.

    Args:
        episodes: Episodes of the batch; those of the seats of a game are neighbours.
        count: Number of episodes.
        group_size: Number of consecutive positions with the same task.
    """
    games: list[list[int]] = []
    for place, episode in enumerate(episodes):
        if not episode.seat or not games:
            games.append([])
        games[-1].append(place)
    starts = range(0, len(episodes), group_size)
    wanted = min(len(starts), math.ceil(count / group_size))
    groups = {starts[number * len(starts) // wanted] // group_size for number in range(wanted)}
    chosen: list[list[int]] = []
    for game in games:
        if sum(map(len, chosen)) < count and game[0] // group_size in groups:
            chosen.append(game)
    failed = [game for game in games if any(not episodes[place].scored and episodes[place].error for place in game)]
    if chosen and failed and not any(game in failed for game in chosen):
        chosen[-1] = failed[0]
    return [place for game in chosen for place in game]
