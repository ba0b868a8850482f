"""trl-env's callback that saves and logs by wall-clock time."""

import time
from typing import Any

from gym_trl.errors import needs

with needs("train", "timed_callback"):
    import torch
    from transformers import TrainerCallback


class _TimedCallback(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that saves and logs when a number of seconds has passed since the last time."""

    def __init__(self, save_every_seconds: float, log_every_seconds: float) -> None:
        self._every = {"should_save": save_every_seconds, "should_log": log_every_seconds}
        self._last = dict.fromkeys(self._every, time.monotonic())

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Request what is due by the clock of the first process, alike on all processes."""
        now = time.monotonic()
        due = [now - self._last[name] >= seconds for name, seconds in self._every.items()]
        if args.world_size > 1:
            decided = torch.tensor(due, device=args.device, dtype=torch.uint8)
            torch.distributed.broadcast(decided, src=0)
            due = decided.bool().tolist()
        for name, is_due in zip(self._every, due, strict=True):
            if is_due:
                setattr(control, name, True)
                self._last[name] = now


def timed_callback(save_every_seconds: float, log_every_seconds: float) -> Any:
    """Return a callback that saves and logs by wall-clock time, at the end of a step.

    >>> from transformers import TrainerControl
    >>> control = TrainerControl()
    >>> timed_callback(3600, 0).on_step_end(type("Alone", (), {"world_size": 1}), None, control)
    >>> control.should_save, control.should_log
    (False, True)

    Args:
        save_every_seconds: Seconds between two checkpoints.
        log_every_seconds: Seconds between two entries of the log; 0 logs every step.
    """
    return _TimedCallback(save_every_seconds, log_every_seconds)
