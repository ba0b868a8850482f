"""Game of which a training can be killed, interrupted or broken at a chosen step, and readers of such a training."""

import json
import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch

import gymnasium as gym
import torch
from rich.console import Console

from gym_trl.envs.text_game import Step, TextGame
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


class Fused(TextGame):
    """Three small letters are wanted; once, at the ``burns``-th step while the file ``fuse`` exists, it ``does`` it."""

    presets: ClassVar = {"medium": {"turns": 1, "fuse": "", "burns": 0, "does": "", "rank": 0}}
    ranges: ClassVar = {"burns": (0, None), "rank": (0, None)}
    instructions = "Say three small letters."
    steps = 0
    fuse: str
    burns: int
    does: str
    rank: int

    def deal(self) -> None:
        """Every game is the same one."""

    def show(self) -> str:
        """Return the request."""
        return "Say something."

    def play(self, action: str) -> Step:
        """Pay for small letters."""
        if self.does and self.rank == int(os.environ.get("RANK", "0")) and Path(self.fuse).is_file():
            Fused.steps += 1
            if Fused.steps == self.burns:
                Path(self.fuse).unlink()
                self.burn()
        share = sum(character.islower() for character in action) / 3
        return Step("Thanks.", done=True, success=share == 1, reward=share)

    def reject(self, reason: str) -> Step:
        """End the game without a payment."""
        return Step(reason, done=True, valid=False)

    def guess(self, rng: random.Random) -> str:
        """Return random letters."""
        return "".join(rng.choices("abcXYZ", k=3))

    def solve(self) -> str:
        """Return three small letters."""
        return "abc"

    def burn(self) -> None:
        """Do what is to be done."""
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
