# mypy: allow-untyped-calls
"""Measure 1,000 environments that wait on servers in one process, and a step of training divided among 8 processes.

$ python benchmarks/bench_scale_out.py [--quick]

* servers: 1,000 environments whose steps are HTTP requests to local asynchronous servers, which respond after a delay
  drawn from the seed. The ideal is the longest episode, the sum of its delays. Each row is measured in a process of its
  own, and rows alternate: this library with no option, with threads by hand, and as the floor a client of coroutines
  that only sends the same requests.
* ranks: processes of one machine as the ranks of one GRPO training. TRL's sampler and accelerate's shards give each of
  them its rows. It plays them with an engine whose steps take a fixed time and an environment that sleeps. The rows of
  all ranks together are checked: each group whole on one rank, every task with a seed of its own, none played twice.
  The seconds are compared with those of the simulation (``bench_scale_simulation.py``).
"""

import asyncio
import http.client
import json
import logging
import os
import random
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from bench_scale_simulation import EngineModel, Layout, play
from report import QUICK, Column, Table, in_process, publish, run

from gym_trl import GymSpec
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Completion, Request, Task

ENVIRONMENTS, MEAN_S, ROUNDS, SERVERS = (100, 0.2, 1, 1) if QUICK else (1000, 1.0, 3, 2)
TURNS = (3, 8)
LIMITS = Limits(tokens_per_turn=9)
PROCESSES = (1, 2) if QUICK else (1, 2, 8)
ROWS, GROUP = 8, 4
"""Episodes of each process in a step, and of each group."""
TOKENS, TOKEN_S, STEP_MEAN_S = 32, 0.01, 0.2
"""Most tokens of a response, seconds of a step of the engine, and mean seconds of a step of an environment."""
WAYS = ("no option", "threads, by hand", "coroutines, requests only")

# 1,000 environments that wait on servers


def waits(seed: int) -> list[float]:
    """Return the seconds that the server takes for each turn of an episode."""
    chance = random.Random(seed)
    return [MEAN_S * chance.lognormvariate(-0.125, 0.5) for _ in range(chance.randint(*TURNS))]


class Remote(gym.Env[str, str]):
    """Environment whose steps are requests to a server, over a connection that is kept open."""

    observation_space = action_space = AnyText()

    def __init__(self, ports: list[int]) -> None:
        self._ports = ports
        self._connection: http.client.HTTPConnection | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = waits(seed or 0)
        port = self._ports[(seed or 0) % len(self._ports)]
        self._connection = self._connection or http.client.HTTPConnection("127.0.0.1", port)
        return "Go on.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        assert self._connection is not None
        self._connection.request("GET", f"/{self._left.pop()}")
        said = self._connection.getresponse().read().decode()
        return said, 0.0, not self._left, False, {}

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def serve() -> None:
    """Run a server that responds to ``/SECONDS`` after that time, and print its port."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readline():
            while await reader.readline() not in (b"\r\n", b""):
                pass
            await asyncio.sleep(float(head.split()[1][1:]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nGo on.")
        writer.close()

    async def listen() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=2048)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    asyncio.run(listen())


@contextmanager
def servers() -> Iterator[list[int]]:
    command = [sys.executable, __file__, *["--quick"] * QUICK, "--serve"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(SERVERS)]
    try:
        yield [int(one.stdout.readline()) for one in running if one.stdout]
    finally:
        for one in running:
            one.kill()
            one.wait()


def with_library(ports: list[int], seeds: list[int], way: str) -> tuple[float, int, int]:
    """Play the episodes; return their seconds, steps and the largest number of threads."""
    logging.getLogger("gym_trl.executors.adaptive").setLevel(logging.ERROR)
    gym.register("Benchmarks/Remote-v0", partial(Remote, ports))
    by_hand: dict[str, Any] = {} if way == WAYS[0] else {"executor": "thread", "workers": len(seeds)}
    spec = GymSpec("Benchmarks/Remote-v0", num_tasks=1, num_eval_tasks=0, action_format=None, **by_hand)
    chat, threads = ByteChat(), 0

    def answer(_: Request) -> list[int]:
        nonlocal threads
        threads = max(threads, threading.active_count())
        return chat.say("go")

    env_id = next(iter(spec.tasks("train"))).env_id
    episodes = [Episode(Task(env_id, seed), chat=chat, limits=LIMITS) for seed in seeds]
    began = time.perf_counter()
    with spec.make_pool() as pool:
        played = run_episodes(episodes, pool=pool, engine=ScriptedEngine(answer))
        seconds = time.perf_counter() - began
    assert [len(one.turns) for one in played] == [len(waits(seed)) for seed in seeds]
    return seconds, sum(len(one.turns) for one in played), threads


async def requests_only(ports: list[int], seeds: list[int]) -> tuple[float, int, int]:
    """Send the same requests from coroutines."""

    async def play(seed: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[seed % len(ports)])
        left = waits(seed)
        for seconds in reversed(left):
            writer.write(f"GET /{seconds} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            await reader.readuntil(b"Go on.")
        writer.close()
        return len(left)

    began = time.perf_counter()
    steps = sum(await asyncio.gather(*map(play, seeds)))
    return time.perf_counter() - began, steps, threading.active_count()


def wait_on_servers(way: str) -> dict[str, float]:
    seeds = list(range(ENVIRONMENTS))
    with servers() as ports:
        before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
        if way == WAYS[2]:
            seconds, steps, threads = asyncio.run(requests_only(ports, seeds))
        else:
            seconds, steps, threads = with_library(ports, seeds, way)
        spent = time.process_time() - began
    longest = max(sum(waits(seed)) for seed in seeds)
    return {
        "seconds": seconds,
        "of_the_ideal": seconds / longest,
        "ideal_s": longest,
        "us_per_step": spent / steps * 1e6,
        "megabytes": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
        "threads": threads,
    }


# Processes as the ranks of one step


class Paced(gym.Env[str, str]):
    """Environment whose steps sleep."""

    observation_space = action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._left = delays(seed or 0)[::-1]
        return f"Task {seed}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._left.pop())
        return "Go on.", float(len(action)), not self._left, False, {}


def delays(seed: int) -> list[float]:
    """Return the seconds of an episode's steps."""
    chance = random.Random(seed)
    return [chance.expovariate(1 / STEP_MEAN_S) for _ in range(chance.randint(2, 8))]


