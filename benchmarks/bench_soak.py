# mypy: allow-untyped-calls
"""Measure memory, objects, open files and threads over hundreds of thousands of episodes.

$ python benchmarks/bench_soak.py                    # all parts; what is done is kept when it is stopped
$ python benchmarks/bench_soak.py --quick
$ python benchmarks/bench_soak.py --part inline      # one of them alone, without the report
$ python benchmarks/bench_soak.py --report           # of what has been played so far

Each part plays in a Python of its own, which says how it is after every so many episodes: ``inline`` and ``process``
play four games through the scripted engine, ``vllm`` through a real colocated vLLM on a CPU, ``training`` is a
``GRPOTrainer`` with the tiny model. ``traced`` is ``inline`` with ``tracemalloc``, which counts every byte that Python
allocated and takes several times as long.

Memory is USS (what would be free if the process ended; RSS also counts what is shared with others), of the process
and, apart, of those that it has started. Its slope is of least squares after a warm-up of a fifth. The allocator takes
memory by the megabyte, so that the blocks in use (``sys.getallocatedblocks``) and the objects of the garbage collector
say more about small leaks than any number of pages does.
"""

import gc
import json
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import psutil
from report import QUICK, Table, publish

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.protocol import Engine
from gym_trl.executors.make import make_pool
from gym_trl.executors.protocol import EnvPool
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Request, Task

KEPT = Path(__file__).parents[1] / "runs" / "benchmarks" / ("soak-quick" if QUICK else "soak")
TESTS = str(Path(__file__).parents[1] / "tests")
EPISODES = {"inline": 200_000, "process": 200_000, "traced": 20_000, "vllm": 5_000, "training": 300 * 64}
if QUICK:
    EPISODES = {"inline": 10_000, "process": 5_000, "traced": 2_000, "vllm": 500, "training": 20 * 64}
SAMPLES = 100
BEGAN = time.perf_counter()
AT_ONCE = 500
WARM_UP = 0.2
GOAL_KB = 1.0  # per 1,000 episodes
GAMES = ("GuessNumber", "TicTacToe", "Hangman", "FrozenLake")
WORDS = ("50", "center", "e", "right", "25", "1", "a", "down", "75", "9", "t", "left")
MEASURES = ("uss_kb", "children_uss_kb", "traced_kb", "blocks", "objects", "files", "threads", "children")


def sample(episodes: int) -> dict[str, Any]:
    """Return the measurements of the process."""
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    return {
        "episodes": episodes,
        "seconds": round(time.perf_counter() - BEGAN, 1),
        "uss_kb": process.memory_full_info().uss / 1024,
        "rss_kb": process.memory_info().rss / 1024,
        "children_uss_kb": sum(child.memory_full_info().uss for child in children) / 1024,
        "traced_kb": tracemalloc.get_traced_memory()[0] / 1024,
        "blocks": sys.getallocatedblocks(),
        "objects": len(gc.get_objects()),
        "files": process.num_fds(),
        "threads": threading.active_count(),
        "children": len(children),
    }


