"""Compare the throughput of ``vllm serve`` for 256 episodes: our engine, bare clients, large requests.

$ python benchmarks/bench_server.py

Each way makes the server answer the same requests, from an empty prefix cache, several times in alternation:

* ours: ``rollout`` with ``ServerEngine`` as in training, environments and templates included;
* ours, a seed each: the same with a seed for each request;
* bare: an aiohttp client that knows all requests beforehand and keeps the order of each episode;
* bare, free: the same with all requests independent, 256 at a time;
* httpx: the first turn of each episode with one shared ``httpx.AsyncClient``, the most common design, which is slow;
* by turns: one POST per turn with the prompts of all episodes that have this turn, as in a lockstep loop;
* at once: one POST with everything.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import aiohttp
import httpx
from report import QUICK, Column, Table, medians, publish, require, run
from support import vllm_cpu
from support.vllm_serve import CONTEXT, TRL, Server

from gym_trl.chat import Chat
from gym_trl.engines.server import ServerEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout import Limits, rollout, run as run_coroutine
from gym_trl.types import Completion, Request, Task
from gym_trl.wrappers import ParseAction

EPISODES = 64 if QUICK else 256
ROUNDS = 1 if QUICK else 3
TOKENS = 12
"""Most tokens of a turn."""
FLAGS = ["--max-num-seqs", str(EPISODES), "--max-num-batched-tokens", str(EPISODES * CONTEXT)]


class Noting(ServerEngine):
    """Engine that keeps the requests as they are sent."""

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(url, **options)
        self.chains: defaultdict[str, list[bytes]] = defaultdict(list)

    async def sample(self, request: Request) -> Completion:
        body = self._body(request, self._options)
        self.chains[request.episode_id].append(json.dumps(body, separators=(",", ":")).encode())
        return await super().sample(request)


def make(env_id: str) -> gym.Env[str, str]:
    # A random model hardly ever ends its turn: if its actions were rejected, episodes would have more than four turns.
    return ParseAction(gym.make(env_id, high=100, turns=4), format=None, cut_actions="accept")


def play(engine: ServerEngine, chat: Chat) -> int:
    """Play all episodes; return the number of sampled tokens."""
    tasks = [Task("TrlEnv/GuessNumber-v0", index // 8) for index in range(EPISODES)]
    with InlinePool(make) as pool:
        limits = Limits(tokens_per_turn=TOKENS, context=CONTEXT)
        played = run_coroutine(rollout(tasks, pool=pool, engine=engine, chat=chat, limits=limits))
    assert all(game.scored for [game] in played)
    return sum(sum(game.row.mask) for [game] in played)


def count_tokens(answer: bytes) -> int:
    """Return the number of tokens of a response, which every client has to parse."""
    return sum(len(choice["token_ids"]) for choice in json.loads(answer)["choices"])


Post: TypeAlias = Callable[[bytes], Awaitable[bytes]]


async def send(chain: Iterable[bytes], post: Post) -> int:
    """Send requests one after the other; return the number of sampled tokens."""
    return sum([count_tokens(await post(body)) for body in chain])


async def with_aiohttp(url: str, chains: Iterable[Iterable[bytes]]) -> int:
    """Send chains of requests concurrently with the bare client."""
    connector = aiohttp.TCPConnector(limit=EPISODES)
    headers, timeout = {"Content-Type": "application/json"}, aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:

        async def post(body: bytes) -> bytes:
            async with session.post(f"{url}/v1/completions", data=body) as response:
                response.raise_for_status()
                return await response.read()

        return sum(await asyncio.gather(*(send(chain, post) for chain in chains)))


async def with_httpx(url: str, chains: Iterable[Iterable[bytes]]) -> int:
    """Send the same with one shared client and its connection pool."""
    limits = httpx.Limits(max_connections=EPISODES, max_keepalive_connections=EPISODES)
    async with httpx.AsyncClient(limits=limits, timeout=600, headers={"Content-Type": "application/json"}) as client:

        async def post(body: bytes) -> bytes:
            return (await client.post(f"{url}/v1/completions", content=body)).content

        return sum(await asyncio.gather(*(send(chain, post) for chain in chains)))


def in_batches(url: str, batches: list[list[bytes]]) -> int:
    """Send one POST per batch, with one length."""
    sampled = 0
    with httpx.Client(timeout=600) as client:
        for batch in batches:
            bodies = [json.loads(body) for body in batch]
            most = max(one["max_tokens"] for one in bodies)
            body = {**bodies[0], "prompt": [one["prompt"] for one in bodies], "max_tokens": most}
            sampled += count_tokens(client.post(f"{url}/v1/completions", json=body).content)
    return sampled


def by_turns(work: list[list[bytes]]) -> list[list[bytes]]:
    """Return the first requests of all chains, then the second ones, and so on."""
    longest = max(len(chain) for chain in work)
    return [[chain[turn] for chain in work if turn < len(chain)] for turn in range(longest)]


def measure(server: Server, chat: Chat, only: Collection[str] = ()) -> tuple[int, dict[str, list[dict[str, float]]]]:
    """Return the number of requests, and the rounds of each way, or of some."""
    # This also warms up the server.
    engine = Noting(server.url, eos_ids=chat.stop_ids, concurrency=EPISODES, seeded=False)
    play(engine, chat)
    work = [engine.chains[key] for key in sorted(engine.chains, key=int)]
    everything = [body for chain in work for body in chain]

    def ours(*, seeded: bool) -> int:
        # As in training, which checks the server at its first rollout.
        options: dict[str, Any] = {"eos_ids": chat.stop_ids, "concurrency": EPISODES, "check": False}
        return play(ServerEngine(server.url, **options, seeded=seeded), chat)

    ways: dict[str, Callable[[], int]] = {
        "ours": partial(ours, seeded=False),
        "ours, a seed each": partial(ours, seeded=True),
        "bare": lambda: asyncio.run(with_aiohttp(server.url, work)),
        # One shared iterator: each of the chains takes the next request when it has an answer.
        "bare, free": lambda: asyncio.run(with_aiohttp(server.url, [iter(everything)] * EPISODES)),
        "httpx": lambda: asyncio.run(with_httpx(server.url, [chain[:1] for chain in work])),
        "by turns": lambda: in_batches(server.url, by_turns(work)),
        "at once": lambda: in_batches(server.url, [everything]),
    }
    ways = {name: ways[name] for name in only or ways}
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for round_ in range(ROUNDS):
        # Each way has another place in each round: the speed of a shared machine drifts.
        names = list(ways)[round_ % len(ways) :] + list(ways)[: round_ % len(ways)]
        for name in names:
            httpx.post(f"{server.url}/reset_prefix_cache", timeout=60).raise_for_status()
            steps = server.metric("iteration_tokens_total_count")
            began, spent = time.perf_counter(), time.process_time()
            tokens = ways[name]()
            wall = time.perf_counter() - began
            row = {
                "tokens_per_s": tokens / wall,
                "client_us": (time.process_time() - spent) / (len(work) if name == "httpx" else len(everything)) * 1e6,
                "steps": server.metric("iteration_tokens_total_count") - steps,
            }
            rows[name].append(row)
            print(f"{round_} {name:17} {wall:6.2f} s {tokens:7} tokens", flush=True)
    return len(everything), {name: made for name, made in rows.items() if made}


def main() -> None:
    require(packages=["vllm"])
    # The bare clients do not retry if an idle connection was closed by the server.
    os.environ["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "60"
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "model"
        _, tokenizer = vllm_cpu.save_model(saved)
        server = Server(saved, *TRL, *FLAGS)
        try:
            server.start()
            server.wait()
            requests, rounds = measure(server, Chat(tokenizer))
        finally:
            server.close()
    ways = [
        {
            "way": name,
            "best": max(row["tokens_per_s"] for row in rows),
            **medians(rows),
        }
        for name, rows in rounds.items()
    ]
    ours = ways[0]
    columns: list[Column] = [
        ("", "way"),
        ("tokens/s: best", "best"),
        ("median", "tokens_per_s"),
        ("ours over it: best", lambda row: ours["best"] / row["best"]),
        ("median", lambda row: ours["tokens_per_s"] / row["tokens_per_s"]),
        ("engine steps", "steps"),
        ("client: µs of processor a request", "client_us"),
    ]
    publish(
        "server",
        {"tokens_per_turn": TOKENS, "requests": requests, "rows": rounds},
        tables=[Table.of("server", columns, ways)],
    )


if __name__ == "__main__":
    run(main)
