"""gym-trl: ``spec.rollout_func`` with ``executor="thread"`` if environments wait; and the same episodes over HTTP."""

from functools import partial
from typing import Any

from gym_trl import GymSpec
from gym_trl.chat import Chat
from gym_trl.engines.server import ServerEngine
from gym_trl.rollout import Episode, Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.types import Task
from systems import Game, Played, Run
from systems.game import far_away
from systems.generator import CONTEXT, Generator
from systems.trainers import call_rollout_func


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

    return call_rollout_func(game, generator, rollout_func, rewards="return", turns="turns")


def play_served(game: Game, generator: Generator) -> Run:
    """Play as ``rollout_func`` does with a trainer's server: the engine is a ``vllm serve`` in a process of its own."""
    chat, eos = Chat(generator.tokenizer), generator.tokenizer.eos_token_id
    tasks = [Task(game.env_id, seed) for seed in game.seeds]
    with generator.serving() as server, spec_of(game).make_pool() as pool:
        engine = ServerEngine(server.url, eos_ids={eos, *chat.stop_ids}, stop_strings=chat.stop_strings, seeded=False)
        engine.check()
        with server.measured() as counts:
            trajectories = run(
                rollout(
                    tasks,
                    pool=pool,
                    engine=engine,
                    chat=chat,
                    seeds=[derive_seed("served", row) for row in range(len(tasks))],
                    limits=Limits(game.tokens_per_turn, game.tokens, CONTEXT),
                )
            )

    def played(one: Episode) -> Played:
        row = one.row
        seed = generator.seed_of(row.prompt_ids)
        return Played(
            seed, row.prompt_ids, row.completion_ids, row.mask, row.logprobs, one.episode_return, len(one.turns)
        )

    return Run([played(episode) for [episode] in trajectories], counts)
