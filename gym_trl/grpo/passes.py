"""Forward and backward passes of a training step, with the trainer's loss and gradient and less work than TRL's."""

import logging
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gym_trl.grpo import trl_versions
from gym_trl.grpo.padding import KEPT, Padding, by_length, in_parts, last_columns
from gym_trl.grpo.sampled_logprobs import (
    ScoredRows,
    ignores_left_padding,
    sampled_scores,
    why_passes_stay,
)

_log = logging.getLogger(__name__)
_OTHER_LOGPROBS = ("old_per_token_logps", "ref_per_token_logps")
_TOKENS = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "importance_sampling_ratio",
    "sampling_per_token_logps",
    *_OTHER_LOGPROBS,
)
"""Entries of a batch that may have a column for each token of the completions."""
_PADDED = (
    "the model counts positions from the first column, padding or not, and TRL pads prompts without passing positions: "
    "log-probabilities of rows with shorter prompts are not those that were sampled. Train such a model on one process "
    "and one device, or take one with rotary positions"
)
_LOSSES_PER_STEP = frozenset({"cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"})
"""Loss types whose sum over the micro-batches of an optimizer step is the same for any division of its rows."""


class Passes:
    """Choice of what the passes of a trainer leave out because it changes no loss and no gradient; logged once.

    * Scores over the vocabulary are computed for sampled tokens only (``sampled_logprobs``).
    * A micro-batch ends after its own last sampled token and begins with its own longest prompt.
    * The rows of an optimizer step are sorted by length before they are split into micro-batches, if its loss is a sum
      that does not depend on this division. Metrics that TRL averages over micro-batches (``entropy``, ``kl``,
      ``clip_ratio``) then weigh other rows together, as another shuffling does.

    Images and auxiliary losses of mixtures of experts are left to TRL.
    """

    def __init__(self, trainer: Any) -> None:
        stays, unsorted = _why_padding_stays(trainer), _why_rows_stay(trainer)
        self._score = sampled_scores(trainer)
        self._padding: Padding | None = None
        sharded = trl_versions.shards_weights(trainer)
        ignored = not sharded and _ignore_left_padding(trainer)
        if self._score is None and not sharded and not ignored:
            warnings.warn(_PADDED, UserWarning, stacklevel=2)
        if stays is None:
            self._padding = Padding(
                prompts=ignored,
                completions=True,
                multiple=trainer.pad_to_multiple_of or 1,
            )
        self._together, self._sorts = _micro_batches_of_a_step(trainer), unsorted is None
        self._entropy_gradient = trl_versions.has_entropy_bonus(trainer)
        _log.info(
            "scores at %s positions; %s; %s",
            "all" if self._score is None else "sampled",
            "each micro-batch is as wide as its longest row" if stays is None else f"padding stays: {stays}",
            "rows of a step are sorted by length" if unsorted is None else f"rows are not sorted: {unsorted}",
        )

    def loss_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return a micro-batch without padding.

        The old and the reference model's log-probabilities are 0 at all tokens that were not sampled, so that their
        ratios, which TRL masks afterwards, are 1 and never infinite.
        """
        if self._padding is not None:
            inputs = without_padding(inputs, self._padding)
        if self._score is None:
            return inputs
        mask = loss_mask(inputs)
        logprobs = {name: inputs[name] for name in _OTHER_LOGPROBS if inputs.get(name) is not None}
        return {**inputs, **{name: values.masked_fill(mask == 0, 0.0) for name, values in logprobs.items()}}

    def logprobs(
        self,
        compute: Callable[..., Any],
        model: Any,
        ids: Any,
        attended: Any,
        length: int,
        *,
        sampled: Any,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **named: Any,
    ) -> Any:
        """Return log-probabilities and entropies, of which those where nothing was sampled may be 0.

        Args:
            compute: TRL's own method.
            model: The model.
            ids: Ids of prompts and completions, shape (rows, length).
            attended: 1 where there is a token, shape (rows, length).
            length: Number of the last columns that are completions.
            sampled: True where a token was sampled, shape (rows, completion length); ``None`` if not known.
            batch_size: Rows of a pass over a whole batch; ``None`` for a micro-batch, whose padding is left out before.
            compute_entropy: True if entropies are needed.
            named: Images, and other inputs.
        """
        untouched = self._score is None and self._padding is None
        if untouched or any(value is not None and value is not False for value in named.values()):
            return compute(
                model, ids, attended, length, batch_size=batch_size, compute_entropy=compute_entropy, **named
            )

        def computed(ids: Any, attended: Any, sampled: Any) -> Any:
            if self._score is None:
                return compute(model, ids, attended, sampled.shape[1], compute_entropy=compute_entropy)[:2]
            return self._score(model, ScoredRows(ids, attended, sampled, compute_entropy, self._entropy_gradient))[:2]

        if sampled is None or self._score is None:
            sampled = attended[:, -length:].bool()
        if batch_size is None:
            return *computed(ids, attended, sampled), None
        return *in_parts(computed, ids, attended, sampled, at_once=batch_size, padding=self._padding or KEPT), None

    def in_order(self, batches: list[Any]) -> list[Any]:
        """Return the micro-batches of a generation with the rows of each optimizer step sorted."""
        return _sorted(batches, self._together) if self._sorts else batches


def _ignore_left_padding(trainer: Any) -> bool:
    return all(ignores_left_padding(model) for model in (trainer.model, trainer.ref_model) if model is not None)


def _why_padding_stays(trainer: Any) -> str | None:
    """Return why no padding can be left out of the trainer's forward passes, or ``None``."""
    if (reason := why_passes_stay(trainer)) is not None:
        return reason
    if trainer.aux_loss_enabled:
        return "the auxiliary loss of a mixture of experts may count padding"
    return None


