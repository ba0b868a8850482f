"""Measure memory, objects, open files and threads over hundreds of thousands of episodes.

$ python benchmarks/bench_soak.py             # an interrupted run continues with the parts that are not finished
$ python benchmarks/bench_soak.py --report    # of the finished parts, without playing

Each part plays in a process of its own, which samples itself at regular intervals: ``inline`` and ``process`` play four
games with the scripted engine, ``vllm`` with a real colocated vLLM on a CPU, ``training`` is a ``GRPOTrainer`` with the
tiny model. ``traced`` is ``inline`` with ``tracemalloc``, which counts every byte that Python allocates.

Memory is USS (what would be free if the process ended; RSS also counts what is shared with others), of the process
and, separately, of its children. Its slope is by least squares after a warm-up of a fifth. The allocator takes memory
by the megabyte: the blocks in use and the objects of the garbage collector say more about small leaks.
"""

import gc
import json
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
from report import QUICK, Column, Table, in_process, publish, run

from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.engines.protocol import Engine
from gym_trl.executors.make import make_pool
from gym_trl.executors.protocol import EnvPool
from gym_trl.records.json_lines import read_json_lines
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.seeding import derive_seed
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Request, Task
from gym_trl.wrappers import ParseAction

KEPT = Path(__file__).parents[1] / "runs" / "benchmarks" / ("soak-quick" if QUICK else "soak")
TESTS = str(Path(__file__).parents[1] / "tests")
EPISODES = {"inline": 500_000, "process": 1_000_000, "traced": 20_000, "vllm": 5_000, "training": 300 * 64}
if QUICK:
    EPISODES = {"inline": 10_000, "process": 5_000, "traced": 2_000, "vllm": 500, "training": 20 * 64}
SAMPLES = 100
BEGAN = time.perf_counter()
AT_ONCE = 500
WARM_UP = 0.2
GOAL_KB = 1.0  # per 1,000 episodes
GAMES = ("GuessNumber", "TicTacToe", "Hangman", "FrozenLake")
WORDS = ("50", "center", "e", "right", "25", "1", "a", "down", "75", "9", "t", "left")
MEASURES = {"uss_kb": "KB", "children_uss_kb": "children's KB", "traced_kb": "traced KB"}
MEASURES |= {name: name for name in ("blocks", "objects", "files", "threads")}
"""Measures whose growth is published, and their columns."""


