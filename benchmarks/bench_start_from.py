"""Compare what the tiny model learns with and without episodes that start after a solver's first turns.

    python benchmarks/bench_start_from.py               # all games and seeds; resumable
    python benchmarks/bench_start_from.py Maze          # only these; or Maze/with, or Maze/with/0
    python benchmarks/bench_start_from.py --report      # print what is complete, and train nothing
    python benchmarks/bench_start_from.py --quick

An observation is one to three symbols, so that a row of 20 turns has about 130 tokens: the square, the open directions,
the boxes. The rules, rewards and limits of turns are those of the game. Seconds are those of the process, not of the
clock, so that a run may share its core. Each run ends when the mean success of five steps, without the episodes that
were helped, has reached 90%, or after its last step. All episodes count, also those that were helped. A complete run is
a line of ``runs/start-from/runs.jsonl``; the same command makes what is missing.
"""

import itertools
import re
import statistics
import string
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import torch
from report import HERE, QUICK, Cell, Table, markdown, named_runs
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer, GymSpec, Part
from gym_trl.executors.protocol import TextEnvironment
from gym_trl.grpo.parts.part import Rollout
from gym_trl.grpo.parts.start_from import StartFrom
from gym_trl.policies.functions import environment_policy
from gym_trl.records.json_lines import JsonLinesWriter, read_json_lines
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.training.options import TINY_ELSEWHERE
from gym_trl.types import Policy

FILE = HERE.parent / "runs" / ("start-from-quick" if QUICK else "start-from") / "runs.jsonl"
SEEDS = range(1 if QUICK else 5)
STEPS = 2 if QUICK else 200
EPISODES, GROUP = (16, 8) if QUICK else (32, 8)
WINDOW, GOAL = 5, 0.9
LETTERS = {"up": "u", "down": "d", "left": "l", "right": "r", "north": "n", "east": "e", "south": "s", "west": "w"}
WORDS = {letter: word for word, letter in LETTERS.items()}
GAMES: dict[str, dict[str, Any]] = {
    "FrozenLake 8x8": {"id": "TrlEnv/FrozenLake-v0", "map_name": "8x8", "is_slippery": False, "turns": 20},
    "Sokoban easy": {"id": "TrlEnv/Sokoban-v0", "difficulty": "easy"},
    "Maze hard": {"id": "TrlEnv/Maze-v0", "difficulty": "hard"},
}
WAYS: Mapping[str, Callable[[], list[Part]]] = {
    "without": list,
    "with": lambda: [StartFrom(letters_of_solver, share=0.5)],
}


SYMBOLS = [char for char in string.printable if char.isprintable()]


@dataclass(frozen=True)
class Run:
    """One training."""

    game: str
    way: str
    seed: int
    steps: int
    episodes: int
    """Number of all episodes."""
    seconds: float
    reached: bool
    """The goal was reached; otherwise the other numbers are those of the whole training."""
    success: float
    """Mean success of the last steps' episodes that were not helped."""
    curve: list[float | None]
    """Success of each step's episodes that were not helped; ``None`` if all were."""
    left: float | None = None
    """Turns that helped episodes left to the model at the end."""


def letters_of_solver(env: TextEnvironment) -> Policy:
    """Return the environment's solver, which answers in one letter."""
    solver = environment_policy("solver").make(env, 0)
    return lambda observation: LETTERS[solver(str(env.get_wrapper_attr("full_text")))]


def square(row: int, column: int) -> str:
    """Return the symbol of a square of a board of at most nine columns."""
    return SYMBOLS[9 * row + column]


def frozen_lake(text: str, first: bool) -> str:
    """Return the symbol of the player's square; the map is always the same."""
    rows = re.findall(r"^[SFHGP]+$", text, re.MULTILINE)
    return next((square(number, row.index("P")) for number, row in enumerate(rows) if "P" in row), "")


def maze(text: str, first: bool) -> str:
    """Return the symbol of the player's square, and that of the open directions and the one in which the goal is."""
    row, column = map(int, re.findall(r"Row ([0-9]+), column ([0-9]+)", text)[0])
    squares_ahead = re.findall(r"(north|east|south|west) ([0-9]+)[,.]", text)
    openings = sum(1 << number for number, (_, squares) in enumerate(squares_ahead) if squares != "0")
    goal = re.findall(r"The goal is [0-9]+ squares? (north|east|south|west)", text)
    way = 1 + [name for name, _ in squares_ahead].index(goal[0]) if goal else 0
    return square(row - 1, column - 1) + SYMBOLS[5 * openings + way]


def sokoban(text: str, first: bool) -> str:
    """Return the symbols of the squares of player, box and goal; at first after the squares inside the border."""
    rows = [row[1:-1] for row in re.findall(r"^#[#.$*@+-]*#$", text, re.MULTILINE)[1:-1]]
    squares = {char: square(number, row.index(char)) for number, row in enumerate(rows) for char in row}
    player, box = squares.get("@") or squares["+"], squares.get("$") or squares["*"]
    goal = squares.get(".") or squares.get("+") or squares["*"]
    return "".join(rows) * first + player + box + goal


