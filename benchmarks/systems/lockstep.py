# mypy: allow-untyped-calls
"""A ``rollout_func`` turn by turn, as tutorials write it: all conversations' next answers in one call, then all steps.

Each turn renders the whole conversation anew and is appended to what was there, prompt to prompt and completion to
completion, as the ``rollout_once`` of TRL's OpenEnv guide does for one episode.
"""

from collections.abc import Callable, Iterable
from typing import Any

from gym_trl.grpo.dataset import make_dataset
from gym_trl.types import Task
from systems import Game, Run, first_message
from systems.generator import Generator
from systems.trainers import RolloutFunc, as_played, make_trainer, prompts_of, seeds_of

NOTES = (
    "its environments get their seeds from the prompts, which is our addition: tutorials reset without one",
    "generate_rollout_completions, which TRL no longer has, is trainer.vllm_generation.generate",
)


def play(game: Game, generator: Generator) -> Run:
    """Step environments one after the other."""
    return play_in_lockstep(game, generator, each=map)


def play_in_lockstep(game: Game, generator: Generator, *, each: Callable[..., Iterable[Any]]) -> Run:
    """Play in lockstep; ``each`` is ``map``, or that of threads."""
    turns: list[int] = []
    rollout_func = turn_by_turn(game, turns, each)
    rows = make_dataset([Task(game.env_id, seed) for seed in game.seeds])
    trainer = make_trainer(game, generator, rows, rollout_func=rollout_func)
    prompts = prompts_of(game)
    with generator.measured() as counts:
        columns = rollout_func(prompts, trainer)
    return Run(as_played(generator, columns, "reward", turns), counts)


def turn_by_turn(game: Game, turns: list[int], each: Callable[..., Iterable[Any]]) -> RolloutFunc:
    """Return the function for the trainer; it writes each episode's number of turns into ``turns``."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        tokenizer = trainer.processing_class
        seeds = seeds_of(prompts)
        envs = [game.make() for _ in prompts]
        openings = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds, strict=True)]
        talks = [
            [{"role": "user", "content": first_message(env, opening)}]
            for env, opening in zip(envs, openings, strict=True)
        ]
        columns: dict[str, list[Any]] = {
            name: [[] for _ in prompts] for name in ("prompt_ids", "completion_ids", "logprobs")
        }
        rewards = [0.0] * len(prompts)
        turns[:] = [0] * len(prompts)
        alive = list(range(len(prompts)))
        while alive:
            asked = [
                tokenizer.apply_chat_template(talks[row], add_generation_prompt=True, return_dict=False)
                for row in alive
            ]
            _, answers, logprobs, _ = trainer.vllm_generation.generate(asked, images=None, num_generations=1)
            texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
            replies = list(each(_step, [envs[row] for row in alive], texts))
            told = zip(alive, asked, answers, logprobs, texts, replies, strict=True)
            for row, prompt, ids, nats, text, (observation, reward, _) in told:
                columns["prompt_ids"][row].extend(prompt)
                columns["completion_ids"][row].extend(ids)
                columns["logprobs"][row].extend(nat[0] for nat in nats)
                talks[row] += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
                rewards[row] += reward
                turns[row] += 1
            alive = [row for row, (_, _, over) in zip(alive, replies, strict=True) if not over]
        return {**columns, "reward": rewards}

    return rollout_func


def _step(env: Any, text: str) -> tuple[str, float, bool]:
    observation, reward, terminated, truncated, _ = env.step(text)
    return observation, float(reward), terminated or truncated
