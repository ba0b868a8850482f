"""Rows of episodes in segments, and the weights with which their loss is that of episodes in single rows."""

from collections.abc import Sequence
from typing import Any

from gym_trl.episode import Episode, Segment

BY_TOKENS, BY_ROWS = ("cispo", "dapo"), ("dr_grpo", "grpo", "luspo", "sapo")
"""Loss types that do not depend on the number of an episode's rows: as they are, and with ``weigh_segments``."""
FILLER = (-1, 0)
"""Row of no episode."""


def rows_of_segments(episodes: Sequence[Episode], steps: int) -> list[tuple[int, int]]:
    """Return the number of an episode of this process and that of one of its segments for each row of a batch.

    Fillers make the number of rows the same on all processes, and divisible by ``steps``.
    """
    from accelerate.utils import gather_object

    rows = [(n, place) for n, one in enumerate(episodes) if one.scored for place in range(len(one.segments))]
    count = -(-max(1, *gather_object([len(rows)])) // steps) * steps
    return rows + [FILLER] * (count - len(rows))


def untrained(id_: int) -> Segment:
    """Return a row of a prompt and a completion of one token each, which is not trained."""
    return Segment([id_], [id_], [0], [0.0])


def weigh_segments(trainer: Any, out: dict[str, Any], owners: Any) -> Any:
    """Return the weight of each row, with which an episode in segments has the loss of one in a single row.

    A loss that divides by rows divides by too many, and one that takes means over rows adds up several. The
    correction of sequences for another sampler becomes that of the whole episode.

    Args:
        trainer: The trainer.
        out: Its batch.
        owners: Number of the episode of each row; -1 for a filler.
    """
    mask = out["completion_mask"] * out["tool_mask"]
    count, tokens, is_part, episodes = len(out["advantages"]), mask.sum(1).float(), owners >= 0, owners.clamp(min=0)

    def whole(values: Any) -> Any:  # the sum over the episode of each row
        return values.new_zeros(count).index_add(0, episodes, values * is_part)[episodes]

    weights = is_part.float()
    if trainer.loss_type in BY_ROWS:
        weights = weights * len(owners) / count
    if trainer.loss_type in ("grpo", "sapo"):
        weights = weights * tokens / whole(tokens).clamp(min=1)
    mode = trainer.vllm_importance_sampling_mode
    if "importance_sampling_ratio" in out and mode.startswith("sequence"):
        apart = (out["old_per_token_logps"] - out["sampling_per_token_logps"]).nan_to_num(nan=0.0) * mask
        ratio = whole(apart.sum(1)).exp()
        least, most = trainer.vllm_importance_sampling_clip_min, trainer.vllm_importance_sampling_clip_max
        clipped = ratio if (least, most) == (None, None) else ratio.clamp(min=least, max=most)
        kept = clipped if mode == "sequence_truncate" else ratio * (ratio == clipped)
        out["importance_sampling_ratio"] = kept.unsqueeze(1)
    return weights
