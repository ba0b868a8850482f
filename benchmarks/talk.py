"""Short talks with the real vLLM, for the tests of the engine and ``bench_gpu.py``."""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import QUICK

from gym_trl.chat import Chat
from gym_trl.engines.vllm import VLLMEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, EnvFailure, EpisodeResult, Request, StepResult, Task

EPISODES = 64
LATENCIES_MS = (0, 20) if QUICK else (0, 20, 100)
LIMITS = Limits(tokens_per_turn=40, context=512)


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
    """Real vLLM with a model, by default for turns of up to 40 tokens."""

    llm: Any
    chat: Chat
    eos_ids: frozenset[int]
    limits: Limits = LIMITS

    @classmethod
    def tiny(cls, llm: Any, tokenizer: Any) -> Self:
        """Return the tiny model, for which ten ids of a hundred end a turn, so that turns have one to forty tokens."""
        chat = Chat(tokenizer)
        return cls(llm, chat, chat.stop_ids | {*tokenizer.encode("etaoinshr", add_special_tokens=False)})

    def episodes(self, indices: Iterable[int] = range(EPISODES)) -> list[Episode]:
        """Return episodes of 1 to 10 turns."""
        return [
            Episode(Task("Talk", index), chat=self.chat, limits=self.limits, seed=derive_seed("talk", index))
            for index in indices
        ]

    def play(
        self,
        pool: InlinePool,
        scheduler: Callable[..., list[EpisodeResult]] = run_episodes,
        indices: Iterable[int] = range(EPISODES),
        seed: int | None = None,
    ) -> tuple[list[EpisodeResult], float, int]:
        """Return the episodes, the seconds and the engine steps, from an empty prefix cache."""
        self.llm.reset_prefix_cache()
        episodes = self.episodes(indices)
        engine = VLLMEngine(self.llm, eos_ids=self.eos_ids, seed=seed)
        with pool:
            began = time.perf_counter()
            played = scheduler(episodes, pool=pool, engine=engine)
            return played, time.perf_counter() - began, engine.steps


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
