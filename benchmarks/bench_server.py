# mypy: allow-untyped-calls
"""Compare throughput of ``vllm serve`` for 256 episodes: our engine, bare clients, large requests.

$ python benchmarks/bench_server.py [tokens per turn] [apart]

``apart`` keeps the server on the first core and the clients on the second one, as if they were two machines.

Every way makes the server answer the very same requests, from an empty prefix cache, in turn and several times over:

* ours: ``run_episodes`` with ``ServerEngine``, environments, templates and all;
* bare: an aiohttp client that knows all requests beforehand and sends an episode's next one when the last is answered;
* bare, free: the same with all requests independent, 256 at a time;
* httpx: as bare, with one shared ``httpx.AsyncClient``, the most common design (measured once, as it is slow);
* by turns: one POST for each turn with the prompts of all episodes that have one, which is what a lockstep loop does;
* at once: one POST with everything.
"""

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import gymnasium as gym

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import aiohttp
import httpx
import vllm_cpu
from report import QUICK, Cell, Table, bars, publish, require
from vllm_serve import CONTEXT, TRL, Server

from gym_trl.chat.template import TemplateChat
from gym_trl.engines.server import ServerEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import Request, Task

EPISODES = 64 if QUICK else 256
ROUNDS = 1 if QUICK else 4
APART = "apart" in sys.argv
TOKENS = int(next((word for word in sys.argv[1:] if word.isdecimal()), 12))
FLAGS = ["--max-num-seqs", str(EPISODES), "--max-num-batched-tokens", str(EPISODES * CONTEXT)]


class Noting(ServerEngine):
    """Engine that keeps the requests as they are sent."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.bodies: dict[str, bytes] = {}

    def submit(self, request: Request) -> None:
        """Record and send a request."""
        self.bodies[request.id] = self._sender._body(self._servers[0], request)
        super().submit(request)


def play(engine: ServerEngine, chat: TemplateChat) -> int:
    """Play all games to their ends; return the number of sampled tokens."""
    episodes = [
        Episode(
            Task("TrlEnv/GuessNumber-v0", index // 8),
            chat=chat,
            limits=Limits(tokens_per_turn=TOKENS, context=CONTEXT),
            seed=derive_seed("sampling", index),
        )
        for index in range(EPISODES)
    ]
    with InlinePool(lambda env_id: gym.make(env_id, high=100, turns=4)) as pool:
        played = run_episodes(episodes, pool=pool, engine=engine)
    assert all(game.scored for game in played)
    return sum(sum(game.mask) for game in played)


def chains(bodies: dict[str, bytes]) -> list[list[bytes]]:
    """Return each episode's requests, in order."""
    order = sorted(bodies, key=lambda name: (int(name.split("-")[0]), int(name.split("-")[1])))
    return [[bodies[name] for name in names] for _, names in groupby(order, key=lambda name: name.split("-")[0])]


def count_tokens(answer: bytes) -> int:
    """Return the number of tokens of a response, which a client has to parse."""
    return sum(len(choice["token_ids"]) for choice in json.loads(answer)["choices"])


async def follow(work: list[list[bytes]], post: Callable[[bytes], Awaitable[bytes]]) -> int:
    """Send every chain concurrently, each one request after the other."""

    async def one(chain: list[bytes]) -> int:
        return sum([count_tokens(await post(body)) for body in chain])

    return sum(await asyncio.gather(*map(one, work)))


async def drain(bodies: Iterator[bytes], post: Callable[[bytes], Awaitable[bytes]]) -> int:
    """Send all requests, ``EPISODES`` at a time."""

    async def worker() -> int:
        return sum([count_tokens(await post(body)) for body in bodies])

    return sum(await asyncio.gather(*(worker() for _ in range(EPISODES))))


async def with_aiohttp(url: str, work: list[list[bytes]], *, free: bool) -> int:
    """Run the bare client."""
    connector = aiohttp.TCPConnector(limit=EPISODES)
    headers, timeout = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:

        async def post(body: bytes) -> bytes:
            async with session.post(f"{url}/v1/completions", data=body) as response:
                response.raise_for_status()
                return await response.read()

        if free:
            return await drain((body for chain in work for body in chain), post)
        return await follow(work, post)


async def with_httpx(url: str, work: list[list[bytes]]) -> int:
    """Run one shared client with its pool of connections."""
    limits = httpx.Limits(max_connections=EPISODES, max_keepalive_connections=EPISODES)
    async with httpx.AsyncClient(limits=limits, timeout=600, headers={"Content-Type": "application/json"}) as client:

        async def post(body: bytes) -> bytes:
            return (await client.post(f"{url}/v1/completions", content=body)).content

        return await follow(work, post)


