"""Episodes of several segments, each of which is trained as a row of its own."""

from collections.abc import Sequence
from typing import Any, ClassVar

from gym_trl.errors import ConfigError
from gym_trl.grpo import trl_versions
from gym_trl.grpo.parts.part import Call, Part
from gym_trl.grpo.planned_rows import Planned
from gym_trl.grpo.trainer_parts import Batch, BatchRow, Generated, TrainerPart
from gym_trl.types import EpisodeResult

SEGMENTS = "segments"
"""Column with the beginnings of an episode's further segments, if there is a history."""
_LOSSES = {
    "cispo": "exact",
    "dapo": "exact",
    "dr_grpo": "exact without beta",
    "grpo": "exact without beta",
    "luspo": "exact without beta",
    "sapo": "exact without beta",
    "bnpo": "it divides by the tokens of a micro-batch, which segments change",
    "vespo": "it weighs a row by all of its tokens",
}
"""Loss types of TRL 1.16: exact for episodes of several segments, or the reason why not."""
_SEQUENCE_RATIOS = ("sequence_mask", "sequence_truncate")


class SegmentRows(TrainerPart):
    """Part that trains each segment of an episode as a row, with the weight that its tokens have in the whole episode.

    A rollout returns one row per episode, with the prompts of further segments among its ``completion_ids``, and in the
    column ``segments`` where each of these prompts starts and stops. Rewards, advantages and metrics are computed of
    episodes; then the batch has a row per segment. It is filled up with rows that train nothing, to the same number on
    all processes, which the steps of a generation divide.
    """

    name: ClassVar[str] = "history"

    def check(self, trainer: Any) -> None:
        """Check that the trainer's loss is the same for an episode in several segments as for one in a single row.

        Raises:
            ConfigError: A setting of the trainer weighs rows, or computes a loss of its own; the message says which.
        """
        if (reason := _why_not(trainer)) is not None:
            raise ConfigError(f"history=... is not possible with {reason}")

    def generated(self, batch: Batch, out: Generated) -> Generated:
        """Return a row for each segment."""
        borders = out.columns.get(SEGMENTS)
        if borders is None or out.mask is None or out.logprobs is None:
            raise ConfigError(
                f"with history the columns {SEGMENTS}, env_mask and logprobs are needed: a rollout_func around "
                "spec.rollout_func must return them, too"
            )
        prompts, completions = out.prompt_ids, out.completion_ids
        rows = _rows(completions, borders)
        rows += [BatchRow(None, None, 0, 0)] * (_rows_everywhere(batch.trainer, len(rows)) - len(rows))
        batch.rows, batch.completion_ids = rows, completions
        end = trl_versions.end_ids(batch.trainer)[0]

        def prompt_of(row: BatchRow) -> list[int]:
            if row.episode is None:
                return [end]
            ids = prompts[row.episode]
            return ids if row.prompt is None else completions[row.episode][row.prompt : row.start]

        def cut(values: list[list[Any]], filler: Any) -> list[list[Any]]:
            return [[filler] if row.episode is None else values[row.episode][row.start : row.stop] for row in rows]

        begins = [prompt_of(row) for row in rows]
        ids, mask, logprobs = cut(completions, end), cut(out.mask, 0), cut(out.logprobs, 0.0)
        return out._replace(prompt_ids=begins, completion_ids=ids, mask=mask, logprobs=logprobs)

    def scored(self, batch: Batch, columns: dict[str, Any]) -> dict[str, Any]:
        """Return what is known by episode, by segment, with the weights that the loss type needs."""
        import torch

        trainer, rows = batch.trainer, batch.rows or []
        advantages, mask = columns["advantages"], columns["completion_mask"] * columns["tool_mask"]
        owners = torch.tensor([-1 if row.episode is None else row.episode for row in rows], device=advantages.device)
        is_part, episodes, count = owners >= 0, owners.clamp(min=0), len(advantages)
        tokens = mask.sum(1).to(advantages.dtype)

        def whole(values: Any) -> Any:  # the sum over the episode of each row
            return torch.zeros(count, dtype=values.dtype, device=values.device).index_add(0, episodes, values)[episodes]

        weights = torch.ones_like(tokens)
        if trainer.loss_type in ("dr_grpo", "luspo", "grpo", "sapo"):  # divided by rows, of which there are more
            weights *= len(rows) / count
        if trainer.loss_type in ("grpo", "sapo"):  # means over the tokens of a row
            weights *= tokens / whole(tokens).clamp(min=1)
        weights = weights * is_part
        batch.weights = weights.tolist()
        changed = {"advantages": advantages[episodes] * weights}
        mode = trainer.vllm_importance_sampling_mode
        if "importance_sampling_ratio" in columns and mode in _SEQUENCE_RATIOS:
            apart = (columns["old_per_token_logps"] - columns["sampling_per_token_logps"]) * mask
            ratio = whole(torch.nan_to_num(apart, nan=0.0).sum(1) * is_part).exp()
            least, most = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
            if mode == "sequence_truncate":
                ratio = ratio.clamp(min=least, max=most)
            else:
                outside = (ratio < (least if least is not None else -torch.inf)) | (
                    ratio > (most if most is not None else torch.inf)
                )
                ratio = ratio.masked_fill(outside, 0.0)
            changed["importance_sampling_ratio"] = ratio.unsqueeze(1)
        return {**columns, **changed}