def sample(episodes: int) -> dict[str, Any]:
    gc.collect()
    process = psutil.Process()
    children = process.children(recursive=True)
    return {
        "episodes": episodes,
        "seconds": round(time.perf_counter() - BEGAN, 1),
        "uss_kb": process.memory_full_info().uss / 1024,
        "children_uss_kb": sum(child.memory_full_info().uss for child in children) / 1024,
        "traced_kb": tracemalloc.get_traced_memory()[0] / 1024,
        "blocks": sys.getallocatedblocks(),
        "objects": len(gc.get_objects()),
        "files": process.num_fds(),
        "threads": threading.active_count(),
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
    chat = ByteChat()

    def answer(request: Request) -> list[int]:
        return chat.say(WORDS[request.seed % len(WORDS)])

    with make_pool(gym.make, executor=executor, workers=2 if executor == "process" else None) as pool:
        yield from rollouts(pool, lambda: ScriptedEngine(answer), chat, number)


def traced(number: int) -> Iterator[int]:
    tracemalloc.start()
    yield from scripted("inline", number)


def accepting(env_id: str) -> gym.Env[str, str]:
    """Make a game that accepts actions without an end of turn, which a random model hardly ever samples."""
    return ParseAction(gym.make(env_id), format=None, cut_actions="accept")


def vllm(number: int) -> Iterator[int]:
    sys.path.insert(0, TESTS)
    from support import vllm_cpu

    from gym_trl.engines.vllm import VLLMEngine

    vllm_cpu.prepare()
    with tempfile.TemporaryDirectory() as folder:
        _, tokenizer = vllm_cpu.save_model(Path(folder))
        with vllm_cpu.small_llm(Path(folder), max_num_seqs=64) as llm, make_pool(accepting) as pool:
            chat = TemplateChat(tokenizer)

            def engine() -> VLLMEngine:
                llm.reset_prefix_cache()  # as TRL does with new weights; it would fill for a long time
                return VLLMEngine(llm, eos_ids=chat.stop_ids)

            yield from rollouts(pool, engine, chat, number)


def training(number: int) -> Iterator[int]:
    """Train for the steps that play so many episodes, in a thread, to sample between steps."""
    from queue import SimpleQueue

    sys.path.insert(0, TESTS)
    from support import tiny_trainer
    from transformers import TrainerCallback
    from trl import GRPOTrainer

    from gym_trl import GymSpec

    step: SimpleQueue[int | None] = SimpleQueue()
    go_on: SimpleQueue[None] = SimpleQueue()

    class Tell(TrainerCallback):
        """Callback that waits between two steps until the sample is taken."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            step.put(state.global_step * 64)
            go_on.get()

    def train() -> None:
        spec = GymSpec(
            "TrlEnv/GuessNumber-v0",
            num_tasks=1_000,
            env_kwargs={"high": 8, "turns": 4},
            action_format="plain",
            instructions="",
            max_tokens_per_turn=1,
            cut_actions="accept",
        )
        config = {
            "max_steps": number // 64,
            "learning_rate": 3e-3,
            "logging_steps": 10,
            "per_device_train_batch_size": 64,
            "num_generations": 8,
            "max_completion_length": 128,
        }
        try:
            with tempfile.TemporaryDirectory() as folder:
                tiny_trainer.make(folder, spec, GRPOTrainer, grpo=config, callbacks=[Tell()]).train()
        finally:
            step.put(None)

    threading.Thread(target=train, daemon=True).start()
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


def play(name: str) -> None:
    """Play a part, and write one line per sample into its file."""
    number = EPISODES[name]
    KEPT.mkdir(parents=True, exist_ok=True)
    every, last = min(number / SAMPLES, 2_000), 0.0
    with (KEPT / f"{name}.jsonl").open("w", encoding="utf-8") as file:
        for played in PARTS[name](number):
            if played - last >= every or played >= number:
                last = played
                file.write(json.dumps(sample(played)) + "\n")
                file.flush()


def samples_of(name: str) -> list[dict[str, Any]]:
    """Return the samples of a finished part, or nothing."""
    path = KEPT / f"{name}.jsonl"
    samples = list(read_json_lines(path)) if path.exists() else []
    return samples if samples and samples[-1]["episodes"] >= EPISODES[name] else []


def slope(samples: Sequence[dict[str, Any]], measure: str) -> tuple[float, float]:
    """Return the growth of a measure in 1,000 episodes after the warm-up, and two standard errors of it."""
    warm = [line for line in samples if line["episodes"] > WARM_UP * samples[-1]["episodes"]]
    thousands, values = [line["episodes"] / 1000 for line in warm], [line[measure] for line in warm]
    (grows, _), covariance = np.polyfit(thousands, values, 1, cov=True)
    return float(grows), 2 * float(covariance[0, 0]) ** 0.5


def shown(grows: tuple[float, float]) -> str:
    """Return a slope with its error as text; below a hundredth it is zero."""
    value, error = (round(number, 2) + 0.0 for number in grows)
    return f"{value:g} ± {error:g}" if error else f"{value:g}"


def draw(found: dict[str, list[dict[str, Any]]], figure: Any) -> None:
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
    if "--report" not in sys.argv:
        for name in PARTS:
            if not samples_of(name):
                in_process(play, name, timeout_s=24 * 3600.0)
                print(f"{name}: {samples_of(name)[-1]}", flush=True)
    found = {name: samples for name in PARTS if (samples := samples_of(name))}
    slopes = {name: {measure: slope(samples, measure) for measure in MEASURES} for name, samples in found.items()}

    def grows(measure: str) -> Any:
        return lambda part: shown(slopes[part["part"]][measure]) if part[measure] else None

    columns: list[Column] = [
        ("part", "part"),
        ("episodes", "episodes"),
        ("USS, MB", lambda part: part["uss_kb"] / 1024),
        *((title, grows(measure)) for measure, title in MEASURES.items()),
    ]
    publish(
        "soak",
        {"per_1000_episodes": slopes, "goal_kb": GOAL_KB, "samples": found},
        tables=[Table.of("soak", columns, [{"part": name, **samples[-1]} for name, samples in found.items()])],
        picture=lambda figure: draw(found, figure),
    )


if __name__ == "__main__":
    run(main)