class PacedEngine:
    """Engine that gives every running request one token in each step, which takes a fixed time."""

    def __init__(self, letter: int, stop: int) -> None:
        self._letter, self._stop = letter, stop
        self._running: dict[str, tuple[Request, int]] = {}
        self._due = 0.0
        self.seeds: list[int] = []

    def submit(self, request: Request) -> None:
        """Start a request, with a length drawn from its seed."""
        self.seeds.append(request.seed)
        self._running[request.id] = (request, random.Random(request.seed).randint(1, TOKENS))

    def collect(self, *, block: bool) -> list[Completion]:
        """Take one step."""
        now = time.perf_counter()
        self._due = self._due + TOKEN_S if self._due + TOKEN_S > now else now + TOKEN_S
        time.sleep(self._due - now)
        ended = []
        for name, (request, left) in list(self._running.items()):
            self._running[name] = (request, left - 1)
            if left == 1:
                del self._running[name]
                length = random.Random(request.seed).randint(1, TOKENS)
                ended.append(Completion(name, [self._letter] * (length - 1) + [self._stop], [-1.0] * length))
        return ended

    def cancel(self, request_id: str) -> None:
        """Forget a request."""
        self._running.pop(request_id, None)


def rank(folder: Path) -> None:
    """Take part in the steps of a training, and write what was played in each."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    import tiny_trainer
    import torch.distributed as dist

    from gym_trl.grpo import rollout_func
    from gym_trl.grpo.processes import leave_process_group
    from gym_trl.testing import tiny_tokenizer

    logging.getLogger("gym_trl.executors.adaptive").setLevel(logging.ERROR)
    gym.register("Benchmarks/Paced-v0", partial(Paced))
    tokenizer, steps = tiny_tokenizer(), list[dict[str, Any]]()
    engine = PacedEngine(tokenizer.encode("a", add_special_tokens=False)[0], tokenizer.eos_token_id)
    vars(rollout_func)["trainer_engine"] = lambda *_, **__: nullcontext(engine)

    def keep(rollout: rollout_func.Rollout) -> None:
        steps.append(
            {
                "tasks": [one.task.to_json() for one in rollout.episodes],
                "lengths": [[turn.stop - turn.start for turn in one.turns] for one in rollout.episodes],
                "delays": [delays(one.task.seed) for one in rollout.episodes],
                "seeds": engine.seeds,
            }
        )
        engine.seeds = []

    spec = GymSpec(
        "Benchmarks/Paced-v0", num_tasks=1_000, action_format=None, max_tokens_per_turn=TOKENS, on_rollout=keep
    )

    def timed(prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        if dist.is_initialized():
            dist.barrier()
        began, spent = time.perf_counter(), time.process_time()
        columns = spec.rollout_func(prompts, trainer)
        steps[-1] |= {"seconds": time.perf_counter() - began, "spent": time.process_time() - spent}
        return columns

    grpo = {"max_steps": 1 + ROUNDS, "per_device_train_batch_size": ROWS, "num_generations": GROUP}
    grpo["max_completion_length"] = 1_000
    tiny_trainer.make(folder / "out", spec, grpo=grpo, processing_class=tokenizer, rollout_func=timed).train()
    (folder / f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(steps))
    leave_process_group()


def ranks(processes: int) -> list[list[dict[str, Any]]]:
    """Train on a number of processes, and return what each of them has played in each step."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, *["--quick"] * QUICK, "--rank", folder]
        started = []
        for number in range(processes):
            own: dict[str, Any] = {
                "RANK": number,
                "LOCAL_RANK": number,
                "WORLD_SIZE": processes,
                "LOCAL_WORLD_SIZE": processes,
            }
            own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": 1}
            env = {**os.environ, **{name: str(value) for name, value in own.items() if processes > 1}}
            started.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        said = [process.communicate(timeout=600)[1].decode() for process in started]
        if failed := [text for process, text in zip(started, said, strict=True) if process.returncode]:
            raise RuntimeError(failed[0][-3000:])
        return [json.loads((Path(folder) / f"rank{number}.json").read_text()) for number in range(processes)]


