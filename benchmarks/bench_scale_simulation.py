"""Simulate the saturation of 8, 64 and 1,000 GPUs, checked against a real run of a tiny model.

$ python benchmarks/bench_scale_simulation.py [--quick]

``run_episodes``, its episodes and their transcripts are the real code, which decides the order of requests. The times
are modelled: nothing sleeps, a clock jumps from one event to the next (``Clock``). The engine, the environments and the
processor time of the clients are queues with the parameters below, each with its source. No such machines were
available: the figures come from the model and depend on its parameters.

The model leaves out NCCL and start-up times, a server's own front end (one process of ``vllm serve`` takes some
thousand requests a second; it has ``--api-server-count``), preemption, failures, and other traffic on the network.
"""

import gc
import heapq
import json
import math
import random
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from report import QUICK, Column, Table, curve, publish, require, run

from gym_trl.bases import Closing
from gym_trl.engines.protocol import Engine
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat
from gym_trl.types import Completion, EnvFailure, EpisodeResult, Request, StepResult, Task

_T = TypeVar("_T")
HERE = Path(__file__).parent

# Parameters


@dataclass(frozen=True)
class EngineModel:
    """Duration of an engine's steps: all running sequences get one token each in ``step_s``."""

    base_s: float
    """Seconds per step for reading the weights, whatever its batch."""
    sequence_s: float
    """Seconds for each sequence of the batch."""
    context_s: float
    """Seconds for each token in the contexts of the batch: reading the cache."""
    prefill_s: float
    """Seconds for each uncached token of a prompt; generation pauses meanwhile."""
    slots: int = 256
    """Concurrent sequences (``--max-num-seqs``)."""
    cache_tokens: int = 10**9
    """Tokens that the cache holds, over all running sequences."""

    def step_s(self, batch: int, context: float) -> float:
        return self.base_s + self.sequence_s * batch + self.context_s * context


# An 8B model in bf16 (Llama 3.1: 8.03e9 weights, 32 layers, 8 key-value heads of 128) on an H100 SXM (80 GB at
# 3.35 TB/s, 989 TFLOP/s dense, data sheet). The used share of the bandwidth is from NVIDIA's measurement of an 8B in
# bf16 on a GH200 (4.0 TB/s) with one request at a time, 165.8 tokens/s (1,000 tokens in, 1,000 out:
# docs.nvidia.com/nim/llama-3-1-nemotron-safety-guard-8b/performance.md); the same table has 7,590 tokens/s for 100 at a
# time, which ``published`` compares with this model.
WEIGHT_BYTES = 2 * 8.03e9
TOKEN_BYTES = 2 * 2 * 32 * 8 * 128
PUBLISHED = {1: 165.8306125, 100: 7590.530806}
USED = PUBLISHED[1] * WEIGHT_BYTES / 4.0e12
H100_BYTES_S = 3.35e12 * USED
# Half of the peak for prompts: an assumption.
PREFILL_S = 2 * 8.03e9 / (0.5 * 989e12)
H100 = EngineModel(
    base_s=WEIGHT_BYTES / H100_BYTES_S,
    sequence_s=0.0,
    context_s=TOKEN_BYTES / H100_BYTES_S,
    prefill_s=PREFILL_S,
    cache_tokens=int((0.9 * 80e9 - WEIGHT_BYTES) / TOKEN_BYTES),
)
# Tokens per second and GPU of a 7B trained with HSDP on 96 H100 (github.com/foundation-model-stack/fms-fsdp, README);
# a third more for one more pass forward, of the log probabilities.
TRAINED_TOKENS_S = 7500 * 3 / 4
# The weights go to the servers after each step: 400 Gb/s, half of it used. An assumption.
SYNC_S = WEIGHT_BYTES / (0.5 * 50e9)
BYTES_PER_TOKEN = 8
"""Bytes of a token id in a JSON body: six digits, a comma and a blank."""


def client_s() -> float:
    """Return the client's processor time per request: environment, template, HTTP, JSON. ``bench_server.py``."""
    rows = json.loads((HERE / "results" / "server.json").read_text(encoding="utf-8"))["rows"]["ours"]
    return float(statistics.median(row["client_us"] for row in rows)) / 1e6


