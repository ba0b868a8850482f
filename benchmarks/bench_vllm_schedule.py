# mypy: allow-untyped-calls
"""Compare continuous and lockstep scheduling with the real vLLM on a CPU: engine steps, and seconds.

$ python benchmarks/bench_vllm_schedule.py
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import vllm_cpu
from report import QUICK, Column, Table, grouped_bars, publish, require, run
from systems.floors import exactly

from gym_trl.chat.template import TemplateChat
from gym_trl.engines.vllm import VLLMEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, EnvFailure, EpisodeResult, Request, StepResult, Task

EPISODES = 64
LATENCIES_MS, ROUNDS = ((0, 20), 1) if QUICK else ((0, 20, 100), 3)


class Talk(gym.Env[str, str]):
    """Game of 1 to 10 turns, drawn from the seed; few games have many."""

    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(1000)
    reads_responses = True
    """A response that is cut off counts as an action."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = min(10, int(self.np_random.pareto(1.2)) + 1)
        return "Say something.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return "And?", 0.0, self.left == 0, False, {}


class SlowPool(InlinePool):
    """Environments with delayed results, as on another machine: each step by its own draw, equal in every run."""

    def __init__(self, latency_s: float, *, first: int = 0) -> None:
        super().__init__(lambda _: Talk())
        self._latency_s = latency_s
        self._first = first
        self._due: dict[str, tuple[float, StepResult | EnvFailure]] = {}
        self._steps: dict[str, int] = {}

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the due results; if ``block``, wait for one."""
        for key, reply in super().collect(block=True):
            self._due[key] = (self.now() + self._delay(key), reply)
        if block and self._due:
            self.wait(max(0.0, min(due for due, _ in self._due.values()) - self.now()))
        now = self.now()
        return [(key, self._due.pop(key)[1]) for key, (due, _) in list(self._due.items()) if due <= now]

    def now(self) -> float:
        return time.perf_counter()

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def _delay(self, key: str) -> float:
        step = self._steps[key] = self._steps.get(key, -1) + 1
        return delays(self._first + int(key), self._latency_s)[step - 1] if step else 0.0  # no delay for resets


def delays(index: int, latency_s: float) -> list[float]:
    return [float(delay) for delay in np.random.default_rng(index).exponential(latency_s, size=10)]


@dataclass(frozen=True)
class Model:
    """Real vLLM with a tiny model."""

    llm: Any
    tokenizer: Any
    chat: TemplateChat

    def episodes(self, indices: Iterable[int] = range(EPISODES)) -> list[Episode]:
        """Return episodes of 1 to 10 turns of up to 40 tokens."""
        limits = Limits(tokens_per_turn=40, context=512)
        return [
            Episode(Task("Talk", index), chat=self.chat, limits=limits, seed=derive_seed("talk", index))
            for index in indices
        ]

    def play(
        self,
        pool: InlinePool,
        scheduler: Callable[..., list[EpisodeResult]] = run_episodes,
        indices: Iterable[int] = range(EPISODES),
    ) -> tuple[list[EpisodeResult], float, int]:
        """Return the episodes, the seconds and the engine steps, from an empty prefix cache."""
        self.llm.reset_prefix_cache()
        episodes = self.episodes(indices)
        # Ten ids of a hundred end a turn, so that turns have one to forty tokens.
        ends = self.tokenizer.encode("etaoinshr", add_special_tokens=False)
        engine = VLLMEngine(self.llm, eos_ids={*self.chat.stop_ids, *ends})
        with pool:
            began = time.perf_counter()
            played = scheduler(episodes, pool=pool, engine=engine)
            return played, time.perf_counter() - began, engine.steps


@contextmanager
def real_model() -> Iterator[Model]:
    """Provide the model, warmed up."""
    vllm_cpu.prepare()
    with tempfile.TemporaryDirectory() as folder:
        _, tokenizer = vllm_cpu.save_model(Path(folder))
        with vllm_cpu.small_llm(Path(folder), max_num_seqs=EPISODES) as llm:
            model = Model(llm, tokenizer, TemplateChat(tokenizer))
            model.play(SlowPool(0.0))
            yield model


def lockstep(episodes: Sequence[Episode], *, pool: InlinePool, engine: VLLMEngine) -> list[EpisodeResult]:
    """Play turn by turn: all rows wait for the slowest (trl 1.16, ``_tool_call_loop``)."""
    finished: dict[str, EpisodeResult] = {}
    for index, episode in enumerate(episodes):
        pool.reset(str(index), episode.task)
    todo = {key: episodes[int(key)].started(reply) for key, reply in _all(pool, len(episodes))}
    while asked := {key: what for key, what in todo.items() if isinstance(what, Sample)}:
        for key, what in asked.items():
            engine.submit(Request(key, what.prompt_ids, what.max_tokens, what.seed))
        answers: list[Completion] = []
        while len(answers) < len(asked):
            answers += engine.collect(block=True)
        for answer in answers:
            act = episodes[int(answer.request_id)].sampled(answer)
            assert isinstance(act, Act)
            pool.step(answer.request_id, act.action)
        todo = {key: episodes[int(key)].stepped(reply) for key, reply in _all(pool, len(asked))}
        finished |= {key: what for key, what in todo.items() if isinstance(what, EpisodeResult)}
    return [finished[str(index)] for index in range(len(episodes))]


def _all(pool: InlinePool, count: int) -> list[tuple[str, StepResult | EnvFailure]]:
    replies: list[tuple[str, StepResult | EnvFailure]] = []
    while len(replies) < count:
        replies += pool.collect(block=True)
    return replies


def measure(model: Model) -> list[dict[str, Any]]:
    """Return a row per latency; seconds are medians."""
    schedulers = {"continuous": run_episodes, "lockstep": lockstep}
    rows, tokens = [], all_tokens_s(model)
    for latency_ms in LATENCIES_MS:
        row: dict[str, Any] = {"latency_ms": latency_ms}
        took: dict[str, list[float]] = {name: [] for name in schedulers}
        for number in range(ROUNDS):
            for name in list(schedulers)[:: -1 if number % 2 else 1]:
                played, seconds, row[f"{name}_steps"] = model.play(SlowPool(latency_ms / 1000), schedulers[name])
                took[name].append(seconds)
        row |= {f"{name}_s": statistics.median(seconds) for name, seconds in took.items()}
        row["floor_steps"] = max(sum(game.mask) for game in played)
        row["slowest_alone_s"] = slowest_alone_s(model, played, latency_ms / 1000)
        row["bound_s"] = max(row["slowest_alone_s"], tokens)
        rows.append(row)
    return rows


def slowest_alone_s(model: Model, played: Sequence[EpisodeResult], latency_s: float) -> float:
    """Return the seconds of the longest episode, played alone."""

    def estimate(index: int) -> float:
        return sum(delays(index, latency_s)[: len(played[index].turns)]) + 0.002 * sum(played[index].mask)

    index = max(range(len(played)), key=estimate)
    return model.play(SlowPool(latency_s, first=index), indices=[index])[1]


def all_tokens_s(model: Model) -> float:
    """Return the seconds of a rollout's tokens in one batch, without turns: per episode as many as sampled."""
    played, _, _ = model.play(SlowPool(0.0))
    prompts = [{"prompt_token_ids": game.prompt_ids} for game in played]
    lengths = [exactly(sum(game.mask)) for game in played]
    took = []
    for _ in range(ROUNDS):
        model.llm.reset_prefix_cache()
        began = time.perf_counter()
        model.llm.generate(prompts, lengths, use_tqdm=False)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    require(packages=["vllm"])
    with real_model() as model:
        rows = measure(model)
    columns: list[Column] = [
        ("environment's latency", lambda row: f"{row['latency_ms']} ms"),
        ("steps: floor", "floor_steps"),
        ("continuous", "continuous_steps"),
        ("lockstep", "lockstep_steps"),
        ("seconds: bound", "bound_s"),
        ("continuous", "continuous_s"),
        ("lockstep", "lockstep_s"),
    ]
    table = Table.of("vllm_schedule", columns, rows)
    publish("vllm_schedule", {"episodes": EPISODES, "rows": rows}, tables=[table], picture=lambda it: draw(it, rows))


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    latencies = [f"{row['latency_ms']} ms" for row in rows]
    left, right = figure.subplots(1, 2)
    for axes, unit, label in ((left, "steps", "engine steps"), (right, "s", "seconds")):
        keys = {"floor": "floor_steps" if axes is left else "bound_s"}
        keys |= {name: f"{name}_{unit}" for name in ("continuous", "lockstep")}
        heights = {name: [row[key] for row in rows] for name, key in keys.items()}
        grouped_bars(axes, latencies, heights, label)
        axes.set(xlabel="environment's latency")
    right.legend()


if __name__ == "__main__":
    run(main)
