"""gym-trl: ``spec.rollout_func`` with ``executor="thread"`` if environments wait; and the same episodes over HTTP."""

from functools import partial

from gym_trl import GymSpec, adopt
from gym_trl.chat import Chat
from gym_trl.engines.server import ServerEngine
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import EpisodeResult, Task
from systems import Game, Played, Run
from systems.game import far_away
from systems.generator import CONTEXT, Generator
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
    trainer = make_trainer(game, generator, rollout_func=spec.rollout_func)
    adopt(trainer)  # once a training, as making the trainer
    return call_rollout_func(
        game, generator, spec.rollout_func, rewards="episode_return", turns="num_turns", trainer=trainer
    )


def play_served(game: Game, generator: Generator) -> Run:
    """Play as ``rollout_func`` does with a trainer's server: the engine is a ``vllm serve`` in a process of its own."""
    chat, eos = Chat(generator.tokenizer), generator.tokenizer.eos_token_id
    limits = Limits(game.tokens_per_turn, game.tokens, CONTEXT)
    episodes = [
        Episode(Task(game.env_id, seed), chat=chat, limits=limits, seed=derive_seed("served", row))
        for row, seed in enumerate(game.seeds)
    ]
    with (
        generator.serving() as server,
        ServerEngine(server.url, eos_ids={eos, *chat.stop_ids}, stop_strings=chat.stop_strings, seeded=False) as engine,
        spec_of(game).make_pool() as pool,
    ):
        engine.check()
        with server.measured() as counts:
            trajectories = run_episodes(episodes, pool=pool, engine=engine)

    def played(one: EpisodeResult) -> Played:
        seed = generator.seed_of(one.prompt_ids)
        return Played(
            seed, one.prompt_ids, one.completion_ids, one.mask, one.logprobs, one.episode_return, len(one.turns)
        )

    return Run(list(map(played, trajectories)), counts)
