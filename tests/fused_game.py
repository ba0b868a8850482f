"""Game of which a training can be killed or interrupted at a chosen step, and readers of its run."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym

from gym_trl.records import read_lines
from gym_trl.training import train

SMALL: dict[str, Any] = {
    "steps": 5,
    "groups": 2,
    "num_generations": 4,
    "eval_episodes": 4,
    "save_steps": 2,
    "max_tokens_per_turn": 3,
    "invalid_penalty": 0.0,
    "turn_limit": 1,
    "executor": "inline",  # in the main thread, which gets the signals
}
FILES = {"config.json", "metrics.jsonl", "rollouts.jsonl", "summary.json", "curve.png", "model", "checkpoints"}
HERE = f"{__file__}:Fused"
WORDS = gym.spaces.Text(9, charset="".join(map(chr, range(32, 127))), min_length=0)


class Fused(gym.Env[str, str]):
    """Small letters are paid; at the ``burns``-th step, which the file ``fuse`` counts, it sends itself signals."""

    observation_space = action_space = WORDS

    def __init__(self, fuse: str = "", burns: int = 0, sends: str = "", rank: int = 0) -> None:
        self.fuse, self.burns, self.sends, self.rank = fuse, burns, sends, rank

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Ask for letters."""
        super().reset(seed=seed)
        return "Say something.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Pay for small letters."""
        fuse = Path(self.fuse)
        if self.sends and self.rank == int(os.environ.get("RANK", "0")) and fuse.is_file():
            fuse.write_text(str(count := int(fuse.read_text() or 0) + 1))
            if count == self.burns:
                fuse.unlink()
                for name in self.sends.split():
                    signal.raise_signal(signal.Signals[name])
        share = sum(character.islower() for character in action) / 3
        return "Thanks.", share, True, False, {"success": share >= 1}


def has_won(info: Mapping[str, Any], total: float) -> bool:
    """Return False: nobody wins."""
    return False


def train_fused(out: Path, **given: Any) -> dict[str, Any]:
    """Train the tiny model on the game in a few seconds."""
    return train(HERE, out=out, **{**SMALL, **given})


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines."""
    return [line for _, line in read_lines(folder / name)]


def summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a run."""
    read: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return read


def learnt(folder: Path) -> list[tuple[Any, ...]]:
    """Return a step's effect on the model and its input, without the clock."""
    return [tuple(line[name] for name in ("step", "loss", "grad_norm", "reward", "entropy")) for line in lines(folder)]


def played(folder: Path) -> list[tuple[Any, ...]]:
    """Return the episodes on record."""
    names = ("step", "split", "group", "attempt", "return")
    return [tuple(one[name] for name in names) for one in lines(folder, "rollouts.jsonl")]
