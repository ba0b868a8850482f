# mypy: allow-untyped-calls
"""Compare learning per episode and per minute with TRL's own loop, for the same model.

    python benchmarks/bench_learning_beside_trl.py            # five seeds of three games, about eight minutes
    python benchmarks/bench_learning_beside_trl.py --quick

TRL's own loop is ``GRPOTrainer(environment_factory=...)``. Both have the same ``GRPOConfig`` and begin with the same
weights, which know how a move is written and nothing about which one is good: they were taught random games, and
to say nothing once a game is over, which is how an episode of TRL's loop ends. A move is ``>`` and the action; to TRL
that is a call of the environment's one tool (a response template of ours reads it), to gym-trl the answer.

A turn has no limit of its own, for TRL's loop has none, and there is no bonus for entropy: with one, the policy forgot
how a turn ends. Time is the processor time of the whole training (rollouts, forward and backward passes), one thread
each, and so can be compared though two runs share the machine. Returns are of the games that are played in training.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}

import gymnasium as gym
from report import QUICK, Cell, Table, publish
from systems.tools import OVER, TEMPLATE, response_template, tool_environment

import gym_trl
from gym_trl.chat.template import TemplateChat
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.training.options import TINY_ELSEWHERE
from gym_trl.types import Message

assert gym_trl
SYSTEMS = {"gym-trl": "gym_trl", "TRL 1.16, `environment_factory`": "trl"}
SEEDS = range(1 if QUICK else 5)
STEPS = 2 if QUICK else 48
EPISODES, GROUP = 16 if QUICK else 64, 8
CALLS = response_template(r">", r"(?=<\|end\|>)")


@dataclass(frozen=True)
class Game:
    """Game to learn."""

    env_id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def make(self) -> gym.Env[str, str]:
        """Return the game, whose moves begin with ``>``."""
        return marked(gym.make(f"TrlEnv/{self.env_id}-v0", **self.kwargs))


GAMES = {
    "TowerOfHanoi": Game("TowerOfHanoi", {"disks": 2, "start": "random", "turns": 6}),
    "TicTacToe": Game("TicTacToe", {"difficulty": "easy"}),
    "Nim": Game("Nim", {"difficulty": "easy"}),
}
if QUICK:
    GAMES = {"TicTacToe": GAMES["TicTacToe"]}


def marked(env: gym.Env[str, str]) -> gym.Env[str, str]:
    """Return the same game, where only text that begins with ``>`` is a move."""
    return gym.wrappers.TransformAction(env, lambda said: said[1:] if said.startswith(">") else "?", env.action_space)


def lessons(game: Game, chat: TemplateChat, tokenizer: Any, count: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield random games: their ids, and a mask of the player's tokens."""
    env = game.make()
    for seed in range(count):
        observation, _ = env.reset(seed=10**6 + seed)
        policy = env.get_wrapper_attr("random_policy")(seed)
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


def teach(game: Game, folder: Path) -> None:
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
    torch.save(model.state_dict(), folder / "taught.pt")