@dataclass(frozen=True)
class Work:
    """Workload: heavy-tailed numbers of turns, and responses of many lengths."""

    prompt: int = 500
    observation: int = 100
    mean_answer: int = 200
    longest_answer: int = 1024
    most_turns: int = 30

    def turns(self, chance: random.Random) -> int:
        """Draw an episode's number of turns: at least 2, few have many."""
        return min(self.most_turns, int(2 * chance.paretovariate(1.5)))

    def answer(self, chance: random.Random) -> int:
        """Draw the number of tokens of a response."""
        return max(1, min(self.longest_answer, round(chance.expovariate(1 / self.mean_answer))))


class Latency(NamedTuple):
    """Duration of an environment's step."""

    name: str
    draw: Callable[[random.Random], float]


LATENCIES = (
    Latency("0", lambda _: 0.0),
    Latency("20 ms", lambda chance: chance.expovariate(1 / 0.02)),
    # Pareto of shape 1.5 has the mean 3 times its least: 1 s, cut at a minute.
    Latency("1 s, heavy-tailed", lambda chance: min(60.0, chance.paretovariate(1.5) / 3)),
    Latency("5 s, a browser", lambda chance: chance.lognormvariate(math.log(5) - 0.125, 0.5)),
)


@dataclass(frozen=True)
class Layout:
    """Division of GPUs, and the processes that play beside them."""

    name: str
    gpus: int
    trainers: int
    engines: int
    """Engines of one GPU each."""
    clients: int
    """Processes that play episodes: the ranks of the trainer, or the one worker of asynchronous training."""
    workers: int
    """Number of environments that can be stepped at once."""
    colocated: bool = False
    """Training and generation take turns on the same GPUs, and the client shares its engine's process."""
    asynchronous: bool = False
    slice: int = 1
    """The simulated part is 1 / ``slice``; parts share only the weights and the end of a step."""
    engine: EngineModel = H100
    client_s: float = 0.0

    def part(self) -> "Layout":
        return replace(
            self,
            engines=self.engines // self.slice,
            clients=max(1, self.clients // self.slice),
            workers=max(1, self.workers // self.slice),
            # A single client serves the simulated part of the engines more slowly.
            client_s=self.client_s * max(1.0, self.slice / self.clients),
        )


LAYOUTS = (
    Layout("8: all train and serve", 8, trainers=8, engines=8, clients=8, workers=8 * 64, colocated=True, slice=4),
    Layout("8: 4 train, 4 serve", 8, trainers=4, engines=4, clients=4, workers=4 * 64, slice=2),
    Layout("64: 32 train, 32 serve", 64, trainers=32, engines=32, clients=32, workers=2048, slice=16),
    Layout("64: the same, asynchronous", 64, trainers=32, engines=32, clients=1, workers=2048, asynchronous=True,
           slice=16),
    Layout("1,000: all train and serve", 1000, trainers=1000, engines=1000, clients=1000, workers=64_000,
           colocated=True, slice=500),
    Layout("1,000: 400 train, 600 serve", 1000, trainers=400, engines=600, clients=400, workers=64_000, slice=200),
)  # fmt: skip

# The clock and its queues


class Clock:
    """Virtual time: a heap of events."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()

    def at(self, when: float, happens: Callable[[], None]) -> None:
        """Schedule an event; events of equal time run in the order of the calls."""
        heapq.heappush(self._events, (max(when, self.now), next(self._order), happens))

    def advance(self) -> bool:
        """Jump to the next event; return false if there is none."""
        if not self._events:
            return False
        self.now, _, happens = heapq.heappop(self._events)
        happens()
        return True


class Queue:
    """Servers that each process one job at a time: a job takes the first free one."""

    def __init__(self, clock: Clock, places: int) -> None:
        self._clock = clock
        self._free = [0.0] * places
        self.busy_s = 0.0

    def serve(self, seconds: float, then: Callable[[], None]) -> None:
        """Wait for a free server, occupy it for some seconds, then call ``then``."""
        begins = max(self._clock.now, heapq.heappop(self._free))
        heapq.heappush(self._free, begins + seconds)

        def done() -> None:
            self.busy_s += seconds
            then()

        self._clock.at(begins + seconds, done)


class _Running(NamedTuple):
    ends: float
    order: int
    request: Request
    length: int
    began: float
    then: Callable[[Completion], None]


class SimulatedServer:
    """One engine: each sequence with a slot gets a token per step, the others wait."""

    def __init__(self, clock: Clock, model: EngineModel, lengths: Callable[[Request], int]) -> None:
        self._clock, self._model, self._lengths = clock, model, lengths
        self._waiting: deque[tuple[Request, float, Callable[[Completion], None]]] = deque()
        self._running: list[_Running] = []
        self._order = count()
        self._steps = 0.0  # tokens that a sequence would have if it had run from the beginning
        self._prompts = 0  # prompt tokens of all running sequences
        self._owed = 0  # cache tokens that they will have at their ends
        self._offsets = 0.0  # sum of ``_steps`` at their beginnings
        self._debt = 0.0  # seconds of prefill that are not yet done
        self._seen = 0.0
        self._version = 0
        self.busy_s = self.prefill_s = self.slot_s = 0.0
        self.tokens = self.most = 0

    def submit(self, request: Request, fresh: int, then: Callable[[Completion], None], *, first_s: float = 0.0) -> None:
        """Queue a request with ``fresh`` uncached prompt tokens; the process is busy for ``first_s`` before."""
        self.catch_up()
        self._waiting.append((request, fresh * self._model.prefill_s + first_s, then))
        self._admit()
        self._plan()

    def _step_s(self) -> float:
        batch = len(self._running)
        return self._model.step_s(batch, self._prompts + batch * self._steps - self._offsets)

    def catch_up(self) -> None:
        elapsed, self._seen = self._clock.now - self._seen, self._clock.now
        if not self._running:
            return
        self.busy_s += elapsed
        self.slot_s += elapsed * len(self._running)
        read = min(elapsed, self._debt)
        self._debt -= read
        self.prefill_s += read
        self._steps += (elapsed - read) / self._step_s()

    def _admit(self) -> None:
        model = self._model
        while self._waiting and len(self._running) < model.slots:
            request, debt_s, then = self._waiting[0]
            length = min(request.max_tokens, self._lengths(request))
            needs = len(request.prompt_ids) + length
            if self._running and self._owed + needs > model.cache_tokens:
                break
            self._waiting.popleft()
            began = self._steps
            heapq.heappush(self._running, _Running(began + length, next(self._order), request, length, began, then))
            self._prompts += len(request.prompt_ids)
            self._owed += needs
            self._offsets += self._steps
            self._debt += debt_s
        self.most = max(self.most, len(self._running))

    def _plan(self) -> None:
        """Schedule the next update at the first running sequence's last token, replacing earlier plans."""
        self._version += 1
        if self._running:
            version = self._version
            left = max(0.0, self._running[0].ends - self._steps)
            self._clock.at(self._clock.now + self._debt + left * self._step_s(), lambda: self._look(version))

    def _look(self, version: int) -> None:
        if version != self._version:
            return
        self.catch_up()
        while self._running and self._running[0].ends <= self._steps + 1e-9:
            ended = heapq.heappop(self._running)
            self._prompts -= len(ended.request.prompt_ids)
            self._owed -= len(ended.request.prompt_ids) + ended.length
            self._offsets -= ended.began
            self.tokens += ended.length
            ids = [97] * (ended.length - 1) + [256]
            ended.then(Completion(ended.request.id, ids, [-1.0] * ended.length))
        self._admit()
        self._plan()


class SimulatedEngine(Engine):
    """The servers of a layout behind one ``Engine``, with their client processes."""

    def __init__(self, clock: Clock, layout: Layout, lengths: Callable[[Request], int]) -> None:
        self._clock, self._layout = clock, layout
        self.servers = [SimulatedServer(clock, layout.engine, lengths) for _ in range(layout.engines)]
        self.clients = [Queue(clock, 1) for _ in range(layout.clients)]
        self._cached: dict[str, int] = {}
        self._ready: list[Completion] = []
        self.requests = self.bytes = self.fresh = 0

    def submit(self, request: Request) -> None:
        episode = request.episode_id
        home, cached = int(episode), self._cached.get(episode, 0)
        server, client = self.servers[home % len(self.servers)], self.clients[home % len(self.clients)]
        fresh = len(request.prompt_ids) - cached
        self.requests += 1
        self.fresh += fresh
        self.bytes += BYTES_PER_TOKEN * len(request.prompt_ids)

        def answered(completion: Completion) -> None:
            self._cached[episode] = len(request.prompt_ids) + len(completion.ids)
            self.bytes += BYTES_PER_TOKEN * len(completion.ids)
            self._ready.append(completion)

        if self._layout.colocated:
            client.busy_s += self._layout.client_s
            server.submit(request, fresh, answered, first_s=self._layout.client_s)
        else:
            client.serve(self._layout.client_s, lambda: server.submit(request, fresh, answered))

    def collect(self, *, block: bool) -> list[Completion]:
        while not self._ready and self._clock.advance() and block:
            pass
        ready, self._ready = self._ready, []
        return ready

    def cancel(self, request_id: str) -> None:
        raise NotImplementedError


class SimulatedPool(Closing):
    """Environments that respond after their delay, as many at once as there are workers."""

    def __init__(
        self,
        clock: Clock,
        workers: int,
        *,
        delays: list[list[float]],
        prompt: int,
        observation: int,
    ) -> None:
        self._clock, self._delays = clock, delays
        self._prompt, self._observation = "x" * prompt, "x" * observation
        self.workers = Queue(clock, workers)
        self._taken: dict[str, int] = {}
        self._ready: list[tuple[str, StepResult | EnvFailure]] = []
        self.began: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.alive_s = 0.0  # the area under the number of episodes that are alive
        self._alive, self._seen = 0, 0.0
        self.steps = 0

    def reset(self, key: str, task: Task) -> None:
        self._count(1)
        self.began[key], self._taken[key] = self._clock.now, 0
        self._clock.at(self._clock.now, lambda: self._ready.append((key, StepResult(self._prompt))))

    def step(self, key: str, action: str) -> None:
        delays, taken = self._delays[int(key)], self._taken[key]
        self._taken[key] += 1
        self.steps += 1
        result = StepResult(self._observation, terminated=taken + 1 == len(delays))
        self.workers.serve(delays[taken], lambda: self._ready.append((key, result)))

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        while block and not self._ready and self._clock.advance():
            pass
        ready, self._ready = self._ready, []
        return ready

    def release(self, key: str) -> None:
        self._count(-1)
        self.ended[key] = self._clock.now

    def close(self) -> None:
        """Do nothing."""

    def _count(self, more: int) -> None:
        self.alive_s += self._alive * (self._clock.now - self._seen)
        self._alive, self._seen = self._alive + more, self._clock.now


# A rollout


@dataclass(frozen=True)
class Outcome:
    """Duration of a rollout and the use of its time; rates cover all of it, shares are from 0 to 1."""

    episodes: int
    seconds: float
    tokens: int
    steps: int
    requests: int
    tokens_s: float
    """Tokens per second with all places in use, without beginning and end, as in a stream of episodes."""
    steps_s: float
    alive: float
    """Mean number of running episodes."""
    sojourn_s: float
    """Mean time of an episode."""
    tail_s: float
    """Seconds from the end of 95% of the episodes to the end of all."""
    shares: dict[str, float]
    """Utilization of each resource in that time."""
    busy_s: dict[str, float]
    """Total busy seconds of each resource, as if it were one."""
    bytes_s: float
    trained_tokens: int
    most_running: int


def simulate(layout: Layout, work: Work, latency: Latency, *, episodes: int, in_flight: int, seed: int = 0) -> Outcome:
    """Play episodes on (a part of) a layout."""

    def chance(*what: object) -> random.Random:
        return random.Random(":".join(map(str, (seed, *what))))

    def draws(what: str, draw: Callable[[random.Random], _T]) -> list[list[_T]]:
        dice = [chance(what, index) for index in range(episodes)]
        return [[draw(one) for _ in range(turns)] for one, turns in zip(dice, all_turns, strict=True)]

    all_turns = [work.turns(chance("turns", index)) for index in range(episodes)]
    lengths, delays = draws("said", work.answer), draws("took", latency.draw)
    return play(layout, lengths, delays, prompt=work.prompt, observation=work.observation, in_flight=in_flight)


def play(
    layout: Layout,
    lengths: list[list[int]],
    delays: list[list[float]],
    *,
    prompt: int,
    observation: int,
    in_flight: int,
) -> Outcome:
    """Play episodes with these lengths of responses and these delays of steps."""
    part = layout.part()
    clock, chat = Clock(), ByteChat()

    answers = [iter(turns) for turns in lengths]

    @cache  # a server may read a length several times before it has room for the request
    def length(episode_id: str, turn: int) -> int:
        return next(answers[int(episode_id)])

    engine = SimulatedEngine(clock, part, lambda request: length(request.episode_id, request.turn))
    limits = Limits(tokens_per_turn=10**6)
    players = [Episode(Task("Simulated", index), chat=chat, limits=limits) for index in range(len(lengths))]
    pool = SimulatedPool(clock, part.workers, delays=delays, prompt=prompt, observation=observation)
    servers = engine.servers

    def look() -> _Point:
        for server in servers:
            server.catch_up()
        busy = {
            "engine slots": sum(server.slot_s for server in servers) / (part.engine.slots * len(servers)),
            "engine busy": sum(server.busy_s for server in servers) / len(servers),
            "prefill": sum(server.prefill_s for server in servers) / len(servers),
            "client processes": sum(client.busy_s for client in engine.clients) / len(engine.clients),
            "environment workers": pool.workers.busy_s / part.workers,
        }
        return _Point(clock.now, len(pool.ended), sum(server.tokens for server in servers), pool.steps, busy)

    every, progress = max(1, len(lengths) // 64), [look()]

    def note(_index: int, _played: EpisodeResult) -> None:
        if len(pool.ended) % every == 0:
            progress.append(look())

    played = run_episodes(players, pool=pool, engine=engine, max_alive=in_flight, on_finish=note)
    progress.append(look())
    seconds, ends = clock.now, sorted(pool.ended.values())
    first, last = _steady(progress, len(lengths), in_flight)
    span = max(last.now - first.now, 1e-12)
    return Outcome(
        episodes=len(lengths),
        seconds=seconds,
        tokens=progress[-1].tokens,
        steps=pool.steps,
        requests=engine.requests,
        tokens_s=(last.tokens - first.tokens) / span,
        steps_s=(last.steps - first.steps) / span,
        alive=pool.alive_s / max(seconds, 1e-12),
        sojourn_s=statistics.fmean(pool.ended[key] - pool.began[key] for key in pool.ended),
        tail_s=seconds - ends[math.ceil(0.95 * len(ends)) - 1],
        shares={name: (last.busy[name] - first.busy[name]) / span for name in last.busy},
        busy_s=progress[-1].busy,
        bytes_s=engine.bytes / max(seconds, 1e-12),
        trained_tokens=sum(len(game.prompt_ids) + len(game.completion_ids) for game in played),
        most_running=max(server.most for server in servers),
    )


class _Point(NamedTuple):
    now: float
    ended: int
    tokens: int
    steps: int
    busy: dict[str, float]


def _steady(progress: list[_Point], episodes: int, in_flight: int) -> tuple[_Point, _Point]:
    """Return the interval from a quarter of the ends until no episode is left to start; all of it if empty."""
    inside = [point for point in progress if episodes / 4 <= point.ended <= episodes - in_flight]
    if inside and inside[-1].now > inside[0].now:
        return inside[0], inside[-1]
    return progress[0], progress[-1]


def bottleneck(outcome: Outcome) -> str:
    """Return the resource closest to its limit; busy engines with free slots wait for more episodes."""
    shares = {name: share for name, share in outcome.shares.items() if name not in ("prefill", "engine busy")}
    name = max(shares, key=lambda one: shares[one])
    if shares[name] < 0.8:
        return f"episodes in flight ({name} {100 * shares[name]:.0f}%)"
    return f"{name} {100 * shares[name]:.0f}%"


# Comparison with real measurements


def published() -> list[dict[str, float]]:
    """Return the model's prediction for a published machine and load, beside the measurement."""
    gh200 = replace(H100, base_s=WEIGHT_BYTES / (4.0e12 * USED), context_s=TOKEN_BYTES / (4.0e12 * USED))
    rows = []
    for batch, measured in PUBLISHED.items():
        # 1,000 tokens in, 1,000 out: 1,500 in the middle; each also reads a prompt once in a thousand steps.
        step = gh200.step_s(batch, 1500 * batch) + batch * gh200.prefill_s
        rows.append({"concurrency": batch, "model_tokens_s": batch / step, "measured_tokens_s": measured})
    return rows


def validate() -> list[dict[str, float]]:
    """Predict the seconds of the talks of ``talk.py`` from single steps of their engine, and play them for real.

    Measured seconds are of the processor, plus those in which the process could only wait for an environment, so that
    other programs do not count. The last column is wall-clock time.
    """
    import talk as real

    class Skipping(real.SlowPool):
        """Pool whose waits are skipped and counted."""

        def __init__(self, latency_s: float) -> None:
            super().__init__(latency_s)
            self._skipped = -time.process_time()

        def now(self) -> float:
            return time.process_time() + self._skipped

        def wait(self, seconds: float) -> None:
            self._skipped += seconds

    rows = []
    with real.real_model() as model:
        engine, asks = _measured_engine(model, real.EPISODES), _measured_client(model)
        layout = Layout("this machine", 0, 1, 1, 1, 10**4, colocated=True, engine=engine, client_s=asks)
        for latency_ms in real.LATENCIES_MS:
            measured, by_the_clock = [], []
            for _ in range(3):
                by_the_clock.append(model.play(real.SlowPool(latency_ms / 1000))[1])
                skipping = Skipping(latency_ms / 1000)
                played, _, _ = model.play(skipping)
                measured.append(skipping.now())
            lengths = [[turn.stop - turn.start for turn in game.turns] for game in played]
            delays = [real.delays(index, latency_ms / 1000)[: len(row)] for index, row in enumerate(lengths)]
            prompt, observation = len(played[0].prompt_ids), len(model.chat.reply("And?", closed=True))
            predicted = play(layout, lengths, delays, prompt=prompt, observation=observation, in_flight=len(played))
            rows.append(
                {
                    "latency_ms": latency_ms,
                    "predicted_s": predicted.seconds,
                    "measured_s": statistics.median(measured),
                    "by_the_clock_s": statistics.median(by_the_clock),
                }
            )
    return rows


def _measured_engine(model: Any, slots: int) -> EngineModel:
    """Measure the steps of a real engine, alone and batched."""
    from gym_trl.engines.vllm import VLLMEngine

    llm, letters = model.llm, model.llm.get_tokenizer().encode("abcdefgh", add_special_tokens=False)

    def seconds(batch: int, prompt: int, tokens: int) -> float:
        made = []
        for repeat in range(6):
            llm.reset_prefix_cache()
            engine = VLLMEngine(llm, sampling={"ignore_eos": True})
            for index in range(batch):
                engine.submit(Request(f"{repeat}-{index}", (letters * prompt)[:prompt], tokens, index))
            began, answered = time.process_time(), 0
            while answered < batch:
                answered += len(engine.collect(block=True))
            made.append(time.process_time() - began)
        return statistics.median(made[1:])

    one, many = ((seconds(batch, 8, 81) - seconds(batch, 8, 1)) / 80 for batch in (1, slots))
    read = (seconds(1, 401, 1) - seconds(1, 1, 1)) / 400
    per_sequence = max(0.0, (many - one) / (slots - 1))
    return EngineModel(one - per_sequence, per_sequence, 0.0, max(0.0, read), slots=slots)


def _measured_client(model: Any, requests: int = 200) -> float:
    """Measure the client's work per request: environment, template, and submission to the engine."""
    from talk import Talk

    from gym_trl.engines.vllm import VLLMEngine

    made, letters = [], model.llm.get_tokenizer().encode("abcdefgh", add_special_tokens=False)
    for _ in range(6):
        engine = VLLMEngine(model.llm)
        began = time.process_time()
        for index in range(requests):
            engine.submit(Request(str(index), letters * 8, 1, index))
        made.append((time.process_time() - began) / requests)
        for index in range(requests):
            engine.cancel(str(index))
        scripted = ScriptedEngine(lambda _: list(letters))
        began = time.process_time()
        with InlinePool(lambda _: Talk()) as pool:
            run_episodes(model.episodes(), pool=pool, engine=scripted)
        made[-1] += (time.process_time() - began) / len(scripted.requests)
    return statistics.median(made[1:])


# The layouts

PER_ENGINE = (8, 16) if QUICK else (16, 64, 256)
WAVE = 16 if QUICK else 256
"""Episodes of a trainer's step for each engine: a wave that fills its slots once."""


def study(layout: Layout, latency: Latency, work: Work) -> dict[str, Any]:
    """Study a layout with one kind of environment: streams of more and more episodes, and a trainer's step."""
    engines = layout.part().engines

    def stream(in_flight: int) -> Outcome:
        return simulate(layout, work, latency, episodes=5 * in_flight // 2, in_flight=in_flight)

    streams = {each: stream(each * engines) for each in PER_ENGINE}
    best = max(streams.values(), key=lambda outcome: outcome.tokens_s)
    tokens_s = best.tokens_s * layout.slice
    waves = [
        simulate(layout, work, latency, episodes=WAVE * engines, in_flight=WAVE * engines, seed=seed)
        for seed in range(1, 1 + min(2, layout.slice))
    ]
    rollout_s = max(wave.seconds for wave in waves)  # all parts wait for the slowest of those that were played
    tokens = statistics.fmean(wave.tokens for wave in waves) * layout.slice
    trained = statistics.fmean(wave.trained_tokens for wave in waves) * layout.slice
    train_s = trained / (layout.trainers * TRAINED_TOKENS_S)
    # Asynchronous training generates and trains at the same time; the slower of the two decides.
    step_s = (max(tokens / tokens_s, train_s) if layout.asynchronous else rollout_s + train_s) + SYNC_S
    return {
        "layout": layout.name,
        "latency": latency.name,
        "tokens_s_by_episodes": {each: outcome.tokens_s * layout.slice for each, outcome in streams.items()},
        "tokens_s": tokens_s,
        "steps_s": best.steps_s * layout.slice,
        "saturates": bottleneck(best),
        "shares": best.shares,
        "gigabytes_s": best.bytes_s * layout.slice / 1e9,
        "rollout_s": rollout_s,
        "tail_s": statistics.fmean(wave.tail_s for wave in waves),
        "train_s": train_s,
        "step_tokens_s": tokens / step_s,
    }


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    """Draw one panel per layout: tokens per second over episodes in flight, a line per kind of environment."""
    for axes, layout in zip(figure.subplots(2, 3, sharex=True).flat, LAYOUTS, strict=True):
        for row in (row for row in rows if row["layout"] == layout.name):
            curve(axes, {each: rate / 1000 for each, rate in row["tokens_s_by_episodes"].items()}, row["latency"])
        axes.set_title(layout.name, fontsize=9)
        axes.set(ylim=(0, None))
        axes.tick_params(labelsize=8)
    figure.supxlabel("episodes in flight for each engine", fontsize=9)
    figure.supylabel("thousand sampled tokens a second, all GPUs", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, fontsize=8)


def main() -> None:
    require(packages=["vllm"])
    began = time.perf_counter()
    checks = validate()
    print("predicted and measured:", checks, flush=True)
    asks, rows = client_s(), []
    for layout in LAYOUTS:
        for latency in LATENCIES:
            rows.append(study(replace(layout, client_s=asks), latency, Work()))
            gc.collect()
            print(f"{time.perf_counter() - began:.0f} s: {layout.name}, {latency.name}", flush=True)
    columns: list[Column] = [
        ("GPUs", "layout"),
        ("environment's step", "latency"),
        ("stream: tokens/s", lambda row: round(row["tokens_s"])),
        ("environment steps/s", lambda row: round(row["steps_s"])),
        ("first at its limit", "saturates"),
        ("HTTP: GB/s", "gigabytes_s"),
        ("a trainer's step: rollout, s", "rollout_s"),
        ("of it the last 5%, s", "tail_s"),
        ("training, s", "train_s"),
        ("sampled tokens/s, all in all", lambda row: round(row["step_tokens_s"])),
    ]
    compared: list[dict[str, Any]] = [
        {"name": f"this machine, tiny model, environments of {row['latency_ms']} ms: s", **row} for row in checks
    ]
    compared += [
        {
            "name": f"GH200, 8B, {row['concurrency']} at once: tokens/s",
            "predicted_s": row["model_tokens_s"],
            "measured_s": row["measured_tokens_s"],
        }
        for row in published()
    ]
    checked: list[Column] = [
        ("", "name"),
        ("the model says", "predicted_s"),
        ("measured", "measured_s"),
        ("measured over the model", lambda row: row["measured_s"] / row["predicted_s"]),
        ("by the clock", "by_the_clock_s"),
    ]
    publish(
        "scale_simulation",
        {"client_s": asks, "checks": checks, "published": published(), "rows": rows},
        tables=[
            Table.of("scale_simulation", columns, rows),
            Table.of("scale_simulation_checks", checked, compared),
        ],
        picture=lambda figure: draw(figure, rows),
    )


if __name__ == "__main__":
    run(main)
