"""What a checkpoint holds beside what the trainer saves."""

from pathlib import Path

UNFINISHED = "gym_trl.rollouts"
"""What the trainer's state says of episodes that are still to be trained on."""


TRAINED = "gym_trl.groups"
"""What it says of the groups that an asynchronous training has been through."""


def rollouts_file(checkpoint: Path, rank: int) -> Path:
    """Where a checkpoint has those of a process.

    >>> rollouts_file(Path("checkpoint-3"), rank=1).name
    'rollouts-1.pt'
    """
    return checkpoint / f"rollouts-{rank}.pt"
