"""Short talks with the real vLLM, continuously and in lockstep, for its tests and ``benchmarks/bench_gpu.py``."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias
from unittest.mock import patch

import gymnasium as gym
import numpy as np

from gym_trl.chat import Chat
from gym_trl.engines.protocol import Engine
from gym_trl.engines.vllm import VLLMEngine
from gym_trl.episode import Episode
from gym_trl.executors.inline import InlinePool, Result
from gym_trl.rollout import Limits, rollout, run
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, Request, Task

EPISODES = 64
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

    def __init__(self, latency_s: float) -> None:
        super().__init__(lambda _: Talk())
        self._latency_s = latency_s
        self._steps: dict[str, int] = {}

    async def execute(self, key: str, work: Task | str) -> Result:
        """Reset or step the environment of an episode, and wait; there is no delay for resets."""
        result = await super().execute(key, work)
        if not isinstance(work, Task):
            step = self._steps[key] = self._steps.get(key, -1) + 1
            await asyncio.sleep(np.random.default_rng(int(key)).exponential(self._latency_s, size=10)[step])
        return result


@dataclass(frozen=True)
class Model:
    """Real vLLM with a model, by default for turns of up to 40 tokens."""

    llm: Any
    chat: Chat
    eos_ids: frozenset[int]
    limits: Limits = LIMITS

    @classmethod
    def of(cls, llm: Any, limits: Limits) -> Self:
        """Return a pretrained model, which ends its turns itself."""
        tokenizer = llm.get_tokenizer()
        chat = Chat(tokenizer)
        return cls(llm, chat, chat.stop_ids | ({tokenizer.eos_token_id} - {None}), limits)

    @classmethod
    def tiny(cls, llm: Any, tokenizer: Any) -> Self:
        """Return the tiny model, for which ten ids of a hundred end a turn, so that turns have one to forty tokens."""
        chat = Chat(tokenizer)
        return cls(llm, chat, chat.stop_ids | {*tokenizer.encode("etaoinshr", add_special_tokens=False)})

    def play(
        self,
        pool: InlinePool,
        scheduler: "Scheduler | None" = None,
        indices: Iterable[int] = range(EPISODES),
        seeded: bool = True,
    ) -> tuple[list[Episode], float, int]:
        """Return the episodes, the seconds and the engine steps, from an empty prefix cache."""
        self.llm.reset_prefix_cache()
        engine = VLLMEngine(self.llm, eos_ids=self.eos_ids, seeded=seeded)
        tasks = [Task("Talk", index) for index in indices]
        seeds = [derive_seed("talk", task.seed) for task in tasks]
        with pool:
            began = time.perf_counter()
            options = {"pool": pool, "chat": self.chat, "seeds": seeds, "limits": self.limits}
            played = (scheduler or continuous)(tasks, engine=engine, **options)
            return played, time.perf_counter() - began, engine.steps


Scheduler: TypeAlias = Callable[..., list[Episode]]


def continuous(tasks: Sequence[Task], *, engine: Engine, **options: Any) -> list[Episode]:
    """Play as a training does: no episode waits for another."""
    return [episode for [episode] in run(rollout(tasks, engine=engine, **options))]


def lockstep(tasks: Sequence[Task], *, engine: Engine, pool: InlinePool, **options: Any) -> list[Episode]:
    """Play turn by turn: all rows wait for the slowest (trl 1.16, ``_tool_call_loop``)."""
    barrier, release = Barrier(engine, len(tasks)), pool.release

    def leave(key: str) -> None:
        release(key)
        barrier.leave()

    with patch.object(pool, "release", leave):
        played = run(rollout(tasks, engine=barrier, pool=pool, **options))
    return [episode for [episode] in played]


class Barrier:
    """Engine that begins when all episodes that are not over have asked, and answers all of them together."""

    def __init__(self, engine: Engine, alive: int) -> None:
        self._engine, self._alive = engine, alive
        self._waiting: dict[str, tuple[Request, asyncio.Future[Completion]]] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def sample(self, request: Request) -> Completion:
        """Return the completion of a request."""
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._waiting[request.id] = request, future
        self._begin()
        return await future

    def leave(self) -> None:
        """Note that an episode is over."""
        self._alive -= 1
        self._begin()

    def _begin(self) -> None:
        if not self._waiting or len(self._waiting) < self._alive:
            return
        waiting, self._waiting = self._waiting, {}
        for request, _ in waiting.values():
            self._engine.submit(request)
        answers: list[Completion] = []
        while len(answers) < len(waiting):
            answers += self._engine.collect()
        for answer in answers:
            waiting[answer.request_id][1].set_result(answer)
