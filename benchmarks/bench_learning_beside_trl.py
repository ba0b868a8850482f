# mypy: allow-untyped-calls
"""Compare learning per episode and per minute with TRL's own loop, for the same model.

    python benchmarks/bench_learning_beside_trl.py            # three seeds of three games
    python benchmarks/bench_learning_beside_trl.py --quick

TRL's own loop is ``GRPOTrainer(environment_factory=...)``. Both have the same ``GRPOConfig`` and the same initial
weights, trained on random games: they know how a move is written, not which one is good, and are silent once a game is
over, which ends an episode of TRL's loop. A move is ``>`` and the action. For TRL it is a call of the environment's
only tool (read by a response template of ours), for gym-trl it is the response.

A turn has no limit of its own, as in TRL's loop, and there is no bonus for entropy: with one, the policy forgot how a
turn ends. Time is the processor time of the whole training on one thread, so that two runs can share the machine.
"""

import json
import os
import random
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}

import gymnasium as gym
from report import QUICK, Column, Table, in_process, publish, run
from systems.tools import OVER, TEMPLATE, response_template, tool_environment

import gym_trl
from gym_trl.chat.template import TemplateChat
from gym_trl.rollout.random_play import random_policy
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.training.options import TINY_ELSEWHERE
from gym_trl.types import Message

assert gym_trl
SYSTEMS = ("gym-trl", "TRL 1.16, `environment_factory`")
SEEDS = range(1 if QUICK else 3)
STEPS = 2 if QUICK else 48
EPISODES, GROUP = 16 if QUICK else 64, 8
CALLS = response_template(r">", r"(?=<\|end\|>)")


GAMES: dict[str, dict[str, Any]] = {
    "TowerOfHanoi": {"disks": 2, "start": "random", "turns": 6},
    "TicTacToe": {"difficulty": "easy"},
    "Nim": {"difficulty": "easy"},
}
if QUICK:
    GAMES = {"TicTacToe": GAMES["TicTacToe"]}


def make(game: str) -> gym.Env[str, str]:
    """Return the game, whose moves begin with ``>``."""
    return marked(gym.make(f"TrlEnv/{game}-v0", **GAMES[game]))


def marked(env: gym.Env[str, str]) -> gym.Env[str, str]:
    """Return the same game, where only text that begins with ``>`` is a move."""
    return gym.wrappers.TransformAction(env, lambda said: said[1:] if said.startswith(">") else "?", env.action_space)


def lessons(game: str, chat: TemplateChat, tokenizer: Any, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield random games: their ids, and a mask of the player's tokens."""
    env = make(game)
    for seed in range(count):
        observation, _ = env.reset(seed=10**6 + seed)
        policy = random_policy(env, seed)
        ids, over = chat.open([Message("user", observation)]), False
        mask = [0] * len(ids)
        while not over:
            action = policy(observation)
            observation, _, terminated, truncated, _ = env.step(f">{action}")
            over = terminated or truncated
            said = [*tokenizer.encode(f">{action}", add_special_tokens=False), tokenizer.eos_token_id]
            told = chat.reply(f"{observation} {OVER}" if over else observation, closed=True)
            ids, mask = [*ids, *said, *told], [*mask, *[1] * len(said), *[0] * len(told)]
        yield [*ids, tokenizer.eos_token_id], [*mask, 1]


def teach(game: str, path: str) -> None:
    """Train and write the initial weights."""
    import torch

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    model, chat = tiny_model(tokenizer), TemplateChat(tokenizer)
    games, rng, rows = list(lessons(game, chat, tokenizer, 1_000)), random.Random(0), 16
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(250):
        batch = rng.sample(games, rows)
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([[*one, *[tokenizer.pad_token_id] * (width - len(one))] for one, _ in batch])
        spoken = torch.tensor([[*mask, *[0] * (width - len(mask))] for _, mask in batch])
        loss = model(input_ids=ids, labels=ids.masked_fill(spoken == 0, -100)).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), path)


def train_all(system: str, game: str, taught: str) -> list[list[dict[str, float]]]:
    """Run a training for each seed, which share the imports; return the steps of each."""
    return [train(system, game, seed, taught) for seed in SEEDS]


def train(system: str, game: str, seed: int, taught: str) -> list[dict[str, float]]:
    """Run one training; return the returns, tokens and time of each step."""
    import torch
    from systems.trainers import tiny_trainer
    from transformers import PrinterCallback, TrainerCallback

    warnings.simplefilter("ignore")
    config = {
        **TINY_ELSEWHERE.grpo,
        "seed": seed,
        "max_steps": STEPS,
        "per_device_train_batch_size": EPISODES,
        "num_generations": GROUP,
        "max_completion_length": 96,
        "learning_rate": 1e-3,
        "entropy_coef": 0.0,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "shuffle_dataset": False,
    }
    tokenizer = tiny_tokenizer()
    options = with_gym_trl(game, seed) if system == "gym-trl" else with_trl(game, seed, tokenizer)
    steps: list[dict[str, float]] = []
    began = time.process_time()

    class Noting(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
            if "reward" in logs:
                spent = time.process_time() - began
                steps.append({"return": float(logs["reward"]), "seconds": spent, "tokens": float(logs["num_tokens"])})

    trainer = tiny_trainer(config, tokenizer=tokenizer, weights=torch.load(taught), callbacks=[Noting()], **options)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return steps


def spec_of(game: str, seed: int) -> gym_trl.GymSpec:
    """Return the spec of the tasks that both systems play."""
    return gym_trl.GymSpec(
        f"TrlEnv/{game}-v0",
        env_kwargs=GAMES[game],
        wrappers=[marked],
        action_format=None,
        cut_actions="accept",  # as TRL's loop does
        instructions="",
        num_tasks=STEPS * EPISODES // GROUP,
        num_eval_tasks=0,
        seed=seed,
    )


def with_gym_trl(game: str, seed: int) -> dict[str, Any]:
    """Return the trainer's arguments as the README describes them."""
    spec = spec_of(game, seed)
    return {"train_dataset": spec.train_dataset, "reward_funcs": spec.reward_funcs, "rollout_func": spec.rollout_func}


def with_trl(game: str, seed: int, tokenizer: Any) -> dict[str, Any]:
    """Return the trainer's arguments as TRL's documentation describes them, for the same tasks."""
    from datasets import Dataset

    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, CALLS
    seeds = [json.loads(prompt[-1]["task"])["seed"] for prompt in spec_of(game, seed).train_dataset["prompt"]]
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in seeds]
    playing = tool_environment(
        lambda: make(game), write=lambda action: f">{action}", begin=lambda _, observation: observation
    )
    return {"train_dataset": Dataset.from_list(rows), "environment_factory": playing}


