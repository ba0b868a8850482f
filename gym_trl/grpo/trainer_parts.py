"""Parts of a trainer: what features of a rollout change in the batches that a trainer makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple


class Generated(NamedTuple):
    """Rows that a batch is made of, as ``GRPOTrainer._generate`` returns them (TRL 1.16)."""

    prompt_ids: list[list[int]]
    completion_ids: list[list[int]]
    mask: list[list[int]] | None
    """1 where a token was sampled."""
    completions: list[Any]
    logprobs: list[list[float]] | None
    columns: dict[str, Any]
    """Further columns of the rollout, for reward functions."""
    images: Any
    tool_images: Any


class BatchRow(NamedTuple):
    """Row of a batch that is a part of an episode."""

    episode: int | None
    """Index of the episode among those of this process; ``None`` for a row that only fills the batch."""
    prompt: int | None
    """Index in the episode's ``completion_ids`` of the row's prompt; ``None`` for the episode's own prompt."""
    start: int
    """Index in the episode's ``completion_ids`` of the first id after the row's prompt."""
    stop: int
    """Index after its last id."""


@dataclass(eq=False)
class Batch:
    """Batch that a trainer makes of one rollout, from the generation until it is scored; its parts share it."""

    trainer: Any
    completion_ids: list[list[int]] | None = None
    """Completions by episode, as reward functions get them; ``None`` if they are the rows'."""
    mask: list[list[int]] | None = None
    """1 where a token was sampled, by row."""
    rows: Sequence[BatchRow] | None = None
    """Rows; ``None`` if each is a whole episode."""
    weights: Sequence[float] | None = None
    """Weights of ``rows`` in the loss, by which advantages are multiplied."""
    dead: float | None = None
    """Share of the groups whose members all have the same reward; ``None`` where another set is compared."""
    notes: dict[Any, Any] = field(default_factory=dict)
    """Values that a part keeps for its later methods, by the part."""


class TrainerPart:
    """Feature of a rollout that changes the batches of a trainer; each method leaves them as they are by default.

    A trainer has its own objects, which may have a state. They are called in their order, in each method.
    """

    name: ClassVar[str] = ""
    """Option of ``GymSpec`` that it belongs to, for error messages."""

    def same_as(self, other: "TrainerPart") -> bool:
        """Return True if a trainer that has ``other`` does what this part would do."""
        return type(self) is type(other)

    def check(self, trainer: Any) -> None:
        """Check the settings of a trainer, before its first batch.

        Raises:
            ConfigError: One of them does not go with the part; the message says which, and what to change.
        """

    def generated(self, batch: Batch, out: Generated) -> Generated:
        """Return the rows that the batch is made of."""
        return out

    def rewards(self, batch: Batch, inputs: Sequence[Mapping[str, Any]], rewards: Any) -> Any:
        """Return the rewards of all processes, NaN where there is none; ``inputs`` are this process's rows."""
        return rewards

    def scored(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Any]:
        """Return the columns of the batch, after advantages and log-probabilities have been computed."""
        return columns

    def loss_inputs(self, trainer: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return a micro-batch before its loss is computed."""
        return inputs