def _why_rows_stay(trainer: Any) -> str | None:
    """Return why rows cannot move to other micro-batches of an optimizer step, or ``None``.

    They can where the sum of the losses of the step's micro-batches, and so its gradient, is the same for any division
    of its rows (``GRPOTrainer._compute_loss``, TRL 1.16).
    """
    if (reason := _why_padding_stays(trainer)) is not None:
        return reason
    reasons = (
        (
            trainer.loss_type not in _LOSSES_PER_STEP,
            f"loss_type={trainer.loss_type!r} may divide by the tokens of each micro-batch",
        ),
        (
            trl_versions.has_entropy_bonus(trainer),
            "the entropy bonus is a mean over the tokens of each micro-batch",
        ),
        (
            trainer.top_entropy_quantile < 1,
            "top_entropy_quantile is a quantile of the tokens of each micro-batch",
        ),
        *(
            (name in trainer.gym_trl.overridden, f"{type(trainer).__name__} has a {name} of its own")
            for name in (trl_versions.WHOLE_LOSS, trl_versions.PREPARE)
        ),
        (_micro_batches_of_a_step(trainer) == 1, "an optimizer step has one micro-batch of a generation"),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _micro_batches_of_a_step(trainer: Any) -> int:
    """Return the number of successive micro-batches that always share an optimizer step.

    Generations begin at multiples of ``steps_per_generation`` micro-batches; optimizer steps at multiples of
    ``gradient_accumulation_steps``, and at the begin of an epoch, which has whole generations.
    """
    return math.gcd(trainer.args.steps_per_generation, trainer.args.gradient_accumulation_steps)


def _sorted(batches: list[Any], together: int) -> list[Any]:
    """Return micro-batches in which the rows of each ``together`` successive ones are sorted.

    Args:
        batches: Micro-batches of a generation.
        together: Number of those that share an optimizer step.
    """
    sorted_batches: list[Any] = []
    for first in range(0, len(batches), together):
        window = batches[first : first + together]
        whole = {name: _joined([batch[name] for batch in window]) for name in window[0]}
        sizes = [len(batch["completion_ids"]) for batch in window]
        order = by_length(whole["prompt_mask"].sum(1) + last_columns(loss_mask(whole)), sum(sizes))
        sorted_batches += [
            {name: _rows_at(values, rows) for name, values in whole.items()} for rows in order.split(sizes)
        ]
    return sorted_batches


def _joined(parts: Sequence[Any]) -> Any:
    """Return the rows of micro-batches of one generation; what is not by row is the same in all of them."""
    import torch

    if isinstance(parts[0], list):
        return [value for part in parts for value in part]
    return torch.cat(list(parts)) if getattr(parts[0], "ndim", 0) else parts[0]


def _rows_at(values: Any, rows: Any) -> Any:
    if isinstance(values, list):
        return [values[row] for row in rows.tolist()]
    return values[rows] if getattr(values, "ndim", 0) else values


def loss_mask(batch: Any) -> Any:
    """Return 1 where a token was sampled and may be trained on, shape (rows, completion length)."""
    return batch["completion_mask"] * batch.get("tool_mask", 1)


def generated_mask(masks: list[list[int]] | None, attended: Any) -> Any:
    """Return the sampled tokens of a generation, or all of its tokens if its masks are unknown."""
    if masks is None or [len(mask) for mask in masks] != attended.sum(1).tolist():
        return attended
    sampled = attended.clone()
    for row, mask in zip(sampled, masks, strict=True):
        row[: len(mask)] = row.new_tensor(mask)
    return sampled


def without_padding(batch: dict[str, Any], padding: Padding) -> dict[str, Any]:
    """Return a micro-batch without the columns that no row needs."""
    prompts, completions = padding.used(batch["prompt_mask"], loss_mask(batch))
    width = batch["completion_ids"].shape[1]
    cut = {name: batch[name][:, prompts] for name in ("prompt_ids", "prompt_mask")}
    for name in _TOKENS:
        values = batch.get(name)
        if values is not None and values.ndim == 2 and values.shape[1] == width:
            cut[name] = values[:, completions]
    return {**batch, **cut}
