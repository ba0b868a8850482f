"""A training that is resumed goes on as if it had not been interrupted."""

import math
import warnings
from functools import cache, wraps
from pathlib import Path
from typing import Any

from gym_trl.errors import MissingDependencyError
from gym_trl.grpo.attach import attach, sampler_of
from gym_trl.grpo.rollout_worker import RolloutWorker
from gym_trl.grpo.saved import TRAINED, UNFINISHED, rollouts_file

try:
    import torch
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingDependencyError("a trainer's callback", extra="train") from error


class ExactResume(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Saves with each checkpoint what TRL forgets, so that no task is trained on twice or left out.

    ::

        trainer = GRPOTrainer(..., rollout_func=spec.rollout_func)
        ExactResume().attach(trainer)
        trainer.train(resume_from_checkpoint=True)

    TRL 1.16 by itself goes on where it was if every step plays episodes of its own (the default) and
    ``shuffle_dataset=False``. This mends the other cases:

    * A checkpoint between two steps that train on the same episodes (``num_iterations``, ``steps_per_generation``)
      does not have those episodes: a resumed training would play their tasks once more, with another model, and
      from then on cut its rollouts at other places. Here they are saved, by each process in a file of its own
      (``rollouts-RANK.pt``: tensors, no code).
    * With ``shuffle_dataset`` a resumed training goes through the tasks in the order of the first epoch, also in later
      ones. Here it draws the order of the epoch that it is in.

    Attach it in the training that is interrupted and in the one that goes on. What is saved is of as many processes as
    there were: with another number of them the episodes are played anew, with a warning. What else would change which
    tasks a step trains on (``steps_per_generation``, ``gradient_accumulation_steps``, ``num_generations``, ...) is
    refused with a ``ConfigError`` that names it; without this class it is at the first rollout. On a CPU the rest of
    the training is the same to the last bit; what was logged over several steps (``logging_steps`` above 1) begins
    anew.

    ``AsyncGRPOTrainer`` with ``spec.rollout_worker`` would begin at the first task again. There it saves which groups
    were trained on; the others are played, also those that were given up as too old or that nobody could score. A group
    of which the trainer has fetched a part counts as trained on, as in TRL. A curriculum goes on at its level. TRL's
    own worker resumes by itself and is left alone.
    """

    def __init__(self) -> None:
        self._trainer: Any = None
        self._checkpoint: str | None = None

    def attach(self, trainer: Any) -> None:
        """Save and restore what ``trainer`` is in the middle of."""
        if hasattr(trainer, "rollout_worker"):  # in AsyncGRPOTrainer; on the main process it is one
            if trainer.rollout_worker is None or isinstance(trainer.rollout_worker, RolloutWorker):
                # Before the callback with which the trainer starts the worker.
                trainer.callback_handler.callbacks.insert(0, _Groups(trainer))
            return
        _know_numbered_cpus()
        attach(trainer)  # whose callback, which checks what was resumed, goes before this one
        self._trainer = trainer
        trainer.add_callback(self)
        train = trainer.train

        @wraps(train)
        def train_from(resume_from_checkpoint: str | bool | None = None, *given: Any, **named: Any) -> Any:
            # No callback is told, and it may be one of another training's folder.
            self._checkpoint = resume_from_checkpoint if isinstance(resume_from_checkpoint, str | Path) else None
            return train(resume_from_checkpoint, *given, **named)

        trainer.train = train_from

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """Go on where the checkpoint was, if there is one."""
        if state.global_step:
            _go_to_epoch(given["train_dataloader"], state.global_step, args.gradient_accumulation_steps)
            if (saved := state.stateful_callbacks.get(UNFINISHED)) is not None and saved["unfinished"]:
                self._restore(saved)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say in the trainer's state, which may be saved now, how far it is with its episodes."""
        state.stateful_callbacks[UNFINISHED] = {
            "micro_steps": self._trainer._step,
            "unfinished": self._unfinished,
            "processes": self._trainer.accelerator.num_processes,
        }

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Save the episodes that are still to be trained on."""
        if self._unfinished:
            file = self._file(self._own_folder)
            file.parent.mkdir(parents=True, exist_ok=True)  # which the first process may not have made here
            new = file.with_suffix(".new")
            torch.save(self._trainer._buffered_inputs, new)
            new.replace(file)

    @property
    def _unfinished(self) -> bool:
        # As in GRPOTrainer._prepare_inputs (trl 1.16).
        trainer = self._trainer
        return bool(trainer._step % (trainer.args.steps_per_generation * trainer.num_iterations))

    @property
    def _own_folder(self) -> Path:
        return Path(self._trainer.args.output_dir, f"checkpoint-{self._trainer.state.global_step}")

    def _file(self, checkpoint: Path) -> Path:
        return rollouts_file(checkpoint, self._trainer.accelerator.process_index)

    def _restore(self, saved: Any) -> None:
        from accelerate.utils import gather_object, send_to_device

        trainer = self._trainer
        file = self._file(self._own_folder if self._checkpoint is None else Path(self._checkpoint))
        if saved["processes"] != trainer.accelerator.num_processes:
            problem = f"it is of {saved['processes']} processes"
        elif not all(gather_object([file.exists()])):  # all processes go the same way, or they wait for ever
            problem = f"{file.parent} has no such file of each process"
        else:
            saved_inputs = torch.load(file, map_location="cpu", weights_only=True)
            trainer._buffered_inputs = send_to_device(saved_inputs, trainer.accelerator.device)
            trainer._step = saved["micro_steps"]
            return
        warnings.warn(f"the checkpoint's last tasks are played once more: {problem}", stacklevel=2)


class _Groups(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Which groups ``AsyncGRPOTrainer`` has trained on, over all interruptions."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._before: set[int] = set()  # this training was resumed

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell the worker, which has not started yet, and the trainer."""
        saved = state.stateful_callbacks.get(TRAINED) if state.global_step else None
        self._before = set(range(saved["next"])).difference(saved["left_out"]) if saved else set()
        # As in AsyncGRPOTrainer._inner_training_loop (trl 1.16), which does it for TRL's own worker only.
        trainer, worker = self._trainer, self._trainer.rollout_worker
        trainer._groups_before_resume, trainer._last_groups_trained = len(self._before), 0
        if saved is None:
            if state.global_step:
                warnings.warn("the checkpoint was saved without ExactResume: it begins at the first task", stacklevel=2)
            return
        trainer._trained_groups.clear()
        trainer.model_version = saved["model_version"]
        if worker is not None:  # the main process has it
            if worker.curriculum is not None and saved["curriculum"] is not None:
                worker.curriculum.state = saved["curriculum"]
            worker.begin_after(self._before)
            worker.update_model_version(trainer.model_version)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say in the trainer's state, which may be saved now, what was trained on."""
        curriculum = getattr(self._trainer.rollout_worker, "curriculum", None)
        trained = self._before | self._trainer._trained_groups
        end = max(trained, default=-1) + 1
        state.stateful_callbacks[TRAINED] = {
            "next": end,
            "left_out": sorted(set(range(end)) - trained),
            "model_version": self._trainer.model_version,
            "curriculum": None if curriculum is None else curriculum.state,
        }


@cache
def _know_numbered_cpus() -> None:
    """Let torch load what several processes on CPUs have saved: Transformers 5.17 asks it to load that to ``cpu:1``."""
    torch.serialization.register_package(
        0, lambda storage: None, lambda storage, location: storage if location.startswith("cpu:") else None
    )


def _go_to_epoch(dataloader: Any, step: int, accumulation: int) -> None:
    """Let the sampler draw the orders of the epochs that are over."""
    sampler = sampler_of(dataloader)
    if getattr(sampler, "shuffle", False):  # as in Trainer._init_training_state (transformers 5.17)
        for _ in range(step // max(1, math.ceil(len(dataloader) / accumulation))):
            next(iter(sampler), None)
