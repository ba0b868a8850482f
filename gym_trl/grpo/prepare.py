"""A rehearsal before a long training: two steps at full length, which say what memory it will need."""

import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError, EngineError
from gym_trl.grpo.rollout_func import _context, trainer_engine
from gym_trl.types import Completion, FinishReason, Request


class PeakMemory(NamedTuple):
    """The most that a process used, in bytes.

    >>> print(PeakMemory(device=3 << 30, reserved=4 << 30, process=2 << 30, prompt=200, completion=512, seconds=9))
    3.0 GiB on the device (4.0 GiB reserved), 2.0 GiB in main memory; 9.0 s a step with 200 + 512 tokens a row
    """

    device: int | None
    """Tensors on this process's GPU; ``None`` without one. vLLM's own memory is not among them."""
    reserved: int | None
    """What PyTorch took of the GPU to hold them."""
    process: int
    """Main memory, since the process began."""
    prompt: int
    """The longest prompt, in tokens."""
    completion: int
    """The longest completion, in tokens."""
    seconds: float
    """The last step, with its rollout."""

    def __str__(self) -> str:
        """The figures in words."""
        gib = {name: f"{value / 2**30:.1f} GiB" for name, value in self._asdict().items() if name in _BYTES and value}
        on_device = f"{gib['device']} on the device ({gib['reserved']} reserved), " if self.device else ""
        rows = f"{self.prompt} + {self.completion} tokens a row"
        return f"{on_device}{gib.get('process', '0')} in main memory; {self.seconds:.1f} s a step with {rows}"


_BYTES = ("device", "reserved", "process")


def prepare(trainer: Any, *, steps: int = 2) -> PeakMemory:
    """Train for some steps on completions of full length, change no weight, and say how much memory that took.

    ::

        trainer = GRPOTrainer(..., rollout_func=spec.rollout_func)
        print(prepare(trainer))   # then make the trainer again and train

    An untrained model often answers in a few tokens, and the training that began well runs out of memory hours later.
    Here each row's prompt is what the trainer's ``rollout_func`` made, and its completion goes on to
    ``max_completion_length``, or as far as the context reaches. The first step makes the optimiser's state, so the peak
    is in the second. The learning rate is 0 and nothing is saved. The trainer is used up afterwards. A prompt longer
    than any that was met costs more.

    Args:
        trainer: With a ``rollout_func``.
        steps: At least 2, so that a step with the optimiser's state is among them.

    Raises:
        ConfigError: a trainer without ``rollout_func``, or fewer than two steps.
        torch.OutOfMemoryError: what the training would have raised later.
    """
    if getattr(trainer, "rollout_func", None) is None:
        raise ConfigError("prepare needs a trainer with a rollout_func: GRPOTrainer(rollout_func=spec.rollout_func)")
    if steps < 2:
        raise ConfigError(f"steps must be at least 2, got {steps}: the first has no state of the optimiser's yet")
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
    """A ``rollout_func`` whose completions are as long as any can be."""

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
    """The most that this process has held."""
    try:
        import resource
    except ImportError:  # on Windows
        import psutil

        return int(psutil.Process().memory_info().peak_wset)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _longest_completions(prompts: list[list[int]], trainer: Any) -> list[Completion]:
    context = _context(trainer) or sys.maxsize
    done: dict[str, Completion] = {}
    with trainer_engine(trainer, None, {"ignore_eos": True}) as engine:
        for row, ids in enumerate(prompts):
            room = min(trainer.args.max_completion_length, context - len(ids))
            engine.submit(Request(str(row), ids, max(1, room), seed=row))
        while len(done) < len(prompts):
            for completion in engine.collect(block=True):
                if completion.finish not in (FinishReason.STOP, FinishReason.LENGTH):
                    raise EngineError(f"a completion of full length failed: {completion.error}")
                done[completion.request_id] = completion
    return [done[str(row)] for row in range(len(prompts))]


def _train_nothing(trainer: Any, steps: int) -> None:
    from transformers import TrainerCallback

    class Nothing(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        """Neither saves nor evaluates, whatever asked for it: the last callback has the last word."""

        def _refuse(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_save = control.should_evaluate = False

        on_step_end = on_epoch_end = on_train_end = _refuse

    trainer.add_callback(Nothing())
    trainer.args.max_steps = steps
    trainer.args.learning_rate = 0.0
    for group in getattr(trainer.optimizer, "param_groups", ()):
        group["lr"] = 0.0
