# mypy: allow-untyped-calls
"""Measure 64 to 16,384 concurrent episodes in one process: time per event, memory per episode, servers.

$ python benchmarks/bench_scale.py [--quick]

Every line is a process of its own, so that none finds what another has left in memory.

* The scheduler alone: ``run_episodes`` and its episodes with a chat, an environment and an engine that do next to
  nothing. An event is one result that the loop receives: of a reset, a step or the engine.
* With a game: the same with ``TrlEnv/GuessNumber-v0``, ``ParseAction`` and the tiny model's tokenizer and template.
  Memory is what the process holds more (its resident set) when three quarters of the game are over. The tokens are
  in it: ids, mask and logprobs as lists and numbers. What few episodes need fits into what it had before.
  The same with full garbage collections as often as Python makes them by itself, which the loop puts off.
* Servers: ``ServerEngine`` and 256 episodes for each of 1 to 4 servers. Two cores do not carry four real ``vllm serve``
  beside a client, so these are the double of it that the tests have (real sockets and HTTP, no model), a process each.
"""

import gc
import json
import os
import random
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import QUICK, Table, publish

from gym_trl import rollout
from gym_trl.chat import Chat, TemplateChat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.episode import EnvFailure, EnvReply, Episode, Limits
from gym_trl.pool import ClosingPool, InlinePool
from gym_trl.rollout import run_episodes
from gym_trl.testing import ByteChat
from gym_trl.types import Completion, Request, Task, TokenIds, Trajectory
from gym_trl.wrappers.parse_action import ParseAction

COUNTS = (64, 256) if QUICK else (64, 256, 1024, 4096, 16_384)
SERVERS = (1,) if QUICK else (1, 2, 4)
EVENTS = 10_000 if QUICK else 100_000
"""Minimum number of events for each line, so that short lines are as exact as long ones."""
TURNS = 4
REPEATS = 1 if QUICK else 2


class Nothing(ClosingPool):
    """Environments that respond at once and end after ``TURNS`` steps."""

    def __init__(self) -> None:
        self._replies: deque[tuple[str, EnvReply | EnvFailure]] = deque()
        self._left: dict[str, int] = {}

    def reset(self, key: str, task: Task) -> None:
        """Start an episode."""
        self._left[key] = TURNS
        self._replies.append((key, EnvReply("x")))

    def step(self, key: str, action: str) -> None:
        """Count down."""
        self._left[key] -= 1
        self._replies.append((key, EnvReply("x", terminated=not self._left[key])))

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Return all results."""
        replies = list(self._replies)
        self._replies.clear()
        return replies

    def release(self, key: str) -> None:
        """Forget the episode."""
        self._left.pop(key, None)

    def close(self) -> None:
        """Nothing to close."""


class Forgetful(ScriptedEngine):
    """Scripted engine without a log, which would count as the scheduler's memory."""

    def __init__(self, answer: Callable[[Request], TokenIds | Completion], seed: int = 0) -> None:
        chance = random.Random(seed)
        # Responses take 1 to 64 steps, so that a few arrive at a time, as from a real engine.
        super().__init__(answer, delay=lambda _: chance.randint(1, 64))
        self.requests = _Forgetting()


class _Forgetting(list[Request]):
    def append(self, request: Request) -> None:
        """Keep nothing."""


def events(played: list[Trajectory]) -> int:
    """Return the number of events: one reset per episode, and two per turn, of the engine and the environment."""
    return sum(1 + 2 * len(trajectory.turns) for trajectory in played)


def scheduler_alone(count: int) -> dict[str, float]:
    """Return the processor time per event, and the live objects."""
    chat = ByteChat()
    answer = chat.say("x")
    spent, told, collections = 0.0, 0, 0
    while told < EVENTS:
        episodes = [_episode("Nothing", chat, seed) for seed in range(count)]
        gc.collect()
        before = gc.get_stats()[2]["collections"]
        with Nothing() as pool:
            engine = Forgetful(lambda _: answer)
            began = time.process_time()
            played = run_episodes(episodes, pool=pool, engine=engine)
            spent += time.process_time() - began
        told += events(played)
        collections += gc.get_stats()[2]["collections"] - before
    return {"us_per_event": spent / told * 1e6, "full_collections": collections / told * 1e6, "events": told}


