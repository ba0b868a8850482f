"""gym-trl: ``spec.rollout_func`` as a user gets it, with one word for environments that wait: ``executor="thread"``."""

from functools import partial

from gym_trl import GymSpec
from gym_trl.grpo.dataset import make_dataset
from gym_trl.types import Task
from systems import Game, Run
from systems.game import far_away
from systems.generator import Generator
from systems.trainers import as_played, make_trainer, prompts_of


def spec_of(game: Game) -> GymSpec:
    """Return the spec of the game, as a user writes it."""
    return GymSpec(
        game.env_id,
        env_kwargs=game.kwargs,
        wrappers=[partial(far_away, latency_s=game.latency_s, turns=game.turns)],
        action_format=None,  # the game reads its actions itself, as for all
        max_tokens_per_turn=game.tokens_per_turn,
        executor="thread" if game.latency_s else "inline",
    )


def play(game: Game, generator: Generator) -> Run:
    """Play all episodes in one call."""
    spec = spec_of(game)
    rows = make_dataset([Task(game.env_id, seed) for seed in game.seeds])
    trainer = make_trainer(game, generator, rows, rollout_func=spec.rollout_func)
    prompts = prompts_of(game)
    with generator.measured() as counts:
        columns = spec.rollout_func(prompts, trainer)
    return Run(as_played(generator, columns, "episode_return", columns["num_turns"]), counts)
