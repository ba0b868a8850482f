"""Dry run: two full-length steps that measure peak memory before a long training."""

import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from gym_trl.engines.sample_all import sample_all
from gym_trl.errors import ConfigError
from gym_trl.grpo.adopt import adopt
from gym_trl.grpo.parts.part import parts_of
from gym_trl.grpo.trainer_engine import context_length, trainer_engine
from gym_trl.types import Completion, Request


class PeakMemory(NamedTuple):
    """Peak memory of a process in bytes, and the sizes that it was measured with.

    >>> print(PeakMemory(device=3 << 30, reserved=4 << 30, process=2 << 30, prompt=200, completion=512, seconds=9))
    3.0 GiB on the device (4.0 GiB reserved), 2.0 GiB in main memory; 9.0 s a step with 200 + 512 tokens a row
    """

    device: int | None
    """Tensors on this process's GPU; ``None`` without a GPU. vLLM's own memory is not included."""
    reserved: int | None
    """GPU memory that PyTorch reserved for them."""
    process: int
    """Main memory, since the start of the process."""
    prompt: int
    """Length of the longest prompt, in tokens."""
    completion: int
    """Length of the longest completion, in tokens."""
    seconds: float
    """Duration of the last step, including its rollout."""

    def __str__(self) -> str:
        """Format the figures as one line."""
        gib = {name: f"{value / 2**30:.1f} GiB" for name, value in self._asdict().items() if name in _BYTES and value}
        on_device = f"{gib['device']} on the device ({gib['reserved']} reserved), " if self.device else ""
        rows = f"{self.prompt} + {self.completion} tokens a row"
        return f"{on_device}{gib.get('process', '0')} in main memory; {self.seconds:.1f} s a step with {rows}"


_BYTES = ("device", "reserved", "process")


def prepare(trainer: Any, *, steps: int = 2) -> PeakMemory:
    """Train for some steps on completions of full length without changing a weight, and return the peak memory.

    ::

        trainer = GymGRPOTrainer(..., spec=spec)
        print(prepare(trainer))   # then make the trainer again and train

    An untrained model often responds in a few tokens, so a training may start well and run out of memory hours later.
    Here each row's prompt comes from the trainer's ``rollout_func``, and its completion is continued to
    ``max_completion_length`` or to the end of the context. The first step creates the optimizer's state, so the peak
    occurs in the second. The learning rate is 0 and nothing is saved. The trainer cannot be used afterwards. Prompts
    longer than those of the dry run need more memory.

    Args:
        trainer: Trainer with a ``rollout_func``.
        steps: Number of steps, at least 2, so that one step runs with the optimizer's state.

    Raises:
        ConfigError: The trainer has no ``rollout_func``, or ``steps`` is below 2.
        torch.OutOfMemoryError: The training would run out of memory.
    """
    if getattr(trainer, "rollout_func", None) is None:
        raise ConfigError("prepare needs a trainer with a rollout_func: GRPOTrainer(rollout_func=spec.rollout_func)")
    if steps < 2:
        raise ConfigError(f"steps must be at least 2, got {steps}: the optimizer has no state in the first")
    adopt(trainer)
    for part in parts_of(trainer.rollout_func):
        if part.no_dry_run:
            raise ConfigError(part.no_dry_run)
    import torch

    rehearsal = _Rehearsal(trainer)
    trainer.rollout_func = rehearsal
    _train_nothing(trainer, steps)
    if on_gpu := torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    started = time.monotonic()
    trainer.train()
    last = rehearsal.started[-1] if rehearsal.started else started
    return PeakMemory(
        device=torch.cuda.max_memory_allocated() if on_gpu else None,
        reserved=torch.cuda.max_memory_reserved() if on_gpu else None,
        process=_peak_bytes(),
        prompt=rehearsal.prompt,
        completion=rehearsal.completion,
        seconds=time.monotonic() - last,
    )


class _Rehearsal:
    """``rollout_func`` that replaces the completions by ones of maximum length."""

    def __init__(self, trainer: Any) -> None:
        self._play = trainer.rollout_func
        self.started: list[float] = []
        self.prompt = self.completion = 0

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        self.started.append(time.monotonic())
        columns: Mapping[str, Any] = self._play(prompts, trainer)
        completions = _longest_completions(columns["prompt_ids"], trainer)
        self.prompt = max(self.prompt, *map(len, columns["prompt_ids"]))
        self.completion = max(self.completion, *(len(completion.ids) for completion in completions))
        return {
            **columns,
            "completion_ids": [completion.ids for completion in completions],
            "logprobs": [completion.logprobs for completion in completions],
            "env_mask": [[1] * len(completion.ids) for completion in completions],
        }


def _peak_bytes() -> int:
    """Return the peak main memory of this process."""
    try:
        import resource
    except ImportError:  # on Windows
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _longest_completions(prompts: list[list[int]], trainer: Any) -> list[Completion]:
    context = context_length(trainer) or sys.maxsize
    longest = trainer.args.max_completion_length
    with trainer_engine(trainer, None, {"ignore_eos": True}) as engine:
        requests = [
            Request(str(row), ids, max(1, min(longest, context - len(ids))), seed=row)
            for row, ids in enumerate(prompts)
        ]
        return sample_all(engine, requests)


def _train_nothing(trainer: Any, steps: int) -> None:
    from transformers import TrainerCallback

    class Nothing(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        """Callback that prevents saving and evaluating; it is added last and so overrides the others."""

        def _refuse(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = control.should_evaluate = False

        on_step_end = on_epoch_end = on_train_end = _refuse

    trainer.add_callback(Nothing())
    trainer.args.max_steps = steps
    trainer.args.learning_rate = 0.0
    for group in getattr(trainer.optimizer, "param_groups", ()):
        group["lr"] = 0.0
