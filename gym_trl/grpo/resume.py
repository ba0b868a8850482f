"""Exact resume of an interrupted training."""

import math
import warnings
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

from gym_trl.errors import needs
from gym_trl.files import replace_bytes
from gym_trl.grpo import trl_versions
from gym_trl.grpo.adopt import adopt
from gym_trl.grpo.checkpoints import UNFINISHED, rollouts_file

with needs("train", "a trainer's callback"):
    import torch
    from transformers import TrainerCallback


class ExactResume(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that adds the state TRL omits to each checkpoint, so that no task is trained on twice or left out.

    ::

        trainer = GymGRPOTrainer(..., spec=spec)
        ExactResume().attach(trainer)
        trainer.train(resume_from_checkpoint=True)

    TRL 1.16 alone resumes exactly if every step plays its own episodes (the default) and ``shuffle_dataset=False``.
    This callback adds the other cases:

    * A checkpoint between two steps that train on the same episodes (``num_iterations``, ``steps_per_generation``)
      does not contain these episodes: TRL would play their tasks again with another model, and cut all later rollouts
      at other places. The callback saves the episodes, one file per process (``rollouts-RANK.pt``: tensors, no code).
    * With ``shuffle_dataset`` TRL always resumes in the order of the first epoch, even in later epochs. The callback
      restores the order of the current epoch.

    Attach it both in the training that is interrupted and in the one that resumes. The saved episodes require the same
    number of processes; with another number the episodes are played again, with a warning. Any other setting that
    changes which tasks a step trains on (``steps_per_generation``, ``gradient_accumulation_steps``,
    ``num_generations``, ...) is rejected with a ``ConfigError`` that names it; without this callback this happens at
    the first rollout. On a CPU the rest of the training is then identical to the last bit. Averages logged over several
    steps (``logging_steps`` above 1) start anew.
    """

    def __init__(self) -> None:
        self._trainer: Any = None

    def attach(self, trainer: Any) -> None:
        """Add this callback to ``trainer``."""
        _know_numbered_cpus()
        self._trainer = adopt(trainer)  # first, because its callback checks the resumed settings
        trainer.add_callback(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        """Restore the state of the checkpoint if the training is resumed."""
        if state.global_step:
            _go_to_epoch(others["train_dataloader"], state.global_step, args.gradient_accumulation_steps)
            if (saved := state.stateful_callbacks.get(UNFINISHED)) is not None and saved["unfinished"]:
                self._restore(saved)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the progress within the current episodes in the trainer's state, which may be saved now."""
        state.stateful_callbacks[UNFINISHED] = {
            "micro_steps": trl_versions.micro_step(self._trainer),
            "unfinished": self._unfinished,
            "processes": self._trainer.accelerator.num_processes,
        }

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the episodes that are not trained on completely."""
        if self._unfinished:
            file = self._file(self._own_folder)
            file.parent.mkdir(parents=True, exist_ok=True)  # the first process may not have made it on this machine
            content = BytesIO()
            torch.save(trl_versions.buffered_episodes(self._trainer), content)
            replace_bytes(file, content.getbuffer())

    @property
    def _unfinished(self) -> bool:
        return not trl_versions.is_between_generations(self._trainer)

    @property
    def _own_folder(self) -> Path:
        return Path(self._trainer.args.output_dir, f"checkpoint-{self._trainer.state.global_step}")

    def _file(self, checkpoint: Path) -> Path:
        return rollouts_file(checkpoint, self._trainer.accelerator.process_index)

    def _restore(self, saved: Any) -> None:
        from accelerate.utils import gather_object, send_to_device

        trainer = self._trainer
        file = self._file(trainer.gym_trl.resumed_from or self._own_folder)
        if saved["processes"] != trainer.accelerator.num_processes:
            problem = f"it is of {saved['processes']} processes"
        elif not all(gather_object([file.exists()])):  # all processes must decide alike, or they deadlock
            problem = f"{file.parent} has no such file of each process"
        else:
            saved_inputs = torch.load(file, map_location="cpu", weights_only=True)
            episodes = send_to_device(saved_inputs, trainer.accelerator.device)
            trl_versions.set_progress(trainer, saved["micro_steps"], episodes)
            return
        warnings.warn(f"the checkpoint's last tasks are played once more: {problem}", stacklevel=2)


@cache
def _know_numbered_cpus() -> None:
    """Make torch accept ``cpu:1`` as a location, which Transformers 5.17 uses to load what CPU processes have saved."""
    torch.serialization.register_package(
        0, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
    )


def _go_to_epoch(dataloader: Any, step: int, accumulation: int) -> None:
    """Advance the sampler past the orders of the finished epochs."""
    sampler = trl_versions.sampler_of(dataloader)
    if getattr(sampler, "shuffle", False):  # as in Trainer._init_training_state (transformers 5.17)
        for _ in range(step // max(1, math.ceil(len(dataloader) / accumulation))):
            next(iter(sampler), None)
