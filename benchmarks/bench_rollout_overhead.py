"""What the adapter itself costs per turn, and per episode alive, with an engine that takes no time.

$ python benchmarks/bench_rollout_overhead.py
"""

import importlib.util
import json
import platform
import string
import sys
import time
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium as gym

from gym_trl.chat import Chat, TemplateChat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.episode import Episode, Limits
from gym_trl.pool import InlinePool
from gym_trl.rollout import run_episodes
from gym_trl.testing import ByteChat
from gym_trl.types import Request, Task, TokenIds

RESULTS = Path(__file__).parent / "results"
TURNS = 128


def make(env_id: str) -> gym.Env[str, str]:
    """A game that is never won, so that every episode has all its turns."""
    env: gym.Env[str, str] = gym.make(env_id, low=1, high=10**6, turns=TURNS)
    return env


def episode(chat: Chat, seed: int) -> Episode:
    """One long episode."""
    return Episode(Task("TrlEnv/GuessNumber-v0", seed), chat=chat, limits=Limits(tokens_per_turn=8), seed=seed)


class TimedEngine(ScriptedEngine):
    """Notes when each request arrives."""

    def __init__(self, answer: TokenIds) -> None:
        super().__init__(lambda _: answer)
        self.arrivals: list[float] = []

    def submit(self, request: Request) -> None:
        """Take a request and note the time."""
        self.arrivals.append(time.perf_counter())
        super().submit(request)


def seconds_per_turn(chat: Chat, answer: TokenIds, repeats: int = 40) -> list[float]:
    """The median time from one request of an episode to its next, for each of its turns."""
    gaps = []
    with InlinePool(make) as pool:
        for seed in range(repeats):
            engine = TimedEngine(answer)
            run_episodes([episode(chat, seed)], pool=pool, engine=engine)
            arrivals = engine.arrivals
            gaps.append([later - earlier for earlier, later in pairwise(arrivals)])
    return [median(turn) for turn in zip(*gaps, strict=True)]


def bytes_per_episode(count: int) -> dict[str, float]:
    """What an episode in the middle of its game holds, all of them alive at once: tokens, and everything."""
    chat = ByteChat()
    peak = {"bytes": 0}

    def answer(request: Request) -> TokenIds:
        index, _, turn = request.id.partition("-")
        if index == "0" and int(turn) > 8 * count:
            peak["bytes"] = max(peak["bytes"], tracemalloc.get_traced_memory()[0])
        return chat.say("500000")

    with InlinePool(lambda env_id: gym.make(env_id, low=1, high=10**6, turns=10)) as pool:
        tracemalloc.start()
        engine = ScriptedEngine(answer)
        engine.requests = _Forgetful()  # the double's own log would count as the adapter's memory
        played = run_episodes([episode(chat, seed) for seed in range(count)], pool=pool, engine=engine)
        tracemalloc.stop()
    tokens = sum(len(trajectory.prompt_ids) + len(trajectory.completion_ids) for trajectory in played) / count
    return {"episodes": count, "tokens_per_episode": tokens, "bytes_per_episode": peak["bytes"] / count}


class _Forgetful(list[Request]):
    def append(self, request: Request) -> None:
        """Keep nothing."""


def tiny_chat() -> tuple[Chat, TokenIds]:
    """The chat of the tiny model's tokenizer, and an answer in its ids."""
    from gym_trl.tiny import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    return TemplateChat(tokenizer), tokenizer.encode("500000<|end|>", add_special_tokens=False)


def large_chat() -> tuple[Chat, TokenIds]:
    """The same of a byte-level BPE tokenizer with 150,000 entries and Qwen3's chat template, as TRL ships it."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [chr(code) for code in range(33, 127)]
    merges = [(first, second) for first in printable for second in printable]
    merges += [(first + second, third) for first, second in merges for third in string.ascii_lowercase]
    merges = merges[: 150_000 - len(alphabet)]
    entries = dict.fromkeys([*alphabet, *(first + second for first, second in merges)])
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(entries)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    spec = importlib.util.find_spec("trl")
    assert spec is not None
    assert spec.origin is not None
    template = (Path(spec.origin).parent / "chat_templates" / "qwen3.jinja").read_text()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", chat_template=template)
    return TemplateChat(wrapped), wrapped.encode("500000<|im_end|>", add_special_tokens=False)


def parts_of_a_turn(chat: Chat, answer: TokenIds, repeats: int = 2000) -> dict[str, float]:
    """Microseconds of each part of a turn, alone: what the chat does to an answer and to an observation."""
    parts: dict[str, Callable[[], object]] = {
        "read the answer": lambda: chat.text(answer),
        "the template's delta": lambda: chat.reply("Higher.", closed=True),
    }
    spent = {}
    for name, part in parts.items():
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            part()
            times.append(time.perf_counter() - start)
        spent[name] = median(times) * 1e6
    return spent


def main() -> None:
    """Measure, print a table and write the results."""
    chats: dict[str, tuple[Chat, TokenIds]] = {"ByteChat": (ByteChat(), ByteChat().say("500000"))}
    chats["102 tokens"] = tiny_chat()
    chats["150,000 tokens"] = large_chat()
    rows: dict[str, Any] = {}
    print(f"{'chat':14} {'turn 2':>9} {'turn 100':>9} {'ratio':>6}   (microseconds a turn, environment included)")
    for name, (chat, answer) in chats.items():
        turns = seconds_per_turn(chat, answer)
        early, late = median(turns[1:6]), median(turns[97:102])
        rows[name] = {"turn_2_us": early * 1e6, "turn_100_us": late * 1e6, "ratio": late / early}
        rows[name]["parts_us"] = parts_of_a_turn(chat, answer)
        parts = ", ".join(f"{part} {spent:.1f}" for part, spent in rows[name]["parts_us"].items())
        print(f"{name:14} {early * 1e6:9.1f} {late * 1e6:9.1f} {late / early:6.2f}   {parts}")
    memory = bytes_per_episode(4096)
    print(
        f"{memory['episodes']} episodes alive at once: {memory['bytes_per_episode'] / 1024:.1f} KiB each, "
        f"with {memory['tokens_per_episode']:.0f} tokens in the end"
    )
    RESULTS.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "python": platform.python_version(), "command": " ".join(sys.argv)}
    report = {**machine, "date": time.strftime("%Y-%m-%d"), "overhead": rows, "memory": memory}
    (RESULTS / "rollout_overhead.json").write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
