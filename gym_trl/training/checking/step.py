"""Step of a training that is checked, and what a stage finds in it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gym_trl.options import TrainOptions
from gym_trl.records.schema import Record
from gym_trl.training.step_file import StepAbout, StepData
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


@dataclass(frozen=True)
class ExpectedRow:
    """Row that an episode, or a segment of it, is to be in the loss."""

    episode: int | None
    """Index of the episode; ``None`` for a row that only fills the batch."""
    start: int
    """Index of its first id in the episode's completion."""
    prompt: Sequence[int]
    ids: Sequence[int]
    mask: Sequence[int]
    logprobs: Sequence[float | None]


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
    data: StepData | None = None
    """Full record of the step; ``None`` if it has none."""
    metrics: Mapping[str, Any] | None = None
    """Line of the step in ``metrics.jsonl``."""

    @property
    def about(self) -> StepAbout | None:
        """Settings of the step; ``None`` without a full record."""
        return None if self.data is None else self.data.about

    @property
    def group_size(self) -> int | None:
        """Number of episodes of a group; ``None`` if it is not known."""
        if self.about is not None:
            return self.about["group_size"]
        return None if self.options is None else self.options.num_generations

    @property
    def full(self) -> StepData:
        """Full record of the step.

        Raises:
            UncheckedError: There is none.
        """
        if self.data is None:
            raise UncheckedError("the step is not recorded as a whole (full_record_every)")
        return self.data

    @cached_property
    def expected(self) -> list[ExpectedRow]:
        """Rows that the episodes are to be, those of each process filled up to the recorded number.

        Raises:
            UncheckedError: The step is not recorded as a whole.
        """
        about, rows = self.full.about, self.full.rows
        expected: list[ExpectedRow] = []
        per_process = len(rows["row_prompt_ids"]) // len(about["rows_by_process"])
        filler = about["end_ids"][0] if about["end_ids"] else 0
        ends = [*accumulate(about["rows_by_process"], initial=0)]
        for number, (first, last) in enumerate(pairwise(ends), start=1):
            for index in range(first, last):
                expected += _rows_of(index, self.records[index], about, filler)
            expected += [ExpectedRow(None, 0, [filler], [filler], [0], [0.0])] * (number * per_process - len(expected))
        return expected


def _rows_of(index: int, record: Record, about: StepAbout, filler: int) -> Iterator[ExpectedRow]:
    """Yield the rows of an episode; one masked token for an unscored one."""
    ids, mask, prompt = record["completion_ids"] or [], record["mask"] or [], record["prompt_ids"] or []
    logprobs = record["logprobs"] or []
    scored = is_scored(record)
    if not ids or (not scored and record["images"] is not None):
        prompt = [filler]
    if not scored:
        yield ExpectedRow(index, 0, prompt, [filler], [0], [0.0])
        return
    if about["masks_cut_off"] and StopReason(record["stop_reason"]).cut_off:
        mask = [0] * len(mask)
    borders = (record["segments"] or []) if about["segments"] else []
    starts = [0, *(border["stop"] for border in borders)]
    stops = [*(border["start"] for border in borders), len(ids)]
    prompts = [prompt, *(ids[border["start"] : border["stop"]] for border in borders)]
    for begin, start, stop in zip(prompts, starts, stops, strict=True):
        yield ExpectedRow(index, start, begin, ids[start:stop], mask[start:stop], logprobs[start:stop])


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
