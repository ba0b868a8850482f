# mypy: allow-untyped-calls
"""Measure waits for the slowest episode with the real vLLM on a CPU: engine steps, and seconds.

$ python benchmarks/bench_vllm_schedule.py
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import vllm_cpu
from report import QUICK, Table, publish, require

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.vllm import VLLMEngine
from gym_trl.executors.inline import InlinePool
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, EnvFailure, EnvReply, Request, Task, Trajectory

EPISODES = 64
LATENCIES_MS, ROUNDS = ((0, 20), 1) if QUICK else ((0, 20, 100), 3)


class Talk(gym.Env[str, str]):
    """Game of 1 to 10 turns, drawn from the seed; few games have many."""

    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(1000)
    reads_responses = True
    """A response that is cut off is an action like any other."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Draw the number of turns."""
        super().reset(seed=seed)
        self.left = min(10, int(self.np_random.pareto(1.2)) + 1)
        return "Say something.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Count down."""
        self.left -= 1
        return "And?", 0.0, self.left == 0, False, {}


class SlowPool(InlinePool):
    """Environments with delayed results, as on another machine: each step by its own draw, equal in every run."""

    def __init__(self, latency_s: float, *, first: int = 0) -> None:
        super().__init__(lambda _: Talk())
        self._latency_s = latency_s
        self._first = first
        self._due: dict[str, tuple[float, EnvReply | EnvFailure]] = {}
        self._steps: dict[str, int] = {}

    def collect(self, *, block: bool) -> list[tuple[str, EnvReply | EnvFailure]]:
        """Return the due results; if ``block``, wait for one."""
        for key, reply in super().collect(block=True):
            self._due[key] = (time.perf_counter() + self._delay(key), reply)
        if block and self._due:
            time.sleep(max(0.0, min(due for due, _ in self._due.values()) - time.perf_counter()))
        now = time.perf_counter()
        return [(key, self._due.pop(key)[1]) for key, (due, _) in list(self._due.items()) if due <= now]

    def _delay(self, key: str) -> float:
        step = self._steps[key] = self._steps.get(key, -1) + 1
        return delays(self._first + int(key), self._latency_s)[step - 1] if step else 0.0  # no delay for resets


def delays(index: int, latency_s: float) -> list[float]:
    """Return the seconds of each step of an episode's environment."""
    return [float(delay) for delay in np.random.default_rng(index).exponential(latency_s, size=10)]


def talks(chat: Chat, count: int = EPISODES) -> list[Episode]:
    """Return episodes of 1 to 10 turns of up to 40 tokens."""
    limits = Limits(tokens_per_turn=40, context=512)
    return [
        Episode(Task("Talk", index), chat=chat, limits=limits, seed=derive_seed("talk", index))
        for index in range(count)
    ]


def talker(llm: Any, chat: TemplateChat, tokenizer: Any) -> VLLMEngine:
    """Return an engine where ten ids of a hundred end a turn, so that turns have one to forty tokens."""
    return VLLMEngine(llm, eos_ids={*chat.stop_ids, *tokenizer.encode("etaoinshr", add_special_tokens=False)})


def lockstep(episodes: Sequence[Episode], pool: InlinePool, engine: VLLMEngine) -> list[Trajectory]:
    """Play turn by turn: all rows wait for the slowest (trl 1.16, ``_tool_call_loop``)."""
    finished: dict[str, Trajectory] = {}
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
        finished |= {key: what for key, what in todo.items() if isinstance(what, Trajectory)}
    return [finished[str(index)] for index in range(len(episodes))]


def _all(pool: InlinePool, count: int) -> list[tuple[str, EnvReply | EnvFailure]]:
    replies: list[tuple[str, EnvReply | EnvFailure]] = []
    while len(replies) < count:
        replies += pool.collect(block=True)
    return replies


def continuous(episodes: Sequence[Episode], pool: InlinePool, engine: VLLMEngine) -> list[Trajectory]:
    """Play with this library's scheduler."""
    return run_episodes(episodes, pool=pool, engine=engine)


