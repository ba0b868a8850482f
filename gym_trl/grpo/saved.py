"""Names of the state that ``ExactResume`` adds to a checkpoint."""

from pathlib import Path

UNFINISHED = "gym_trl.rollouts"
"""Key in the trainer's state of the progress within the current episodes."""


TRAINED = "gym_trl.groups"
"""Key in the trainer's state of the groups that an asynchronous training has trained on."""


def rollouts_file(checkpoint: Path, rank: int) -> Path:
    """Return the path of a process's episodes in a checkpoint.

    >>> rollouts_file(Path("checkpoint-3"), rank=1).name
    'rollouts-1.pt'
    """
    return checkpoint / f"rollouts-{rank}.pt"
