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
from gym_trl.grpo.checkpoints import TRAINED, UNFINISHED, rollouts_file
from gym_trl.grpo.rollout_worker import RolloutWorker

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

    ``AsyncGRPOTrainer`` with ``spec.rollout_worker`` would restart at the first task. There the callback saves which
    groups were trained on; all others are played, including those dropped as too old and those without a scored
    episode. A group of which the trainer has fetched a part counts as trained on, as in TRL. A curriculum resumes at
    its level. TRL's own worker resumes by itself and is not changed.
    """

    def __init__(self) -> None:
        self._trainer: Any = None

    def attach(self, trainer: Any) -> None:
        """Add this callback to ``trainer``."""
        if hasattr(trainer, "rollout_worker"):  # AsyncGRPOTrainer; None except on the main process
            if trainer.rollout_worker is None or isinstance(trainer.rollout_worker, RolloutWorker):
                # Before the trainer's callback that starts the worker.
                trainer.callback_handler.callbacks.insert(0, _Groups(trainer))
            return
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
            trainer.gym_trl.passes.plan(episodes)
            return
        warnings.warn(f"the checkpoint's last tasks are played once more: {problem}", stacklevel=2)


class _Groups(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that keeps the groups ``AsyncGRPOTrainer`` has trained on, over all interruptions."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._before: set[int] = set()  # before this training was resumed

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Restore the state of the trainer and of the worker, which has not started yet."""
        saved = state.stateful_callbacks.get(TRAINED) if state.global_step else None
        self._before = set(range(saved["next"])).difference(saved["left_out"]) if saved else set()
        trainer, worker = self._trainer, self._trainer.rollout_worker
        trl_versions.set_trained_groups(trainer, len(self._before), saved)
        if saved is None:
            if state.global_step:
                warnings.warn("the checkpoint was saved without ExactResume: it begins at the first task", stacklevel=2)
            return
        if worker is not None:  # the main process has it
            worker.state = saved["parts"]
            worker.begin_after(self._before)
            worker.update_model_version(trainer.model_version)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Store the trained groups in the trainer's state, which may be saved now."""
        worker = self._trainer.rollout_worker
        trained = self._before.union(trl_versions.trained_groups(self._trainer))
        end = max(trained, default=-1) + 1
        state.stateful_callbacks[TRAINED] = {
            "next": end,
            "left_out": sorted(set(range(end)) - trained),
            "model_version": self._trainer.model_version,
            "parts": {} if worker is None else worker.state,
        }


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