class Segments(Part):
    """Part for ``history``: tells the trainer where in an episode's ids the prompt of each further segment is."""

    name = "history"
    in_evaluations = True

    def trainer_part(self) -> SegmentRows:
        """Return the part that trains segments as rows."""
        return SegmentRows()

    def columns(self, rows: Sequence[Planned], episodes: Sequence[EpisodeResult], call: Call) -> dict[str, list[Any]]:
        """Return where the prompts of further segments start and stop in each row's ``completion_ids``."""
        return {SEGMENTS: [[(b.start, b.stop) for b in one.trace.borders] if one.scored else [] for one in episodes]}


def _why_not(trainer: Any) -> str | None:
    loss_type, level, beta = trainer.loss_type, trainer.importance_sampling_level, trainer.beta
    exact = _LOSSES.get(loss_type, "it is not known")
    exact_types = ", ".join(name for name, why in _LOSSES.items() if why.startswith("exact"))
    reasons = (
        (not exact.startswith("exact"), f"loss_type={loss_type!r}: {exact}; use one of {exact_types}"),
        (level != "token", f"importance_sampling_level={level!r}, which has one ratio for a row; use 'token'"),
        (
            beta and exact != "exact",
            f"beta={beta} and loss_type={loss_type!r}, which averages the divergence over rows; use 'dapo' or 'cispo'",
        ),
        (
            trainer.off_policy_mask_threshold is not None,
            "off_policy_mask_threshold, which masks whole rows; leave it out",
        ),
        (trainer.gym_trl.own_loss, trainer.gym_trl.own_loss_reason),
    )
    return next((reason for holds, reason in reasons if holds), None)


def _rows(completions: Sequence[Sequence[int]], borders: Sequence[Sequence[Sequence[int]]]) -> list[BatchRow]:
    rows: list[BatchRow] = []
    for episode, (ids, within) in enumerate(zip(completions, borders, strict=True)):
        begins: list[tuple[int | None, int]] = [(None, 0), *((begin, start) for begin, start in within)]
        stops = [*(start for start, _ in within), len(ids)]
        rows += [BatchRow(episode, *begin, stop) for begin, stop in zip(begins, stops, strict=True)]
    return rows


def _rows_everywhere(trainer: Any, rows: int) -> int:
    """Return the number of rows of every process: the largest, and a multiple of the steps of a generation."""
    from accelerate.utils import gather_object

    most: int = max(gather_object([rows]))
    times = trainer.args.steps_per_generation if trainer.model.training else 1
    return -(-most // times) * times
