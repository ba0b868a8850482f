"""Episodes of a training that are recorded: whole groups of each rollout, with the advantages of their turns."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gym_trl.grpo.parts.part import ReplacedEpisode, Rollout
from gym_trl.grpo.planned_rows import GameSeat
from gym_trl.outcome import FailureNotes
from gym_trl.records.schema import CreditRecord
from gym_trl.training.run_folder import RunFolder
from gym_trl.types import EpisodeResult


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
        chosen = some_of(rollout.episodes, self._episodes, group_size, rollout.seats)
        about = {"step": step, "split": rollout.split, "greedy": self.greedy}
        # A step or an evaluation may consist of several rollouts.
        if self._about != about:
            self._about, self._placed = about, 0
        placed = [(self._placed + place, played) for place, played in chosen]
        self._recorded = [(place, self._placed + place) for place, _ in chosen]
        self._placed += math.ceil(len(rollout.episodes) / group_size) * group_size  # whole groups
        self._folder.rollouts(placed, group_size=group_size, tokens=True, **about)
        # The recorded groups' predecessors, as groups of their own.
        before = _predecessors(rollout.replaced, {place for place, _ in chosen}, group_size)
        again = [(self._placed + place, played) for place, played in before]
        self._placed += max((place // group_size + 1 for place, _ in before), default=0) * group_size
        self._folder.rollouts(again, group_size=group_size, tokens=True, replaced=True, **about)
        for played in rollout.episodes:
            self._failures.add(played.stop_reason, played.error, scored=played.scored)

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


def _predecessors(
    replaced: Sequence[ReplacedEpisode], places: Collection[int], group_size: int
) -> list[tuple[int, EpisodeResult]]:
    """Return the replaced episodes of the rows at ``places``, with positions in groups of their own."""
    groups: dict[tuple[int, int], int] = {}
    predecessors = []
    for one in replaced:
        group, member = divmod(one.place, group_size)
        if one.place in places:
            number = groups.setdefault((group, one.attempt), len(groups))
            predecessors.append((number * group_size + member, one.episode))
    return predecessors


def some_of(
    episodes: Sequence[EpisodeResult], count: int, group_size: int, seats: Mapping[str, int]
) -> list[tuple[int, EpisodeResult]]:
    """Return about ``count`` episodes with positions: whole groups spread over the batch, and a failed one if any.

    A game is never cut: the last one is completed beyond ``count``, and one that has seats on another process is left
    out.

    Args:
        episodes: Episodes of the batch, by position.
        count: Number of episodes.
        group_size: Number of consecutive positions with the same task.
        seats: Number of seats of each environment by its id, if the model plays all of them.
    """

    def game(place: int) -> range:
        size = seats.get(episodes[place].task.env_id, 1)
        first = place - GameSeat.of(place % group_size, size).seat
        return range(first, first + size)

    games = list(dict.fromkeys(one for place in range(len(episodes)) if (one := game(place)).stop <= len(episodes)))
    starts = range(0, len(episodes), group_size)
    wanted = min(len(starts), math.ceil(count / group_size))
    groups = {starts[i * len(starts) // wanted] for i in range(wanted)}
    chosen, places = list[range](), 0
    for one in games:
        if places < count and one.start // group_size * group_size in groups:
            chosen.append(one)
            places += len(one)
    failed = [one for one in games if any(not episodes[place].scored and episodes[place].error for place in one)]
    if chosen and failed and not set(chosen) & set(failed):
        chosen[-1] = failed[0]
    return [(place, episodes[place]) for one in chosen for place in one]