class Compact(gym.Wrapper[str, str, str, str]):
    """Wrapper with observations of a few symbols and actions of one letter; other actions are passed on."""

    def __init__(self, env: gym.Env[str, str], compact: Callable[[str, bool], str]) -> None:
        super().__init__(env)
        self._compact = compact
        self.full_text = ""
        """Observation of the environment."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Reset the environment."""
        self.full_text, info = self.env.reset(seed=seed, options=options)
        return self._compact(self.full_text, True), info

    def step(self, action: str) -> tuple[str, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        self.full_text, reward, terminated, truncated, info = self.env.step(WORDS.get(action, action))
        return self._compact(self.full_text, False), reward, terminated, truncated, info


COMPACT = {"FrozenLake 8x8": frozen_lake, "Maze hard": maze, "Sokoban easy": sokoban}


class Watch(TrainerCallback):
    """Callback that keeps the success of each step, and stops a training at the goal."""

    def __init__(self) -> None:
        self.curve: list[float | None] = []
        self.episodes = 0

    def __call__(self, rollout: Rollout) -> None:
        """Take note of a rollout."""
        if errors := [episode.error for episode in rollout.episodes if episode.error is not None]:
            raise RuntimeError(errors[0])
        own = [episode.success is True for episode in rollout.episodes if not episode.given_turns]
        self.curve.append(statistics.fmean(own) if own else None)
        self.episodes += len(rollout.episodes)

    @property
    def success(self) -> float:
        """Mean success of the last steps."""
        known = [value for value in self.curve if value is not None]
        return statistics.fmean(known[-WINDOW:]) if len(known) >= WINDOW else 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop at the goal."""
        if self.success >= GOAL:
            control.should_training_stop = True


def train(game: str, way: str, seed: int) -> Run:
    """Train one model."""
    torch.set_num_threads(1)
    watch, arguments, parts = Watch(), dict(GAMES[game]), WAYS[way]()
    spec = GymSpec(
        arguments.pop("id"),
        env_kwargs=arguments,
        wrappers=[partial(Compact, compact=COMPACT[game])],
        parts=parts,
        on_rollout=watch,
        seed=seed,
        num_tasks=STEPS * EPISODES // GROUP,
        action_format="plain",
        instructions="",
        cut_actions="accept",
        invalid_penalty=TINY_ELSEWHERE.invalid_penalty,
        max_tokens_per_turn=1,
    )
    tokenizer = tiny_tokenizer()
    with TemporaryDirectory() as folder:
        settings = {
            **TINY_ELSEWHERE.grpo,
            "output_dir": folder,
            "max_steps": STEPS,
            "learning_rate": TINY_ELSEWHERE.learning_rate,
            "per_device_train_batch_size": EPISODES,
            "num_generations": GROUP,
            "max_completion_length": 1536,
            "seed": seed,
            "report_to": [],
            "save_strategy": "no",
            "disable_tqdm": True,
        }
        trainer = GymGRPOTrainer(
            model=tiny_model(tokenizer, seed=seed),
            processing_class=tokenizer,
            args=GRPOConfig(**settings),
            spec=spec,
            callbacks=[watch],
        )
        trainer.remove_callback(PrinterCallback)
        began = time.process_time()
        trainer.train()
    seconds, steps = time.process_time() - began, len(watch.curve)
    left = parts[0].state["left"] if parts else None
    return Run(game, way, seed, steps, watch.episodes, seconds, watch.success >= GOAL, watch.success, watch.curve, left)


def done() -> list[Run]:
    """Return the complete runs."""
    return [Run(**line) for line in read_json_lines(FILE)] if FILE.exists() else []


def table(runs: Sequence[Run]) -> Table:
    """Return medians over the seeds; a run that did not reach the goal counts as infinitely long."""
    rows: list[dict[str, Cell]] = []
    for game, way in itertools.product(GAMES, WAYS):
        if mine := [one for one in runs if (one.game, one.way) == (game, way)]:
            row: dict[str, Cell] = {"game": game, "start from": way, "seeds": len(mine)}
            row |= {"reached": sum(one.reached for one in mine)}
            row |= {f"{name} to {GOAL}": _middle(mine, name) for name in ("episodes", "seconds")}
            rows.append({**row, "success at the end": f"{statistics.median(one.success for one in mine):.2f}"})
    return Table.of_rows("start_from", rows)


def _middle(runs: Sequence[Run], column: str) -> str:
    value = statistics.median_low([getattr(one, column) if one.reached else float("inf") for one in runs])
    return "not reached" if value == float("inf") else f"{value:,.0f}"


def main() -> None:
    """Make the runs that are missing, and print the table."""
    known = {(one.game, one.way, one.seed) for one in done()}
    trainings = [(game, way, seed) for game in GAMES for seed in SEEDS for way in WAYS]
    for game, way, seed in () if "--report" in sys.argv[1:] else named_runs(trainings, quick="Maze"):
        if (game, way, seed) not in known:
            run = train(game, way, seed)
            FILE.parent.mkdir(parents=True, exist_ok=True)
            with JsonLinesWriter(FILE) as file:
                file.write(asdict(run))
            print(f"{game}/{way}/{seed}: {run.steps} steps, {run.seconds:.0f} s, success {run.success:.2f}", flush=True)
    if runs := done():
        print(markdown((found := table(runs)).header, found.rows))


if __name__ == "__main__":
    main()