def as_python_collects(count: int) -> dict[str, float]:
    """Return the same with Python's default schedule of full garbage collections."""
    rollout._FULL_COLLECTIONS = 0
    return scheduler_alone(count)


def _episode(env_id: str, chat: Chat, seed: int) -> Episode:
    return Episode(Task(env_id, seed), chat=chat, limits=Limits(tokens_per_turn=64), seed=seed)


def with_a_game(count: int) -> dict[str, float]:
    """Return processor time per event and memory per episode of a real game with a real template."""
    from gym_trl.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    chat = TemplateChat(tokenizer)
    answer = tokenizer.encode("<action>500000</action><|end|>", add_special_tokens=False)

    def make(env_id: str) -> gym.Env[str, str]:
        return ParseAction(gym.make(env_id, low=1, high=10**6, turns=TURNS))

    middle = {"told": 0, "asked": 0}

    def sample(request: Request) -> Completion:
        middle["asked"] += 1
        if middle["asked"] == count * TURNS * 3 // 4:  # all are alive: no game ends before its last turn
            middle["resident"] = resident()
        return Completion(request.id, list(answer), [-1.0 - middle["asked"] / (place + 3) for place in answer])

    def play(games: int) -> tuple[list[Trajectory], float]:
        middle["asked"] = 0
        gc.collect()
        began = time.process_time()
        with InlinePool(make) as pool:
            episodes = [_episode("TrlEnv/GuessNumber-v0", chat, seed) for seed in range(games)]
            played = run_episodes(episodes, pool=pool, engine=Forgetful(sample))
        return played, time.process_time() - began

    play(8)
    before = resident()
    played, spent = play(count)
    held = middle["resident"] - before
    told = events(played)
    # Three quarters of the completion, and the prompt: a pointer for each id, for each logprob and for each entry of
    # the mask, and a float for each logprob that was sampled.
    shown = sum(len(game.prompt_ids) + len(game.completion_ids) * 3 / 4 for game in played)
    tokens = sum(
        8 * len(game.prompt_ids) + 3 / 4 * (3 * 8 * len(game.completion_ids) + 24 * sum(game.mask)) for game in played
    )
    return {
        "us_per_event": spent / told * 1e6,
        "bytes_per_episode": held / count,
        "token_bytes_per_episode": tokens / count,
        "tokens_per_episode": shown / count,
        "resident_megabytes": held / 1e6,
        "megabytes_above_tokens": (held - tokens) / 1e6,
    }


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def serve() -> None:
    """Run a server until standard input ends."""
    from vllm_double import VLLMDouble

    chance = random.Random(0)
    with VLLMDouble(lambda _: ByteChat().say("500000"), delay=lambda _: chance.uniform(0.05, 0.15)) as server:
        server.bodies = server.headers = _Forgetting()
        print(server.url, flush=True)
        sys.stdin.read()


