"""Step of a training that is checked, and what a stage finds in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gym_trl.options import TrainOptions
from gym_trl.records.schema import Record
from gym_trl.training.step_file import Ragged, StepAbout, StepEpisode
from gym_trl.trust import Trust
from gym_trl.types import StopReason


class Difference(NamedTuple):
    """Value that is not what was recorded."""

    episode: int | None
    """Index of the episode in the step; ``None`` if it is of the whole step."""
    text: str
    """Turn, and both values."""

    @classmethod
    def of(cls, episode: int | None, place: str, what: str, now: object, then: object) -> "Difference":
        """Return the difference of a value that is ``now`` computed and was ``then`` recorded.

        >>> Difference.of(3, "turn 1", "the reward", 0.5, 1.0).text
        'turn 1: the reward is 0.5, and was recorded as 1.0'
        """
        where = f"{place}: " if place else ""
        return cls(episode, f"{where}{what} is {now!r:.200}, and was recorded as {then!r:.200}")


def first_difference(now: Sequence[Any], then: Sequence[Any]) -> int:
    """Return the place of the first difference of two sequences; the shorter one's length if it begins the other.

    >>> first_difference([1, 2, 3], [1, 5, 3]), first_difference([1, 2], [1, 2, 3])
    (1, 2)
    """
    pairs = enumerate(zip(now, then, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(now), len(then)))


class UncheckedError(Exception):
    """Reason why a stage cannot be recomputed."""


Found: TypeAlias = Difference | str
"""Difference, or a sentence on what is not compared."""


@dataclass(frozen=True, kw_only=True)
class CheckedStep:
    """Step with all that is known of it."""

    folder: Path
    trust: Trust
    step: int
    records: Sequence[Record]
    """Episodes; without a full record some of the step's."""
    options: TrainOptions | None
    """Options of the run; ``None`` if its folder has none."""
    episodes: Sequence[StepEpisode] | None = None
    about: StepAbout | None = None
    rows: Mapping[str, Ragged] | None = None
    metrics: Mapping[str, Any] | None = None
    """Line of the step in ``metrics.jsonl``."""

    @property
    def group_size(self) -> int | None:
        """Number of episodes of a group; ``None`` if it is not known."""
        if self.about is not None:
            return self.about["group_size"]
        return None if self.options is None else self.options.num_generations

    def full(self) -> tuple[StepAbout, Sequence[StepEpisode], Mapping[str, Ragged]]:
        """Return what a full record has.

        Raises:
            UncheckedError: There is none.
        """
        if self.about is None or self.episodes is None or self.rows is None:
            raise UncheckedError("the step is not recorded as a whole (full_record_every)")
        return self.about, self.episodes, self.rows


Stage: TypeAlias = Callable[[CheckedStep], Iterator[Found]]
"""Function that recomputes a part of a step and yields what it finds."""


def own_turns(record: Record) -> int:
    """Return the index of the first turn of the model: the turns before it were given, and have no ids of their own."""
    spans = [(turn["start"], turn["stop"]) for turn in record["turns"]]
    return next((index for index, (start, stop) in enumerate(spans) if start != stop), len(spans))


def is_scored(record: Record) -> bool:
    """Return whether an episode says something about the model, by its stop reason and its turns."""
    own = own_turns(record) if record["prompt_ids"] is not None else 0
    return StopReason(record["stop_reason"]).scored and len(record["turns"]) > own
