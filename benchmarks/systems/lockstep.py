"""``rollout_func`` as tutorials write it: turn by turn, steps in sequence or in threads.

Each turn renders the whole conversation anew, and its prompt and completion are appended to those before, as the
``rollout_once`` of TRL's OpenEnv guide does for one episode.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from systems import Game, Run, first_message
from systems.generator import Generator
from systems.trainers import RolloutFunc, call_rollout_func, seeds_of


def play(game: Game, generator: Generator) -> Run:
    """Play turn by turn: all conversations' next responses in one call, then one step after the other."""
    return call_rollout_func(game, generator, turn_by_turn(game, map), rewards="reward", turns="turns")


def play_in_threads(game: Game, generator: Generator) -> Run:
    """Play turn by turn, with the steps of a turn in as many threads as there are episodes."""
    with ThreadPoolExecutor(len(game.seeds)) as threads:
        return call_rollout_func(game, generator, turn_by_turn(game, threads.map), rewards="reward", turns="turns")


def turn_by_turn(game: Game, each: Callable[..., Iterable[Any]]) -> RolloutFunc:
    """Return the function for the trainer; ``each`` is ``map``, or that of threads."""

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        tokenizer = trainer.processing_class
        envs = [game.make() for _ in prompts]
        openings = [env.reset(seed=seed)[0] for env, seed in zip(envs, seeds_of(prompts), strict=True)]
        talks = [[{"role": "user", "content": first_message(*row)}] for row in zip(envs, openings, strict=True)]
        names = ("prompt_ids", "completion_ids", "logprobs")
        columns: dict[str, list[Any]] = {name: [[] for _ in prompts] for name in names}
        columns |= {"reward": [0.0] * len(prompts), "turns": [0] * len(prompts)}
        alive = list(range(len(prompts)))
        while alive:
            asked = [
                tokenizer.apply_chat_template(talks[row], add_generation_prompt=True, return_dict=False)
                for row in alive
            ]
            _, answers, logprobs, _ = trainer.vllm_generation.generate(asked, images=None, num_generations=1)
            texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
            results = list(each(_step, [envs[row] for row in alive], texts))
            told = zip(alive, asked, answers, logprobs, texts, results, strict=True)
            for row, prompt, ids, nats, text, (observation, reward, _) in told:
                for name, more in zip(names, (prompt, ids, [nat[0] for nat in nats]), strict=True):
                    columns[name][row].extend(more)
                talks[row] += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
                columns["reward"][row] += reward
                columns["turns"][row] += 1
            alive = [row for row, (_, _, over) in zip(alive, results, strict=True) if not over]
        return columns

    return rollout_func


def _step(env: Any, text: str) -> tuple[str, float, bool]:
    observation, reward, terminated, truncated, _ = env.step(text)
    return observation, float(reward), terminated or truncated
