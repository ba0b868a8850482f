"""The tiny model learns Kuhn poker by playing both seats against itself, close to the Nash equilibrium.

$ python recipes/kuhn_poker.py                              # no download and no GPU, under an hour on one core
$ python recipes/kuhn_poker.py --steps 300                  # it has learned not to fold a king
$ python recipes/kuhn_poker.py --model Qwen/Qwen3-0.6B      # a pretrained model, for a GPU
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from transformers import TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.models import fast_dtype
from gym_trl.recording import RecordRun
from gym_trl.records import read_records
from gym_trl.testing import tiny_model, tiny_tokenizer

parser = argparse.ArgumentParser(description="Learn Kuhn poker by self-play.")
parser.add_argument("--steps", type=int, default=1500, help="number of steps")
parser.add_argument("--model", help="folder or hub id of a pretrained model (default: a tiny one from random weights)")
parser.add_argument("--output", type=Path, default=Path("runs/recipes/kuhn_poker"), help="folder of the run")
args = parser.parse_args()
tiny = args.model is None


def one_letter(env: gym.Env[str, str]) -> gym.Env[str, str]:
    """Return the game with the actions p and b, which random characters find once in fifty turns."""
    words = {"p": "pass", "b": "bet"}
    return gym.wrappers.TransformAction(env, lambda action: words.get(action, action), env.action_space)


text: dict[str, Any] = {"max_tokens_per_turn": 256, "invalid_penalty": 0.5}
if tiny:  # it cannot read instructions, and its response is one character
    text = {"action_format": "open", "instructions": "", "max_tokens_per_turn": 1}
    text |= {"wrappers": [one_letter], "invalid_penalty": 8.0}

record = RecordRun(args.output, episodes=64)
spec = GymSpec(
    "TrlEnv/KuhnPoker-v0",
    seats="self",  # the model plays both seats, and each seat is a row of its own
    env_kwargs={"mistakes": 1},  # an illegal action loses at once
    credit="pool",  # a turn is compared with the other turns of its seat in the same state: the same card and bets
    num_tasks=1_600,
    num_eval_tasks=0,
    on_rollout=record.on_rollout,
    **text,
)


class FallingEntropy(TrainerCallback):
    """Callback that lowers the weight of the entropy from 1 to 0.1.

    Policy gradients in self-play run in circles around an equilibrium, the narrower the larger this weight; but its own
    equilibrium is the farther from the game's. With a small weight from the beginning the model bets with every card.
    """

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Set the weight for the next step."""
        trainer.entropy_coef = 0.1 ** (state.global_step / state.max_steps)


tokenizer = tiny_tokenizer() if tiny else None
trainer = GymGRPOTrainer(
    model=tiny_model(tokenizer) if tiny else args.model,
    processing_class=tokenizer,
    args=GRPOConfig(
        output_dir=str(args.output),
        max_steps=args.steps,
        per_device_train_batch_size=256 if tiny else 8,  # seats, so 128 games a step
        gradient_accumulation_steps=1 if tiny else 32,
        num_generations=32,  # seats of 16 games on the same deal
        max_completion_length=192 if tiny else 1024,
        learning_rate=1e-3 if tiny else 1e-6,
        lr_scheduler_type="linear",
        scale_rewards="none",
        beta=0.0,
        entropy_coef=1.0,
        gradient_checkpointing=not tiny,
        use_cpu=tiny,
        bf16=not tiny and fast_dtype() == "bfloat16",
        save_steps=max(1, args.steps // 10),
        save_total_limit=2,
        logging_steps=max(1, args.steps // 50),
        report_to=[],
    ),
    spec=spec,
    callbacks=[record, *([FallingEntropy()] if tiny else [])],
)
if tiny:
    torch.set_num_threads(1)  # a tiny model's operations end before further threads have begun
trainer.train(resume_from_checkpoint=get_last_checkpoint(args.output) if args.output.is_dir() else None)
trainer.save_model(str(args.output / "model"))

# The first player of an equilibrium bets a jack (a bluff) with any probability up to 1/3, a king three times as often,
# and never a queen; the second player calls a bet with a queen once in three times, and always with a king.
bets = defaultdict(list)
for episode in read_records(args.output):
    if (episode["step"] or 0) > 0.9 * args.steps:
        for turn in episode["turns"]:
            bets[" ".join(turn["observation"].split())].append((turn["action"] or turn["answer"]).startswith("b"))
print("How often it bet in the last tenth of the steps:")
for seen, chosen in sorted(bets.items()):
    print(f"  {seen:60} {sum(chosen) / len(chosen):.2f} of {len(chosen)}")
print(f"Look at the games, both seats side by side (s): gym-trl view {args.output}")
