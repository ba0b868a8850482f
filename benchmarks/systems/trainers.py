"""A real ``GRPOTrainer`` around the engine that all systems sample with; nothing is trained."""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

from gym_trl.grpo.dataset import make_dataset
from gym_trl.types import Task
from systems import Game, Played, Run, first_message
from systems.generator import Generator

RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, list[Any]]]


def make_trainer(game: Game, generator: Generator, dataset: Any = None, **options: Any) -> Any:
    """Return a trainer with batches of all episodes and the game's limits, on the existing engine."""
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation import vllm_generation

    llm, made = generator.llm, vllm_generation.LLM
    vllm_generation.LLM = lambda **_: llm
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer = GRPOTrainer(
                model=str(generator.folder),
                train_dataset=dataset or make_dataset([Task(game.env_id, seed) for seed in game.seeds]),
                reward_funcs=lambda completions, **_: [0.0] * len(completions),
                args=GRPOConfig(
                    output_dir=str(generator.folder.parent / "out"),
                    per_device_train_batch_size=len(game.seeds),
                    num_generations=game.group_size,
                    max_completion_length=game.tokens,
                    # TRL's own limit is for all turns together: without this each turn could use all of it.
                    generation_kwargs={"max_tokens": game.tokens_per_turn},
                    use_vllm=True,
                    vllm_mode="colocate",
                    use_cpu=True,
                    bf16=False,
                    report_to=[],
                    disable_tqdm=True,
                ),
                **{"processing_class": generator.tokenizer, **options},
            )
    finally:
        vllm_generation.LLM = made
    trainer.model.train()
    trainer._last_loaded_step = trainer.state.global_step  # the engine has loaded the weights from this folder
    return trainer


def prompts_of(game: Game) -> list[Any]:
    """Return a prompt for each episode, which carries its task."""
    env = game.make()
    observation, _ = env.reset(seed=0)
    rules = first_message(env, observation).rpartition("\n\n")[0]
    tasks = [Task(game.env_id, seed) for seed in game.seeds]
    return list(make_dataset(tasks, instructions={game.env_id: rules})["prompt"])


def seeds_of(prompts: list[Any]) -> list[int]:
    return [Task.from_json(prompt[-1]["task"]).seed for prompt in prompts]


def call_rollout_func(
    game: Game,
    generator: Generator,
    rollout_func: RolloutFunc,
    *,
    rewards: str,
    turns: str | Sequence[int],
    prompts: list[Any] | None = None,
    trainer: Any = None,
) -> Run:
    """Call a rollout function once, as ``GRPOTrainer`` would, and return its columns as rows.

    ``rewards`` and ``turns`` are names of columns; ``turns`` may also be a sequence that the call fills.
    """
    trainer = trainer or make_trainer(game, generator, rollout_func=rollout_func)
    prompts = prompts or prompts_of(game)
    with generator.measured() as counts:
        columns = rollout_func(prompts, trainer)
    turns = columns[turns] if isinstance(turns, str) else turns
    nothing = [None] * len(turns)
    rows = zip(
        columns["prompt_ids"],
        columns["completion_ids"],
        columns.get("env_mask") or nothing,
        columns["logprobs"],
        columns[rewards],
        turns,
        strict=True,
    )
    played = [Played(generator.seed_of(ids), ids, list(said), *rest) for ids, said, *rest in rows]
    return Run(played, counts)
