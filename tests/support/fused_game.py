"""Game of which a training can be killed, interrupted or broken at a chosen step, and readers of such a training."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gymnasium as gym
import torch
from rich.console import Console

from gym_trl.envs.echo import Echo
from gym_trl.envs.text_env import Outcome
from gym_trl.options import TrainOptions
from gym_trl.records.json_lines import read_json_lines
from gym_trl.training.options import choose
from gym_trl.training.run import train

SMALL: dict[str, Any] = {
    "steps": 5,
    "episodes_per_step": 8,
    "num_generations": 4,
    "eval_episodes": 8,
}
FUSED: dict[str, Any] = {
    **SMALL,
    "max_tokens_per_turn": 3,
    "invalid_penalty": 0.0,
}
JSON = {"config.json", "metrics.jsonl", "rollouts.jsonl", "summary.json"}
FILES = JSON | {"curve.png", "model", "checkpoints", "tokenizer"}
REFERENCES = {
    f"{value}_{name}": number
    for name, numbers in {"random": (0.2, 0.5, 100), "blind": (1.0, 1.0, 200), "optimum": (1.0, 1.0)}.items()
    for value, number in zip(("success", "return", "episodes"), numbers, strict=False)
}
LEVELS = ("before", "after", "after_greedy", "random", "blind", "optimum")


class Fused(Echo):
    """Three small letters are wanted; once, at the ``burns``-th step while the file ``fuse`` exists, it ``does`` it."""

    steps = 0

    def __init__(self, *, fuse: str = "", burns: int = 0, does: str = "", rank: int = 0, **kwargs: Any) -> None:
        super().__init__(reward="length", max_length=3, **kwargs)
        self.fuse, self.burns = Path(fuse), burns
        self.does = does if int(os.environ.get("RANK", "0")) == rank else ""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.does and self.fuse.is_file():
            Fused.steps += 1
            if Fused.steps == self.burns:
                self.fuse.unlink()
                self.burn()
        return super().step(action)

    def _act(self, action: str) -> Outcome:
        share = sum(character.islower() for character in action) / 3
        return Outcome("Thanks.", reward=share, done=True, success=share == 1)

    def burn(self) -> None:
        if self.does == "raise":
            raise RuntimeError("the fuse burnt")
        for name in self.does.split():
            signal.raise_signal(signal.Signals[name])


def options(env: str = "Tests/Fused-v0", **given: Any) -> TrainOptions:
    grpo = {"save_steps": 2, **given.pop("grpo", {})}
    usual = FUSED if env == "Tests/Fused-v0" else {**SMALL, "max_tokens_per_turn": 3}
    return choose(env, **{**usual, "grpo": grpo, **given})


def silent() -> Console:
    return Console(quiet=True)


def lines(folder: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    return list(read_json_lines(folder / name))


def steps(folder: Path) -> list[int]:
    return [line["step"] for line in lines(folder)]


def summary(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return read


def learnt(folder: Path) -> list[tuple[Any, ...]]:
    """Return a step's effect on the model and its input, without the clock."""
    return [tuple(line[name] for name in ("step", "loss", "grad_norm", "reward", "entropy")) for line in lines(folder)]


def played(folder: Path) -> list[tuple[Any, ...]]:
    """Return the episodes on record."""
    records = lines(folder, "rollouts.jsonl")
    return [tuple(record[name] for name in ("step", "split", "greedy", "task", "return")) for record in records]


@contextmanager
def registered() -> Iterator[None]:
    """Register the game, whose references are known without a step of the fuse, and compute with one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    Fused.steps = 0
    gym.register("Tests/Fused-v0", Fused)
    try:
        with patch("gym_trl.training.run.references", lambda options: REFERENCES):
            yield
    finally:
        del gym.registry["Tests/Fused-v0"]
        torch.set_num_threads(threads)


def train_undisturbed(folder: Path) -> Path:
    """Train in a folder without a fuse."""
    with registered():
        train(options(), out=folder, console=silent())
    return folder