def train(system: str, game: Game, seed: int, taught: Path) -> list[dict[str, float]]:
    """Run one training; return the returns and time of each step."""
    import torch
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(1)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer)
    model.load_state_dict(torch.load(taught))
    args = GRPOConfig(
        **{
            **TINY_ELSEWHERE.grpo,
            "output_dir": tempfile.mkdtemp(),
            "seed": seed,
            "max_steps": STEPS,
            "per_device_train_batch_size": EPISODES,
            "num_generations": GROUP,
            "max_completion_length": 96,
            "learning_rate": 1e-3,
            "entropy_coef": 0.0,
            "lr_scheduler_type": "constant",
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "shuffle_dataset": False,
        }
    )
    made = with_gym_trl(game, seed) if system == "gym_trl" else with_trl(game, seed, tokenizer)
    steps: list[dict[str, float]] = []
    began = time.process_time()

    class Noting(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
            if "reward" in logs:
                spent = time.process_time() - began
                steps.append({"return": float(logs["reward"]), "seconds": spent, "tokens": float(logs["num_tokens"])})

    trainer = GRPOTrainer(model=model, processing_class=tokenizer, args=args, callbacks=[Noting()], **made)
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return steps


def games(game: Game, seed: int) -> gym_trl.GymSpec:
    """Return the spec that both systems play."""
    return gym_trl.GymSpec(
        f"TrlEnv/{game.env_id}-v0",
        env_kwargs=game.kwargs,
        wrappers=[marked],
        action_format=None,
        cut_actions="accept",  # as TRL's loop does
        instructions="",
        num_tasks=STEPS * EPISODES // GROUP,
        num_eval_tasks=0,
        seed=seed,
    )


def with_gym_trl(game: Game, seed: int) -> dict[str, Any]:
    """Train as the README describes."""
    spec = games(game, seed)
    return {"train_dataset": spec.train_dataset, "reward_funcs": spec.reward_funcs, "rollout_func": spec.rollout_func}


def with_trl(game: Game, seed: int, tokenizer: Any) -> dict[str, Any]:
    """Train as TRL's documentation describes, on the same games."""
    from datasets import Dataset

    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, CALLS
    seeds = [json.loads(prompt[-1]["task"])["seed"] for prompt in games(game, seed).train_dataset["prompt"]]
    rows = [{"prompt": [{"role": "user", "content": ""}], "seed": seed} for seed in seeds]
    playing = tool_environment(game.make, write=lambda action: f">{action}", begin=lambda _, observation: observation)
    return {"train_dataset": Dataset.from_list(rows), "environment_factory": playing}


def in_a_process(words: list[str], out: Path) -> Any:
    """Run a command in a process of its own, with a log if it fails."""
    command = [sys.executable, __file__, *words, str(out), *["--quick"] * QUICK]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if ran.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{ran.stderr[-3000:]}")
    return json.loads(out.read_text()) if out.suffix == ".json" else None


def main() -> None:
    """Train all runs, two at a time, and compare."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        folder = Path(name)
        for game in GAMES:
            (folder / game).mkdir()
        list(pool.map(lambda game: in_a_process(["teach", game], folder / game), GAMES))
        runs = [(game, title, seed) for game in GAMES for seed in SEEDS for title in SYSTEMS]

        def one(run: tuple[str, str, int]) -> list[dict[str, float]]:
            game, title, seed = run
            words = ["train", SYSTEMS[title], game, str(seed), str(folder / game / "taught.pt")]
            steps: list[dict[str, float]] = in_a_process(words, folder / f"{SYSTEMS[title]}-{game}-{seed}.json")
            print(
                f"{game:14} {title:32} seed {seed}: {steps[-1]['return']:.2f} in {steps[-1]['seconds']:.0f} s",
                flush=True,
            )
            return steps

        curves = dict(zip(runs, pool.map(one, runs), strict=True))
    rows: list[list[Cell]] = []
    for game in GAMES:
        seconds: dict[str, float] = {}
        for title in SYSTEMS:
            mine = [curves[game, title, seed] for seed in SEEDS]
            first, last = ([mean(steps[part], "return") for steps in mine] for part in (slice(0, 3), slice(-10, None)))
            whole = [mean(steps, "return") for steps in mine]
            seconds[title] = statistics.mean(steps[-1]["seconds"] for steps in mine)
            tokens = statistics.mean(steps[-1]["tokens"] for steps in mine) / 1000
            spread = statistics.stdev(last) if len(last) > 1 else 0.0
            shown = f"{statistics.mean(last):.3f} ± {spread:.3f}"
            rows.append([game, title, statistics.mean(first), statistics.mean(whole), shown, tokens, seconds[title]])
            rows[-1].append(seconds[title] / seconds["gym-trl"])
    header = [
        "game",
        "",
        "return: first steps",
        "all steps",
        "last ten steps",
        "tokens, thousands",
        "seconds",
        "of ours",
    ]
    figures = {
        "steps": STEPS,
        "episodes": EPISODES,
        "curves": {" / ".join(map(str, run)): c for run, c in curves.items()},
    }
    publish(
        "learning_beside_trl",
        figures,
        tables=[Table("learning_beside_trl", header, rows)],
        picture=lambda figure: draw(figure, curves),
    )


def mean(steps: list[dict[str, float]], name: str) -> float:
    """Return the mean over the steps of a run."""
    return statistics.mean(step[name] for step in steps)


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
    warnings.simplefilter("ignore")
    given = [word for word in sys.argv[1:] if word != "--quick"]
    if given[:1] == ["teach"]:
        teach(GAMES[given[1]], Path(given[2]))
    elif given[:1] == ["train"]:
        found = train(given[1], GAMES[given[2]], int(given[3]), Path(given[4]))
        Path(given[5]).write_text(json.dumps(found))
    else:
        main()