def with_servers(count: int) -> dict[str, float]:
    """Return the client's processor time per request, and requests per second, with ``count`` servers."""
    from gym_trl.engines.server import ServerEngine

    chat = ByteChat()
    words = [sys.executable, __file__, "serve"]
    servers = [subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    try:
        urls = [server.stdout.readline().strip() for server in servers if server.stdout]
        with ServerEngine(urls) as engine, Nothing() as pool:
            warm, rounds = [_episode("Nothing", chat, seed) for seed in range(8)], 1 if QUICK else 2
            run_episodes(warm, pool=pool, engine=engine)
            spent, began, asked = time.process_time(), time.perf_counter(), 0
            for _ in range(rounds):
                episodes = [_episode("Nothing", chat, seed) for seed in range(256 * count)]
                asked += sum(len(game.turns) for game in run_episodes(episodes, pool=pool, engine=engine))
            wall, spent = time.perf_counter() - began, time.process_time() - spent
            homes = [server.episodes for server in engine._sender._servers]
    finally:
        for server in servers:
            server.communicate(timeout=30)
    return {
        "requests_per_s": asked / wall,
        "us_per_request": spent / asked * 1e6,
        "requests": asked,
        "fewest_episodes_of_a_server": min(homes) / max(homes),
    }


def in_a_process(what: str, count: int) -> dict[str, float]:
    """Return one line, the best of some runs in new interpreters, as other load only slows them down."""
    words = [sys.executable, __file__, what, str(count), *(["--quick"] if QUICK else [])]
    made = []
    for _ in range(1 if what in ("game", "servers") else REPEATS):
        ran = subprocess.run(words, capture_output=True, text=True, check=True, timeout=900)
        made.append(json.loads(ran.stdout.splitlines()[-1]))
    cost = "us_per_request" if what == "servers" else "us_per_event"
    best: dict[str, float] = min(made, key=lambda row: row[cost])
    best[f"median_{cost}"] = median(row[cost] for row in made)
    print(f"{what} {count}: {best}", flush=True)
    return best


def draw(figure: Any, report: dict[str, dict[int, dict[str, float]]]) -> None:
    """Draw cost and memory over the number of episodes."""
    cost, memory = figure.subplots(1, 2)
    labels = {"alone": "the scheduler alone", "collecting": "the same, as Python collects", "game": "with a game"}
    for what, label in labels.items():
        rows = report[what]
        cost.plot(list(rows), [row["us_per_event"] for row in rows.values()], marker="o", label=label)
    cost.set(xscale="log", ylim=(0, None), xlabel="episodes in flight", ylabel="µs of processor time per event")
    rows = report["game"]
    memory.plot(list(rows), [row["resident_megabytes"] for row in rows.values()], marker="o", label="everything")
    memory.plot(list(rows), [row["megabytes_above_tokens"] for row in rows.values()], marker="o", label="but tokens")
    memory.axhline(1000, color="grey", linestyle="--", label="the goal for 16,384: 1 GB")
    memory.set(xscale="log", yscale="log", xlabel="episodes in flight", ylabel="MB of memory")
    for axes in (cost, memory):
        axes.legend()
        axes.set_xticks(COUNTS, [f"{count:,}" for count in COUNTS])
        axes.minorticks_off()


def main() -> None:
    """Measure everything, or one line of it."""
    ways: dict[str, Callable[[int], dict[str, float]]] = {
        "alone": scheduler_alone,
        "collecting": as_python_collects,
        "game": with_a_game,
        "servers": with_servers,
    }
    match sys.argv[1:]:
        case ["serve"]:
            serve()
            return
        case [what, count, *_] if what in ways:
            print(json.dumps(ways[what](int(count))))
            return
    report = {
        what: {count: in_a_process(what, count) for count in (SERVERS if what == "servers" else COUNTS)}
        for what in ways
    }
    rows = [
        [
            count,
            report["alone"][count]["us_per_event"],
            report["collecting"][count]["us_per_event"],
            report["game"][count]["us_per_event"],
            report["game"][count]["bytes_per_episode"] / 1024,
            report["game"][count]["token_bytes_per_episode"] / 1024,
            report["game"][count]["resident_megabytes"],
            report["game"][count]["megabytes_above_tokens"],
        ]
        for count in COUNTS
    ]
    header = [
        "episodes in flight",
        "µs per event: scheduler alone",
        "as Python collects",
        "with game and template",
        "KiB per episode",
    ]
    header += ["of it tokens", "MB resident", "MB above the tokens"]
    served = [
        [count, 256 * count, row["us_per_request"], row["fewest_episodes_of_a_server"]]
        for count, row in report["servers"].items()
    ]
    columns = ["servers (doubles)", "episodes in flight", "client: µs of processor per request"]
    publish(
        "scale",
        report,
        tables=[
            Table("scale", header, rows),
            Table("scale-servers", [*columns, "fewest episodes of a server over most"], served),
        ],
        picture=lambda figure: draw(figure, report),
    )


if __name__ == "__main__":
    main()