def rollouts(pool: EnvPool, engine: Callable[[], Engine], chat: Chat, number: int) -> Iterator[int]:
    """Play ``number`` episodes in large batches; yield the total after each rollout."""
    played = 0
    at_once = min(AT_ONCE, number // SAMPLES or number)
    while played < number:
        episodes = [
            Episode(
                Task(f"TrlEnv/{GAMES[index % len(GAMES)]}-v0", derive_seed("soak", index) >> 32),
                chat=chat,
                limits=Limits(tokens_per_turn=8, tokens=400),
                seed=derive_seed("sampling", index),
            )
            for index in range(played, min(played + at_once, number))
        ]
        run_episodes(episodes, pool=pool, engine=engine())
        played += len(episodes)
        yield played


def scripted(executor: str, number: int) -> Iterator[int]:
    """Play through the scripted engine."""
    chat = ByteChat()

    def answer(request: Request) -> list[int]:
        return chat.say(WORDS[request.seed % len(WORDS)])

    with make_pool(gym.make, executor=executor, workers=2 if executor == "process" else None) as pool:
        yield from rollouts(pool, lambda: ScriptedEngine(answer), chat, number)


def traced(number: int) -> Iterator[int]:
    """Return the same, with every allocation counted."""
    tracemalloc.start()
    yield from scripted("inline", number)


def vllm(number: int) -> Iterator[int]:
    """Play through a colocated vLLM."""
    sys.path.insert(0, TESTS)
    import vllm_cpu

    from gym_trl.engines.vllm import VLLMEngine

    vllm_cpu.prepare()
    with tempfile.TemporaryDirectory() as folder:
        _, tokenizer = vllm_cpu.save_model(Path(folder))
        with vllm_cpu.small_llm(Path(folder), max_num_seqs=64) as llm, make_pool(gym.make) as pool:
            chat = TemplateChat(tokenizer)

            def engine() -> VLLMEngine:
                llm.reset_prefix_cache()  # as TRL does with new weights; it would fill for a long time
                return VLLMEngine(llm, eos_ids=chat.stop_ids)

            yield from rollouts(pool, engine, chat, number)


def training(number: int) -> Iterator[int]:
    """Train for the steps that play so many episodes, in a thread, to sample between steps."""
    import os
    from queue import SimpleQueue

    import torch
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from gym_trl import GymSpec
    from gym_trl.testing import tiny_model, tiny_tokenizer

    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    torch.set_num_threads(1)
    step: SimpleQueue[int | None] = SimpleQueue()
    go_on: SimpleQueue[None] = SimpleQueue()

    class Tell(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
        """Callback that waits between two steps until the sample is taken."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            """Say how many episodes there were."""
            step.put(state.global_step * 64)
            go_on.get()

    def train() -> None:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer = tiny_tokenizer()
            spec = GymSpec(
                "TrlEnv/GuessNumber-v0",
                num_tasks=1_000,
                env_kwargs={"high": 8, "turns": 4},
                action_format="plain",
                instructions="",
                max_tokens_per_turn=1,
                cut_actions="accept",
            )
            args = GRPOConfig(
                output_dir=folder,
                use_cpu=True,
                bf16=False,
                max_steps=number // 64,
                per_device_train_batch_size=64,
                num_generations=8,
                max_completion_length=128,
                learning_rate=3e-3,
                logging_steps=10,
                report_to="none",
                disable_tqdm=True,
                save_strategy="no",
            )
            GRPOTrainer(
                model=tiny_model(tokenizer),
                processing_class=tokenizer,
                args=args,
                train_dataset=spec.train_dataset,
                rollout_func=spec.rollout_func,
                reward_funcs=spec.reward_funcs,
                callbacks=[Tell()],
            ).train()

    def whole() -> None:
        try:
            train()
        finally:
            step.put(None)

    threading.Thread(target=whole, daemon=True).start()
    while (played := step.get()) is not None:
        yield played
        go_on.put(None)


PARTS: dict[str, Callable[[int], Iterator[int]]] = {
    "inline": lambda number: scripted("inline", number),
    "process": lambda number: scripted("process", number),
    "traced": traced,
    "vllm": vllm,
    "training": training,
}


def run_part(name: str) -> None:
    """Play a part, and write one line per sample into its file."""
    number = EPISODES[name]
    path = KEPT / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    every, last = number / SAMPLES, 0.0
    with path.open("w", encoding="utf-8") as file:
        for played in PARTS[name](number):
            if played - last < every and played < number:
                continue
            last = played
            line = sample(played)
            file.write(json.dumps(line) + "\n")
            file.flush()
            print(name, *(f"{key} {value:,.0f}" for key, value in line.items()), flush=True)


def samples_of(name: str) -> list[dict[str, Any]]:
    """Return the samples of a part so far."""
    path = KEPT / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def whole(name: str) -> bool:
    """Return whether a part has been played to its end."""
    samples = samples_of(name)
    return bool(samples) and samples[-1]["episodes"] >= EPISODES[name]


def slope(samples: Sequence[dict[str, Any]], measure: str) -> tuple[float, float]:
    """Return the growth of a measure in 1,000 episodes, after the warm-up, and two standard errors of it."""
    warm = [line for line in samples if line["episodes"] > WARM_UP * samples[-1]["episodes"]]
    thousands, values = [line["episodes"] / 1000 for line in warm], [line[measure] for line in warm]
    (grows, _), covariance = np.polyfit(thousands, values, 1, cov=True)
    return float(grows), 2 * float(covariance[0, 0]) ** 0.5


def shown(grows: tuple[float, float]) -> str:
    """Return a slope with its error as text; below a hundredth it is zero."""
    value, error = (round(number, 2) + 0.0 for number in grows)
    return f"{value:g} ± {error:g}" if error else f"{value:g}"


def draw(found: dict[str, list[dict[str, Any]]], figure: Any) -> None:
    """Draw memory above, files and threads below."""
    memory, files = figure.subplots(2, 1, sharex=True)
    for name, samples in found.items():
        done = [100 * line["episodes"] / samples[-1]["episodes"] for line in samples]
        memory.plot(done, [line["uss_kb"] / 1024 for line in samples], label=f"{name}, {samples[-1]['episodes']:,}")
        [line] = files.plot(done, [line["files"] for line in samples])
        files.plot(done, [line["threads"] for line in samples], color=line.get_color(), linestyle=":")
    memory.set(ylabel="USS, MB", yscale="log")
    memory.legend(fontsize="small", ncols=3, title="part and its episodes")
    files.set(xlabel="% of the episodes", ylabel="files, threads (dotted)", ylim=(0, None))


def main() -> None:
    """Play the missing parts, and report."""
    if "--report" not in sys.argv:
        for name in PARTS:
            if not whole(name):
                subprocess.run([sys.executable, __file__, "--part", name, *["--quick"] * QUICK], check=True)
    found = {name: samples_of(name) for name in PARTS if whole(name)}
    slopes = {name: {measure: slope(samples, measure) for measure in MEASURES} for name, samples in found.items()}
    columns = {"uss_kb": "KB", "children_uss_kb": "children's KB", "traced_kb": "traced KB"}
    columns |= {name: name for name in ("blocks", "objects", "files", "threads")}
    rows = [
        [
            name,
            samples[-1]["episodes"],
            samples[-1]["uss_kb"] / 1024,
            *(shown(slopes[name][measure]) if samples[-1][measure] else None for measure in columns),
        ]
        for name, samples in found.items()
    ]
    header = ["part", "episodes", "USS, MB", *columns.values()]
    publish(
        "soak",
        {"per_1000_episodes": slopes, "goal_kb": GOAL_KB, "samples": found},
        tables=[Table("soak", header, rows)],
        picture=lambda figure: draw(found, figure),
    )


if __name__ == "__main__":
    if "--part" in sys.argv:
        run_part(sys.argv[sys.argv.index("--part") + 1])
    else:
        main()
