"""The ``rollout_func`` of TRL's OpenEnv guide: one episode, then the next."""

from typing import Any

from gym_trl.grpo.dataset import make_dataset
from gym_trl.types import Task
from systems import Game, Run
from systems.generator import Generator
from systems.lockstep import NOTES, turn_by_turn
from systems.trainers import RolloutFunc, as_played, make_trainer, prompts_of

__all__ = ["NOTES", "play"]


def play(game: Game, generator: Generator) -> Run:
    """Generate each prompt separately."""
    turns: list[int] = []
    rollout_func = _one_by_one(game, turns)
    rows = make_dataset([Task(game.env_id, seed) for seed in game.seeds])
    trainer = make_trainer(game, generator, rows, rollout_func=rollout_func)
    prompts = prompts_of(game)
    with generator.measured() as counts:
        columns = rollout_func(prompts, trainer)
    return Run(as_played(generator, columns, "reward", turns), counts)


def _one_by_one(game: Game, turns: list[int]) -> RolloutFunc:
    own: list[int] = []
    rollout_once = turn_by_turn(game, own, map)

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        columns: dict[str, list[Any]] = {}
        for prompt in prompts:
            for name, [row] in rollout_once([prompt], trainer).items():
                columns.setdefault(name, []).append(row)
            turns.extend(own)
        return columns

    return rollout_func