def main() -> None:
    """Train all runs, as many at a time as there are cores, and compare."""
    runs = [(game, title) for game in GAMES for title in SYSTEMS]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        taught = {game: str(Path(folder, game)) for game in GAMES}
        list(pool.map(lambda game: in_process(teach, game, taught[game]), GAMES))

        def all_seeds(run: tuple[str, str]) -> dict[tuple[str, str, int], list[dict[str, float]]]:
            game, title = run
            found = {
                (game, title, seed): steps
                for seed, steps in zip(SEEDS, in_process(train_all, title, game, taught[game]), strict=True)
            }
            for (*_, seed), steps in found.items():
                last = steps[-1]
                print(f"{game:14} {title:32} seed {seed}: {last['return']:.2f} in {last['seconds']:.0f} s", flush=True)
            return found

        curves = {run: steps for found in pool.map(all_seeds, runs) for run, steps in found.items()}
    rows = [row_of(game, title, curves) for game in GAMES for title in SYSTEMS]
    columns: list[Column] = [
        ("game", "game"),
        ("", "title"),
        ("return: first steps", "first"),
        ("all steps", "all"),
        ("last ten steps", "last"),
        ("tokens, thousands", "tokens"),
        ("seconds", "seconds"),
        ("of ours", lambda row: row["seconds"] / next(r["seconds"] for r in rows if r["game"] == row["game"])),
    ]
    figures = {
        "steps": STEPS,
        "episodes": EPISODES,
        "curves": {" / ".join(map(str, run)): c for run, c in curves.items()},
    }
    publish(
        "learning_beside_trl",
        figures,
        tables=[Table.of("learning_beside_trl", columns, rows)],
        picture=lambda figure: draw(figure, curves),
    )


def row_of(game: str, title: str, curves: Mapping[tuple[str, str, int], list[dict[str, float]]]) -> dict[str, Any]:
    """Return the means over the seeds; the standard deviation is that of the seeds."""
    mine = [curves[game, title, seed] for seed in SEEDS]

    def returns(steps: slice) -> list[float]:
        return [statistics.mean(step["return"] for step in run[steps]) for run in mine]

    last = returns(slice(-10, None))
    return {
        "game": game,
        "title": title,
        "first": statistics.mean(returns(slice(0, 3))),
        "all": statistics.mean(returns(slice(None))),
        "last": f"{statistics.mean(last):.3f} ± {statistics.stdev(last) if len(last) > 1 else 0.0:.3f}",
        "tokens": statistics.mean(run[-1]["tokens"] for run in mine) / 1000,
        "seconds": statistics.mean(run[-1]["seconds"] for run in mine),
    }


def draw(figure: Any, curves: Mapping[tuple[str, str, int], list[dict[str, float]]]) -> None:
    """Draw the curves against episodes above and against time below; thin lines are seeds."""
    axes = figure.subplots(2, len(GAMES), sharey="col", squeeze=False)
    for column, game in enumerate(GAMES):
        for colour, title in zip(("C0", "C1"), SYSTEMS, strict=True):
            mine = [smooth([step["return"] for step in curves[game, title, seed]]) for seed in SEEDS]
            middle = [statistics.mean(values) for values in zip(*mine, strict=True)]
            spent = [[step["seconds"] for step in curves[game, title, seed]] for seed in SEEDS]
            times = [statistics.mean(values) for values in zip(*spent, strict=True)]
            for row, across in enumerate(([EPISODES * (n + 1) for n in range(STEPS)], times)):
                for line in mine:
                    axes[row][column].plot(across, line, color=colour, alpha=0.25, linewidth=0.8)
                axes[row][column].plot(across, middle, color=colour, label=title.replace("`", ""))
        axes[0][column].set_title(game)
        axes[0][column].set_xlabel("episodes")
        axes[1][column].set_xlabel("seconds of processor time")
    axes[0][0].set_ylabel("return")
    axes[1][0].set_ylabel("return")
    axes[0][0].legend(fontsize=7)


def smooth(values: list[float], width: int = 5) -> list[float]:
    """Return the mean of each step and the four before it."""
    return [statistics.mean(values[max(0, n - width + 1) : n + 1]) for n in range(len(values))]


if __name__ == "__main__":
    run(main)
