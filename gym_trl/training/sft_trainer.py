"""TRL's ``SFTTrainer`` with less work on a CPU."""

from functools import partial
from typing import Any

from gym_trl.errors import needs
from gym_trl.grpo.speed import can_score, score
from gym_trl.grpo.trl_versions import heads_without_label

with needs("train", "a warm start"):
    from trl import SFTTrainer


class LabelTrainer(SFTTrainer):  # type: ignore[misc]  # TRL is untyped
    """``SFTTrainer`` that applies the head to positions with a label only, also on a CPU, with TRL's own loss."""

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """Return the loss of a micro-batch."""
        alone = self.accelerator.num_processes == 1 and not self.aux_loss_enabled  # of a mixture of experts
        if alone and heads_without_label(self) and can_score(model):
            model = partial(score, model)
        return super().compute_loss(model, inputs, *given, **named)