def measure(llm: Any, chat: TemplateChat, tokenizer: Any) -> list[dict[str, Any]]:
    """Return one row per latency; seconds are medians."""
    rows = []
    for latency_ms in LATENCIES_MS:
        row: dict[str, Any] = {"latency_ms": latency_ms}
        took: dict[str, list[float]] = {"continuous": [], "lockstep": []}
        for number in range(ROUNDS):
            for play in (continuous, lockstep) if number % 2 == 0 else (lockstep, continuous):
                llm.reset_prefix_cache()
                engine = talker(llm, chat, tokenizer)
                with SlowPool(latency_ms / 1000) as pool:
                    began = time.perf_counter()
                    played = play(talks(chat), pool, engine)
                    took[play.__name__].append(time.perf_counter() - began)
                row[f"{play.__name__}_steps"] = engine.steps
        row |= {f"{name}_s": statistics.median(seconds) for name, seconds in took.items()}
        row["floor_steps"] = max(sum(game.mask) for game in played)
        row["slowest_alone_s"] = slowest_alone(llm, chat, tokenizer, played, latency_ms / 1000)
        rows.append(row)
    return rows


def slowest_alone(
    llm: Any, chat: TemplateChat, tokenizer: Any, played: Sequence[Trajectory], latency_s: float
) -> float:
    """Return the seconds of the longest episode, played alone."""

    def estimate(index: int) -> float:
        return sum(delays(index, latency_s)[: len(played[index].turns)]) + 0.002 * sum(played[index].mask)

    index = max(range(len(played)), key=estimate)
    with SlowPool(latency_s, first=index) as pool:
        began = time.perf_counter()
        continuous(talks(chat)[index : index + 1], pool, talker(llm, chat, tokenizer))
        return time.perf_counter() - began


def all_tokens_s(llm: Any, chat: TemplateChat, tokenizer: Any) -> float:
    """Return the seconds of a rollout's tokens in one batch, without turns: per episode as many as sampled."""
    from vllm import SamplingParams

    with SlowPool(0.0) as pool:
        played = continuous(talks(chat), pool, talker(llm, chat, tokenizer))
    prompts = [{"prompt_token_ids": game.prompt_ids} for game in played]
    exactly = [
        SamplingParams(max_tokens=sum(game.mask), ignore_eos=True, logprobs=0, detokenize=False) for game in played
    ]
    took = []
    for _ in range(ROUNDS):
        llm.reset_prefix_cache()
        began = time.perf_counter()
        llm.generate(prompts, exactly, use_tqdm=False)
        took.append(time.perf_counter() - began)
    return statistics.median(took)


def main() -> None:
    """Measure, print a table and write the results."""
    require(packages=["vllm"])
    vllm_cpu.prepare()
    with tempfile.TemporaryDirectory() as folder:
        _, tokenizer = vllm_cpu.save_model(Path(folder))
        with vllm_cpu.small_llm(Path(folder), max_num_seqs=EPISODES) as llm:
            chat = TemplateChat(tokenizer)
            with SlowPool(0.0) as pool:  # warm up vLLM
                continuous(talks(chat), pool, talker(llm, chat, tokenizer))
            rows = measure(llm, chat, tokenizer)
            generation = all_tokens_s(llm, chat, tokenizer)
    for row in rows:
        row["bound_s"] = max(row["slowest_alone_s"], generation)
    header = [
        "environment's latency",
        "steps: floor",
        "continuous",
        "lockstep",
        "seconds: bound",
        "continuous",
        "lockstep",
    ]
    names = ["floor_steps", "continuous_steps", "lockstep_steps", "bound_s", "continuous_s", "lockstep_s"]
    table = Table(
        "vllm_schedule", header, [[f"{row['latency_ms']} ms", *(row[name] for name in names)] for row in rows]
    )
    publish("vllm_schedule", {"episodes": EPISODES, "rows": rows}, tables=[table], picture=lambda it: draw(it, rows))


def draw(figure: Any, rows: list[dict[str, Any]]) -> None:
    """Engine steps and seconds by latency."""
    places = range(len(rows))
    lines = {"floor": ("floor_steps", "bound_s"), "continuous": ("continuous_steps", "continuous_s")}
    lines["lockstep"] = ("lockstep_steps", "lockstep_s")
    for axes, which, label in zip(figure.subplots(1, 2), (0, 1), ("engine steps", "seconds"), strict=True):
        for number, (name, keys) in enumerate(lines.items()):
            heights = [row[keys[which]] for row in rows]
            axes.bar([place + (number - 1) * 0.27 for place in places], heights, width=0.27, label=name)
        axes.set_xticks(places, [f"{row['latency_ms']} ms" for row in rows])
        axes.set(xlabel="environment's latency", ylabel=label)
    axes.legend()


if __name__ == "__main__":
    main()
