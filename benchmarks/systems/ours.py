"""gym-trl: ``spec.rollout_func`` with ``executor="thread"`` if environments wait."""

from functools import partial
from typing import Any

from gym_trl import GymSpec
from systems import Game, Run
from systems.game import far_away
from systems.generator import Generator
from systems.trainers import call_rollout_func, make_trainer


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
    spec = spec_of(game)

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        columns = spec.rollout_func(prompts, trainer)
        returns = [episode.episode_return for episode in columns["episode"]]
        return columns | {"return": returns, "turns": [len(episode.turns) for episode in columns["episode"]]}

    trainer = make_trainer(game, generator, rollout_func=rollout_func)
    trainer.vllm_generation.generation_kwargs = {}  # the spec has the limit of a turn
    return call_rollout_func(game, generator, rollout_func, rewards="return", turns="turns", trainer=trainer)
