"""An environment of one's own, in thirty lines of plain Gymnasium, and a training on it.

$ python recipes/own_environment.py                              # no download and no GPU, a minute on one core
$ gym-trl check recipes/own_environment.py:Warmer             # what to mend before a training
$ python recipes/own_environment.py --model Qwen/Qwen3-0.6B      # a pretrained model, for a GPU

Mean success of the steps before, with seed 42 of GRPOConfig, by step (2026-11-26, two cores of an AMD EPYC):

    step       4    20    40   100   150   200
    success 0.06  0.17  0.26  0.28  0.28  0.29

It learns to answer with a place, and in 200 steps not to use the distance: a random place each time wins 0.30, and the
distance is enough to win always. `--steps 500` continues the run.
"""

import argparse
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.models import fast_dtype
from gym_trl.recording import RecordRun
from gym_trl.testing import tiny_model, tiny_tokenizer


class Warmer(gym.Env[Any, Any]):
    """Find the hidden place on a line of nine."""

    instructions = (
        "Find the hidden place on a line of nine. You see the tries left and the distance of your last guess."
    )
    observation_space = gym.spaces.Box(0, 9, (2,), int)
    action_space = gym.spaces.Discrete(9, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Hide the place. All that is random comes from ``self.np_random``, so a seed is a task."""
        super().reset(seed=seed)
        self.hidden = int(self.np_random.integers(1, 10))
        self.tries, self.last = 3, 0
        return self.show(), {}

    def step(self, action: int) -> Any:
        """Guess a place. ``success`` declares what counts as solved; without it only returns are reported."""
        self.tries, self.last = self.tries - 1, int(action)
        hit = self.last == self.hidden
        return self.show(), float(hit), hit, self.tries == 0 and not hit, {"success": hit}

    def show(self) -> Any:
        """Return the tries left and the distance of the last guess, 0 before the first."""
        return np.array([self.tries, abs(self.hidden - self.last) if self.last else 0])


def observe(shown: Any, info: dict[str, Any]) -> str:
    """Return an observation as text; without this function it would be the numbers of the box."""
    tries, distance = shown
    return f"{tries} left." + (f" {distance} away." if distance else "")


if __name__ == "__main__":  # so that gym-trl check can import the file
    parser = argparse.ArgumentParser(description="Train on an environment of one's own.")
    parser.add_argument("--steps", type=int, default=200, help="number of steps")
    parser.add_argument("--model", help="folder or hub id of a pretrained model (default: a tiny one, random weights)")
    parser.add_argument("--output", type=Path, default=Path("runs/recipes/own_environment"), help="folder of the run")
    args = parser.parse_args()
    tiny = args.model is None

    text: dict[str, Any] = {"max_tokens_per_turn": 256, "invalid_penalty": 0.1}
    if tiny:  # it cannot read instructions, and its response is one character
        text = {"action_format": "open", "instructions": "", "max_tokens_per_turn": 1}
        text |= {"invalid_penalty": 0.2}
    record = RecordRun(args.output)
    spec = GymSpec(Warmer, observe=observe, num_tasks=512, num_eval_tasks=0, on_rollout=record.on_rollout, **text)

    tokenizer = tiny_tokenizer() if tiny else None
    trainer = GymGRPOTrainer(
        model=tiny_model(tokenizer) if tiny else args.model,
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(args.output),
            max_steps=args.steps,
            per_device_train_batch_size=128 if tiny else 8,
            gradient_accumulation_steps=1 if tiny else 16,
            num_generations=16,  # episodes of a group, all with the same hidden place
            max_completion_length=128 if tiny else 1024,  # tokens of a whole episode, observations included
            learning_rate=2e-3 if tiny else 1e-6,
            lr_scheduler_type="linear",
            scale_rewards="none",
            beta=0.0,
            entropy_coef=0.02 if tiny else 0.0,  # without it the tiny model would soon stop trying
            gradient_checkpointing=not tiny,
            use_cpu=tiny,
            bf16=not tiny and fast_dtype() == "bfloat16",
            save_steps=max(1, args.steps // 4),
            save_total_limit=2,
            logging_steps=max(1, args.steps // 50),
            report_to=[],
        ),
        spec=spec,
        callbacks=[record],
    )
    if tiny:
        torch.set_num_threads(1)  # a tiny model's operations end before further threads have begun
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output) if args.output.is_dir() else None)
    trainer.save_model(str(args.output / "model"))
    print(f"Look at it: gym-trl view {args.output}")
