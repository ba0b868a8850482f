# mypy: allow-untyped-calls
"""Measure 64 to 16,384 concurrent episodes in one process: time per event, memory per episode.

$ python benchmarks/bench_scale.py [--quick]

Each row is measured in a process of its own. An event is one result that the loop receives: of a reset, a step or the
engine.

* scheduler alone: ``run_episodes`` with a chat, an environment and an engine that do next to nothing;
* as Python collects: the same with full garbage collections as often as Python runs them by default;
* with game and template: ``TrlEnv/GuessNumber-v0`` with ``ParseAction`` and the tiny model's template. Memory is the
  growth of the resident set when three quarters of the game are over, tokens included.
"""

import gc
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
from report import QUICK, Column, Table, curve, in_process, publish, run

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout import loop as rollout
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat
from gym_trl.types import Closing, Completion, EnvFailure, EpisodeResult, Request, StepResult, Task, TokenIds
from gym_trl.wrappers.parse_action import ParseAction

COUNTS = (64, 256) if QUICK else (64, 256, 1024, 4096, 16_384)
EVENTS = 10_000 if QUICK else 30_000
"""Minimum number of events of a row, so that rows with few episodes are as exact as those with many."""
TURNS = 4
REPEATS = 1 if QUICK else 3


class Nothing(Closing):
    """Environments that respond at once and end after ``TURNS`` steps."""

    def __init__(self) -> None:
        self._replies: list[tuple[str, StepResult | EnvFailure]] = []
        self._left: dict[str, int] = {}

    def reset(self, key: str, task: Task) -> None:
        self._left[key] = TURNS
        self._replies.append((key, StepResult("x")))

    def step(self, key: str, action: str) -> None:
        self._left[key] -= 1
        self._replies.append((key, StepResult("x", terminated=not self._left[key])))

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        replies, self._replies = self._replies, []
        return replies

    def release(self, key: str) -> None:
        self._left.pop(key, None)

    def close(self) -> None:
        """Do nothing."""


class Forgetful(ScriptedEngine):
    """Scripted engine without a log, which would count as the scheduler's memory."""

    def __init__(self, answer: Callable[[Request], TokenIds | Completion]) -> None:
        chance = random.Random(0)
        # Responses take 1 to 64 steps, so that a few arrive at a time, as from a real engine.
        super().__init__(answer, delay=lambda _: chance.randint(1, 64))
        self.requests = _Forgetting()


class _Forgetting(list[Request]):
    def append(self, request: Request) -> None:
        """Keep nothing."""


def events(played: list[EpisodeResult]) -> int:
    """Return the number of events: one reset per episode, and two per turn, of the engine and the environment."""
    return sum(1 + 2 * len(trajectory.turns) for trajectory in played)


def _episodes(env_id: str, chat: Chat, count: int) -> list[Episode]:
    limits = Limits(tokens_per_turn=64)
    return [Episode(Task(env_id, seed), chat=chat, limits=limits, seed=seed) for seed in range(count)]


def scheduler_alone(count: int) -> dict[str, float]:
    chat = ByteChat()
    answer = chat.say("x")
    spent, told = 0.0, 0
    while told < EVENTS:
        episodes = _episodes("Nothing", chat, count)
        gc.collect()
        with Nothing() as pool:
            engine = Forgetful(lambda _: answer)
            began = time.process_time()
            told += events(run_episodes(episodes, pool=pool, engine=engine))
            spent += time.process_time() - began
    return {"us_per_event": spent / told * 1e6}


def as_python_collects(count: int) -> dict[str, float]:
    rollout._FULL_COLLECTIONS = 0
    return scheduler_alone(count)


def with_a_game(count: int) -> dict[str, float]:
    from gym_trl.testing import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    chat = TemplateChat(tokenizer)
    answer = tokenizer.encode("<action>500000</action><|end|>", add_special_tokens=False)
    asked = middle = 0

    def make(env_id: str) -> gym.Env[str, str]:
        return ParseAction(gym.make(env_id, low=1, high=10**6, turns=TURNS))

    def sample(request: Request) -> Completion:
        nonlocal asked, middle
        asked += 1
        if asked == count * TURNS * 3 // 4:  # all are alive: no game ends before its last turn
            middle = resident()
        return Completion(request.id, list(answer), [-1.0 - asked / (place + 3) for place in answer])

    def play(games: int) -> tuple[list[EpisodeResult], float]:
        nonlocal asked
        asked = 0
        gc.collect()
        began = time.process_time()
        with InlinePool(make) as pool:
            episodes = _episodes("TrlEnv/GuessNumber-v0", chat, games)
            played = run_episodes(episodes, pool=pool, engine=Forgetful(sample))
        return played, time.process_time() - began

    play(8)
    before = resident()
    played, spent = play(count)
    held = middle - before
    # Three quarters of the completion, and the prompt: a pointer for each id, for each logprob and for each entry of
    # the mask, and a float for each logprob that was sampled.
    tokens = sum(
        8 * len(game.prompt_ids) + 3 / 4 * (3 * 8 * len(game.completion_ids) + 24 * sum(game.mask)) for game in played
    )
    return {
        "us_per_event": spent / events(played) * 1e6,
        "bytes_per_episode": held / count,
        "token_bytes_per_episode": tokens / count,
        "resident_megabytes": held / 1e6,
        "megabytes_above_tokens": (held - tokens) / 1e6,
    }


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def best(function: Callable[[int], dict[str, float]], count: int, repeats: int) -> dict[str, float]:
    """Return the run with the lowest cost: other load only makes a run slower."""
    rows: list[dict[str, float]] = [in_process(function, count) for _ in range(repeats)]
    row = min(rows, key=lambda row: next(iter(row.values())))
    print(f"{function.__name__} {count}: {row}", flush=True)
    return row


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    cost, memory = figure.subplots(1, 2)
    labels = {
        "alone": "the scheduler alone",
        "collecting": "the same, as Python collects",
        "us_per_event": "with a game",
    }
    for key, label in labels.items():
        curve(cost, {row["count"]: row[key] for row in rows}, label)
    cost.set(ylim=(0, None), xlabel="episodes in flight", ylabel="µs of processor time per event")
    for key, label in {"resident_megabytes": "everything", "megabytes_above_tokens": "without tokens"}.items():
        curve(memory, {row["count"]: row[key] for row in rows}, label)
    memory.axhline(1000, color="grey", linestyle="--", label="the goal for 16,384: 1 GB")
    memory.set(yscale="log", xlabel="episodes in flight", ylabel="MB of memory")
    for axes in (cost, memory):
        axes.legend()


def main() -> None:
    rows = [
        {
            "count": count,
            "alone": best(scheduler_alone, count, REPEATS)["us_per_event"],
            "collecting": best(as_python_collects, count, REPEATS)["us_per_event"],
            **best(with_a_game, count, REPEATS),
        }
        for count in COUNTS
    ]
    columns: list[Column] = [
        ("episodes in flight", "count"),
        ("µs per event: scheduler alone", "alone"),
        ("as Python collects", "collecting"),
        ("with game and template", "us_per_event"),
        ("KiB per episode", lambda row: row["bytes_per_episode"] / 1024),
        ("of it tokens", lambda row: row["token_bytes_per_episode"] / 1024),
        ("MB resident", "resident_megabytes"),
        ("MB above the tokens", "megabytes_above_tokens"),
    ]
    publish(
        "scale",
        {"rows": rows},
        tables=[Table.of("scale", columns, rows)],
        picture=lambda figure: draw(figure, rows),
    )


if __name__ == "__main__":
    run(main)
