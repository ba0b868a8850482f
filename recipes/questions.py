"""Questions whose answers a language model judges, in whatever words they are given.

$ python recipes/questions.py                                    # a function stands in for the judge; a minute
$ python recipes/questions.py --model Qwen/Qwen3-0.6B --judge http://localhost:8000/v1      # a judge on a server

There is no result with a judge yet: the run shows that all of it works together.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.envs.judge import Judge
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.training import RecordRun

parser = argparse.ArgumentParser(description="Train on questions with a judge.")
parser.add_argument("--steps", type=int, default=300, help="number of steps")
parser.add_argument("--model", help="folder or hub id of a pretrained model (default: a tiny one from random weights)")
parser.add_argument("--output", type=Path, default=Path("runs/recipes/questions"), help="folder of the run")
parser.add_argument("--judge", help="address of a server with OpenAI's interface (default: a function stands in)")
args = parser.parse_args()
tiny = args.model is None

# Yours: datasets.load_dataset("openai/gsm8k", ...), a file, or a list of rows. No row is in both splits.
rows = [{"ask": f"{a} > {b}?", "answer": "yes" if a > b else "no"} for a in range(10) for b in range(10) if a != b]


def stand_in(messages: Sequence[Mapping[str, str]]) -> str:
    """Reply as a judge would, without a model: several words mean yes, and several mean no.

    A judge gets the task, the reference and the response as JSON, and the two last lines of its instructions are its
    possible verdicts, with a word that no response can know.
    """
    data = json.loads(messages[1]["content"])
    right, wrong = messages[0]["content"].splitlines()[-2:]
    words = {"yes": ("yes", "y", "true", "t"), "no": ("no", "n", "false", "f")}[data["reference"]]
    return right if data["response"].strip().lower() in words else wrong


# A verdict is asked for once, and kept on disk: the same run costs nothing the second time.
judge = Judge(
    args.judge or stand_in, model=None if args.judge else "stand-in", cache=args.output.parent / "verdicts.db"
)

text: dict[str, Any] = {"max_tokens_per_turn": 256, "invalid_penalty": 0.1}
if tiny:  # it cannot read instructions, and its response is one character
    text = {"action_format": "plain", "instructions": "", "max_tokens_per_turn": 1, "cut_actions": "accept"}
record = RecordRun(args.output)
spec = GymSpec.from_dataset(
    rows, prompt="ask", answer="answer", verify=judge, on_rollout=record.on_rollout, num_eval_tasks=20, **text
)

tokenizer = tiny_tokenizer() if tiny else None
trainer = GymGRPOTrainer(
    model=tiny_model(tokenizer) if tiny else args.model,
    processing_class=tokenizer,
    args=GRPOConfig(
        output_dir=str(args.output),
        max_steps=args.steps,
        per_device_train_batch_size=128 if tiny else 8,
        gradient_accumulation_steps=1 if tiny else 16,
        num_generations=8,
        max_completion_length=16 if tiny else 512,
        learning_rate=2e-3 if tiny else 1e-6,
        lr_scheduler_type="linear",
        scale_rewards="none",
        beta=0.0,
        entropy_coef=0.02 if tiny else 0.0,
        gradient_checkpointing=not tiny,
        use_cpu=tiny,
        bf16=not tiny,
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

held_out = trainer.evaluate()
print(f"Questions that it was not trained on: {held_out}")
print(judge.report())  # how often it was asked, and what was kept; measure it with labels you know: agreement()
print(f"Look at it: gym-trl view {args.output}")
