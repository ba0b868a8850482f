"""State that is added to checkpoints, and the settings that a resumed training must keep."""

from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError

BATCHES = "gym_trl.batches"
"""Key in the trainer's state, and so in its checkpoints, of the settings of ``batches``."""
GENERATIONS = "gym_trl.generations"
"""Key in the trainer's state of the number of generation batches so far."""
DECLARING = "gym_trl.declaring"
"""Key in the trainer's state of the environments that are known to declare success (``Attachment.declaring``)."""
UNFINISHED = "gym_trl.rollouts"
"""Key in the trainer's state of the progress within the current episodes (``ExactResume``)."""

_SETTINGS = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "steps_per_generation",
    "num_iterations",
    "num_generations",
    "num_processes",
)


def rollouts_file(checkpoint: Path, rank: int) -> Path:
    """Return the path of a process's episodes in a checkpoint.

    >>> rollouts_file(Path("checkpoint-3"), rank=1).name
    'rollouts-1.pt'
    """
    return checkpoint / f"rollouts-{rank}.pt"


def batches(trainer: Any) -> dict[str, int]:
    """Return the settings that determine which tasks a step trains on."""
    owners = (trainer.args, trainer, trainer.accelerator)
    return {name: next(getattr(owner, name) for owner in owners if hasattr(owner, name)) for name in _SETTINGS}


def check_batches(saved: Mapping[str, int], now: Mapping[str, int], step: int) -> None:
    """Check that a training resumed after ``step`` steps has the same tasks, groups and episodes as without a break.

    >>> saved = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 4,
    ...          "num_iterations": 1, "num_generations": 4, "num_processes": 2}
    >>> check_batches(saved, saved, 3)
    >>> halved = {"num_processes": 1, "gradient_accumulation_steps": 2, "steps_per_generation": 8}
    >>> check_batches(saved, saved | halved, 4)
    >>> check_batches(saved, saved | {"steps_per_generation": 2}, 4)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: the checkpoint was saved with steps_per_generation=4 and it is 2 now: ...

    A generation batch with the same number of rows and steps may be divided differently, if ``step`` is at the start of
    one. With another number of processes ``step`` may be within one: its tasks are then played again, with a warning.

    Raises:
        ConfigError: The settings are incompatible; the message names each changed setting, its saved and its new value.
    """
    changed = [name for name in saved if saved[name] != now.get(name)]
    if not changed or (_plan(saved) == _plan(now) and ("num_processes" in changed or step % _plan(now)[1] == 0)):
        return
    values = " and ".join(f"{name}={saved[name]} and it is {now.get(name)} now" for name in changed)
    raise ConfigError(
        f"the checkpoint was saved with {values}: tasks would be left out or trained on twice, and groups split. "
        "Resume with the saved values, or begin a new training from the checkpoint's model"
    )


def _plan(settings: Mapping[str, int]) -> tuple[int, Fraction, int, int]:
    """Return the rows and steps of a generation batch, the group size and the number of iterations."""
    size, accumulation, pieces, iterations, group, processes = (settings[name] for name in _SETTINGS)
    return size * processes * pieces, Fraction(pieces * iterations, accumulation), group, iterations
