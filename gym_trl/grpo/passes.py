"""Forward and backward passes of a training step, with the trainer's loss and gradient and less work than TRL's."""

import logging
from typing import Any

from gym_trl.grpo import trl_versions
from gym_trl.grpo.padding import Padding
from gym_trl.grpo.sampled_logprobs import ignores_left_padding, sampled_scores

_log = logging.getLogger(__name__)


def attach_passes(trainer: Any) -> None:
    """Leave out of the passes of ``trainer`` what does not change a loss or a gradient, and log it once.

    * Scores over the vocabulary are computed for sampled tokens only (``sampled_logprobs``).
    * A micro-batch ends after its own last sampled token and begins with its own longest prompt.
    * The rows of an optimizer step are sorted by length before they are split into micro-batches, if its loss is a sum
      that does not depend on this division. Metrics that TRL averages over micro-batches (``entropy``, ``kl``,
      ``clip_ratio``) then weigh other rows together, as another shuffling does.
    """
    stays, unsorted = trl_versions.why_padding_stays(trainer), trl_versions.why_rows_stay(trainer)
    score, padding = sampled_scores(trainer), None
    if stays is None:
        padding = Padding(
            prompts=not trl_versions.shards_weights(trainer) and _ignore_left_padding(trainer),
            completions=True,
            multiple=getattr(trainer, "pad_to_multiple_of", None) or 1,
        )
    if score is not None or padding is not None:
        trl_versions.intercept_passes(trainer, score=score, padding=padding)
    if unsorted is None:
        trl_versions.intercept_order(trainer)
    _log.info(
        "scores at %s positions; %s; %s",
        "all" if score is None else "sampled",
        "each micro-batch is as wide as its longest row" if stays is None else f"padding stays: {stays}",
        "rows of a step are sorted by length" if unsorted is None else f"rows are not sorted: {unsorted}",
    )


def _ignore_left_padding(trainer: Any) -> bool:
    return all(ignores_left_padding(model) for model in (trainer.model, trainer.ref_model) if model is not None)
