"""gym-trl with a ``ServerEngine``: the same episodes, sampled by a ``vllm serve`` in a process of its own."""

from gym_trl.chat.template import TemplateChat
from gym_trl.engines.server import ServerEngine
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import Task
from systems import Game, Played, Run
from systems.generator import CONTEXT, Generator
from systems.ours import spec_of

NOTES = ("its own loop and engine, without a trainer, whose server mode sends the weights to a GPU",)


def play(game: Game, generator: Generator) -> Run:
    """Play as ``rollout_func`` does with a trainer's server."""
    chat, eos = TemplateChat(generator.tokenizer), generator.tokenizer.eos_token_id
    limits = Limits(game.tokens_per_turn, game.tokens, CONTEXT)
    episodes = [
        Episode(Task(game.env_id, seed), chat=chat, limits=limits, seed=derive_seed("served", row))
        for row, seed in enumerate(game.seeds)
    ]
    with (
        generator.serving() as server,
        ServerEngine(server.url, eos_ids={eos, *chat.stop_ids}, stop_strings=chat.stop_strings) as engine,
        spec_of(game).make_pool() as pool,
    ):
        engine.check()
        with server.measured() as counts:
            trajectories = run_episodes(episodes, pool=pool, engine=engine)
    played = [
        Played(
            generator.seed_of(one.prompt_ids),
            one.prompt_ids,
            one.completion_ids,
            one.mask,
            one.logprobs,
            one.episode_return,
            len(one.turns),
        )
        for one in trajectories
    ]
    return Run(played, counts)