def in_batches(url: str, batches: list[list[bytes]]) -> int:
    """Send one POST per batch, without a seed, which would sample all its prompts alike, and with one length."""
    sampled = 0
    with httpx.Client(timeout=600) as client:
        for batch in batches:
            bodies = [json.loads(body) for body in batch]
            body = {
                **bodies[0],
                "seed": None,
                "prompt": [one["prompt"] for one in bodies],
                "max_tokens": max(one["max_tokens"] for one in bodies),
            }
            sampled += count_tokens(client.post(f"{url}/v1/completions", json=body).content)
    return sampled


def by_turns(work: list[list[bytes]]) -> list[list[bytes]]:
    """Return the first requests of all chains, then the second ones, and so on."""
    longest = max(len(chain) for chain in work)
    return [[chain[turn] for chain in work if turn < len(chain)] for turn in range(longest)]


def measure(server: Server, chat: TemplateChat) -> dict[str, Any]:
    """Measure every way, ``ROUNDS`` times."""
    with Noting(server.url, eos_ids=chat.stop_ids, concurrency=EPISODES) as engine:  # also warms up the server
        play(engine, chat)
        work, sample = chains(engine.bodies), sum(len(body) for body in engine.bodies.values())

    def ours() -> int:
        # As in training, which checks the server at its first rollout.
        with ServerEngine(server.url, eos_ids=chat.stop_ids, concurrency=EPISODES, check=False) as engine:
            return play(engine, chat)

    ways: dict[str, Callable[[], int]] = {
        "ours": ours,
        "bare": lambda: asyncio.run(with_aiohttp(server.url, work, free=False)),
        "bare, free": lambda: asyncio.run(with_aiohttp(server.url, work, free=True)),
        "httpx": lambda: asyncio.run(with_httpx(server.url, work)),
        "by turns": lambda: in_batches(server.url, by_turns(work)),
        "at once": lambda: in_batches(server.url, [[body for chain in work for body in chain]]),
    }
    requests = sum(len(chain) for chain in work)
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for round_ in range(ROUNDS):
        # Each way has another place in each round: machines that are shared drift.
        names = list(ways)[round_ % len(ways) :] + list(ways)[: round_ % len(ways)]
        for name in names:
            if name == "httpx" and (round_ or QUICK):  # slow: minutes
                continue
            httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()
            steps = server.metric("iteration_tokens_total_count")
            began, spent, own = time.perf_counter(), time.process_time(), time.thread_time()
            tokens = ways[name]()
            wall = time.perf_counter() - began
            row = {
                "requests_per_s": requests / wall,
                "tokens_per_s": tokens / wall,
                "tokens": tokens,
                "client_us": (time.process_time() - spent) / requests * 1e6,
                "steps": server.metric("iteration_tokens_total_count") - steps,
                "main_thread_us": (time.thread_time() - own) / requests * 1e6,
            }
            rows[name].append(row)
            print(f"{round_} {name:12} {wall:6.2f} s {tokens:7} tokens", flush=True)
    return {"requests": requests, "bytes": sample, "rows": rows}


def main() -> None:
    """Measure, print a table and write the results."""
    require(packages=["vllm"])
    # The bare clients do not ask again where an idle connection was closed under them.
    os.environ["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "60"
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "model"
        _, tokenizer = vllm_cpu.save_model(saved)
        server = Server(saved, *TRL, *FLAGS)
        try:
            if APART:
                os.sched_setaffinity(0, {0})  # which the server inherits
            server.start()
            if APART:
                os.sched_setaffinity(0, {1})
            server.wait()
            report = measure(server, TemplateChat(tokenizer))
        finally:
            server.close()
    ours = report["rows"]["ours"]
    header = [
        "",
        "tokens/s: best",
        "median",
        "ours over it: best",
        "median",
        "engine steps",
        "client: µs of processor a request",
    ]
    rows: list[list[Cell]] = [
        [
            name,
            _best(made),
            _median(made, "tokens_per_s"),
            _best(ours) / _best(made),
            _median(ours, "tokens_per_s") / _median(made, "tokens_per_s"),
            _median(made, "steps"),
            _median(made, "client_us"),
        ]
        for name, made in report["rows"].items()
        if made
    ]
    medians = {name: _median(made, "tokens_per_s") for name, made in report["rows"].items() if made}
    publish(
        "server",
        {"tokens_per_turn": TOKENS, **report},
        tables=[Table("server", header, rows)],
        picture=lambda figure: bars(figure.subplots(), medians, "tokens a second, median"),
    )


def _best(rows: list[dict[str, float]]) -> float:
    return max(row["tokens_per_s"] for row in rows)


def _median(rows: list[dict[str, float]], name: str) -> float:
    return statistics.median(row[name] for row in rows)


if __name__ == "__main__":
    main()
