"""Double of a trainer, with what TRL's has for a rollout and for what is logged of it, and without a model."""

from types import SimpleNamespace

from gym_trl.grpo.attach import Attachment
from gym_trl.grpo.checkpoints import GENERATIONS
from gym_trl.grpo.trainer import GymTraining


class TrainerDouble(GymTraining):
    """Trainer on one of some processes, at a step of a training, with a generation in each, or in an evaluation."""

    def __init__(self, *, rank=0, processes=1, size=4, training=True, step=0):
        self.accelerator = SimpleNamespace(process_index=rank, num_processes=processes, is_main_process=rank == 0)
        self.model = SimpleNamespace(training=training)
        self.num_generations = self.num_generations_eval = size
        self.num_iterations = 1
        self.state = SimpleNamespace(global_step=step, stateful_callbacks={GENERATIONS: step})
        self.args = SimpleNamespace(gradient_accumulation_steps=1, steps_per_generation=1)
        self.callback_handler = SimpleNamespace(callbacks=[], eval_dataloader=None)
        self.rollout_func = self.environments = None
        self.mask_truncated_completions = False
        self._step = 0
        self._metrics: dict[str, dict[str, list[float]]] = {"train": {}, "eval": {}}
        self.gym_trl = Attachment(self)
        self.gym_trl.begin()
