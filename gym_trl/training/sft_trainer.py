"""TRL's ``SFTTrainer`` with less work on a CPU."""

from functools import partial
from types import SimpleNamespace
from typing import Any

from gym_trl.errors import needs
from gym_trl.grpo.sampled_logprobs import ScoredRows, is_plain, score_sampled
from gym_trl.grpo.trl_versions import heads_without_label

with needs("train", "a warm start"):
    from trl import SFTTrainer


class LabelTrainer(SFTTrainer):  # type: ignore[misc]  # TRL is untyped
    """``SFTTrainer`` that applies the head to positions with a label only, also on a CPU, with TRL's own loss."""

    def compute_loss(self, model: Any, inputs: Any, *given: Any, **named: Any) -> Any:
        """Return the loss of a micro-batch."""
        alone = self.accelerator.num_processes == 1 and not self.aux_loss_enabled  # of a mixture of experts
        if alone and heads_without_label(self) and is_plain(model):
            model = partial(self._forward, model)
        return super().compute_loss(model, inputs, *given, **named)

    def _forward(self, model: Any, *, input_ids: Any, attention_mask: Any, labels: Any, **_: Any) -> SimpleNamespace:
        """Return what TRL reads of a model's outputs (``FusedCausalLMOutput``, TRL 1.16)."""
        mask = labels[:, 1:] != -100
        with self.accelerator.autocast():
            rows = ScoredRows(input_ids, attention_mask, mask, entropy=True, top=True)
            scores = score_sampled(model, rows, temperature=1.0)
        return SimpleNamespace(
            log_probs=scores.logprobs, entropy=scores.entropies, is_top1=scores.top, label_mask=mask, aux_loss=None
        )