def check(steps: list[list[dict[str, Any]]]) -> None:
    """Check that the ranks have played each group whole, each task once, and each response with a seed of its own.

    Raises:
        AssertionError: They have not.
    """
    groups, seeds, responses = [], [], 0
    for step in steps:
        for rank in step:
            tasks = [json.dumps(task, sort_keys=True) for task in rank["tasks"]]
            assert len(tasks) == ROWS
            for first in range(0, ROWS, GROUP):
                assert len(set(tasks[first : first + GROUP])) == 1, "members of a group have different tasks"
                groups.append(tasks[first])
            seeds += rank["seeds"]
            responses += sum(map(len, rank["lengths"]))
    assert len(set(groups)) == len(groups), "a task was played twice"
    assert len(set(seeds)) == len(seeds) == responses, "two responses have one seed"


def forecast(step: list[dict[str, Any]], client_s: float) -> float:
    """Return the simulated seconds of the slowest rank."""
    engine = EngineModel(TOKEN_S, 0.0, 0.0, 0.0, slots=10**4)
    layout = Layout("rank", 0, 1, 1, 1, 1024, colocated=True, engine=engine, client_s=client_s)
    outcomes = [
        play(layout, rank["lengths"], rank["delays"], prompt=50, observation=10, in_flight=ROWS) for rank in step
    ]
    return max(outcome.seconds for outcome in outcomes)


def steps_of_training() -> list[dict[str, Any]]:
    """Return measured and simulated seconds of the rollouts of each step, for each number of processes."""
    rows, client_s = [], 0.0
    for processes in PROCESSES:
        steps = list(map(list, zip(*ranks(processes), strict=True)))
        check(steps)
        steps = steps[1:]  # the first one imports and starts threads
        if not client_s:  # of a process that has the machine to itself
            client_s = statistics.median(step[0]["spent"] / len(step[0]["seeds"]) for step in steps)
        measured = [max(rank["seconds"] for rank in step) for step in steps]
        simulated = [forecast(step, client_s) for step in steps]
        rows.append(
            {
                "processes": processes,
                "episodes": processes * ROWS,
                "client_us": client_s * 1e6,
                "measured_s": statistics.median(measured),
                "simulated_s": statistics.median(simulated),
                "ratios": [one / other for one, other in zip(measured, simulated, strict=True)],
            }
        )
        print(rows[-1], flush=True)
    return rows


def median_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def spread(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def main() -> None:
    rounds = [{way: in_process(wait_on_servers, way) for way in WAYS} for _ in range(ROUNDS)]
    found = {way: [one[way] for one in rounds] for way in WAYS}
    waited = [
        {"way": way, **median_of(rows), "spread": spread([row["of_the_ideal"] for row in rows])}
        for way, rows in found.items()
    ]
    steps = steps_of_training()
    servers_columns: list[Column] = [
        (f"{ENVIRONMENTS:,} environments", "way"),
        ("seconds", "seconds"),
        ("of the longest episode's", lambda row: f"{row['of_the_ideal']:.2f}"),
        ("least to most", "spread"),
        ("µs of processor per step", "us_per_step"),
        ("MB more", "megabytes"),
        ("threads", lambda row: round(row["threads"])),
    ]
    ranks_columns: list[Column] = [
        ("processes", "processes"),
        ("episodes", "episodes"),
        ("measured, s", "measured_s"),
        ("simulated, s", "simulated_s"),
        ("measured / simulated", lambda row: f"{statistics.median(row['ratios']):.2f}"),
        ("least to most", lambda row: spread(row["ratios"])),
    ]
    publish(
        "scale_out",
        {"servers": found, "ranks": steps},
        tables=[
            Table.of("scale_out_servers", servers_columns, waited),
            Table.of("scale_out_ranks", ranks_columns, steps),
        ],
    )


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve()
    elif "--rank" in sys.argv:
        rank(Path(sys.argv[-1]))
    else:
        run(main)
