"""Compare histories of long episodes at one budget of tokens: their cost, and what is learned with them.

    python benchmarks/bench_segments.py              # rollouts of two long games, three rounds: ten minutes
    python benchmarks/bench_segments.py --learning   # train what is missing instead: an hour on one core, resumable
    python benchmarks/bench_segments.py --quick

The rollouts are of the tiny model with random weights, on one thread, in a context of 2,048 tokens. Its responses have
up to four tokens and are hardly ever an action, so that an episode lasts 120 turns, if its context does.

Learning is what a user types, ``gym-trl train FrozenLake-v1 --history.last N``, with 96 tokens for a segment: too few
for the twenty turns of an episode.
"""

import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch
from command_runs import curve, train
from report import HERE, QUICK, Table, in_process, publish, published_runs, run

from gym_trl import GymSpec
from gym_trl.chat.template import TemplateChat
from gym_trl.policies.model import transformers_engine
from gym_trl.rollout import Episode, History, Limits, run_episodes
from gym_trl.testing import tiny_model, tiny_tokenizer
from gym_trl.types import EpisodeResult, Task

ROOT = HERE.parent / "runs" / ("segments-quick" if QUICK else "segments")
CONTEXT, TURNS, EPISODES, ROUNDS = 2048, 30 if QUICK else 120, 4 if QUICK else 16, 1 if QUICK else 3
GAMES = ("TrlEnv/2048-v0", "TrlEnv/Minesweeper-v0")
HISTORIES: dict[str, History | None] = {
    "all of it": None,
    "last=4": History(last=4),
    "last=4,most=4": History(last=4, most=4),
    "summary": History(summary="model"),
}
LEARNING: dict[str, str | None] = {"all of it": None, "last=1,most=6": "last=1,most=6"}
SEEDS, STEPS, WINDOW = range(1 if QUICK else 3), 2 if QUICK else 120, 5


@dataclass(frozen=True)
class Played:
    """Cost of the episodes of one game with one history."""

    game: str
    history: str
    turns: float
    """Mean number of turns."""
    to_the_end: float
    """Share of the episodes that the game ended."""
    sampled: int
    computed: int
    reused: int
    trained: int
    """Tokens of all rows that the trainer would compute."""
    rows: int
    longest: int
    """Tokens of the longest row."""
    cache_mb: float
    seconds: list[float]
    vllm_hits: float | None = None
    """Share of the prompts' tokens in vLLM's prefix cache (blocks of 32 tokens); ``None`` if it is not installed."""


def play_with(engine: Any, chat: TemplateChat, game: str, history: History | None) -> list[EpisodeResult]:
    """Play the episodes of a game."""
    limits = Limits(tokens_per_turn=4, tokens=CONTEXT, context=CONTEXT)
    episodes = [
        Episode(Task(game, seed), chat=chat, limits=limits, seed=seed, history=history) for seed in range(EPISODES)
    ]
    spec = GymSpec(game, action_format="plain", instructions="", turn_limit=TURNS, executor="inline", num_tasks=2)
    with spec.make_pool() as pool:
        return run_episodes(episodes, pool=pool, engine=engine)


def play(game: str, history: History | None) -> tuple[dict[str, Any], float]:
    """Play the episodes of a game with Transformers, and return what they cost."""
    tokenizer = tiny_tokenizer()
    chat = TemplateChat(tokenizer)
    engine: Any = transformers_engine(tiny_model(tokenizer), tokenizer, chat, sampling={"temperature": 1.0})
    began = time.perf_counter()
    results = play_with(engine, chat, game, history)
    seconds = time.perf_counter() - began
    rows = [len(one.prompt_ids) + len(one.completion_ids) for result in results for one in result.trace.segments]
    cost = {
        "turns": statistics.fmean(len(result.turns) for result in results),
        "to_the_end": statistics.fmean(not result.stop_reason.cut_off for result in results),
        "sampled": engine.stats.sampled,
        "computed": engine.stats.computed,
        "reused": engine.stats.reused,
        "trained": sum(rows),
        "rows": len(rows),
        "longest": max(rows),
        "cache_mb": engine.stats.most_bytes / 1e6,
    }
    return cost, seconds


def vllm_hits(game: str, history: History | None) -> float:
    """Return the share of the prompts' tokens that vLLM's prefix cache holds already."""
    import vllm_cpu

    vllm_cpu.prepare()
    from vllm import LLM

    from gym_trl.engines.vllm import VLLMEngine

    with TemporaryDirectory() as folder:
        _, tokenizer = vllm_cpu.save_model(Path(folder))
        # Whole prompts: the CPU build cannot take back a random number that it drew after a part of one.
        settings: dict[str, Any] = {"max_model_len": CONTEXT, "max_num_batched_tokens": EPISODES * CONTEXT}
        settings |= {"logprobs_mode": "processed_logprobs", "disable_log_stats": False}
        llm = LLM(folder, **vllm_cpu.ENGINE, **settings)
        chat = TemplateChat(tokenizer)
        play_with(VLLMEngine(llm, eos_ids=chat.stop_ids), chat, game, history)
        counts = {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    return float(counts["vllm:prefix_cache_hits"] / counts["vllm:prefix_cache_queries"])


def rollouts() -> list[Played]:
    """Play all games with all histories, in interleaved rounds."""
    torch.set_num_threads(1)
    seconds: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], dict[str, Any]] = {}
    for _ in range(ROUNDS):
        for game in GAMES[: 1 if QUICK else None]:
            for name, history in HISTORIES.items():
                costs[game, name], took = play(game, history)
                seconds.setdefault((game, name), []).append(took)
                print(f"{game} {name}: {took:.1f} s", flush=True)
    hits: dict[tuple[str, str], float] = {}
    if find_spec("vllm") is not None and not QUICK:
        hits = {
            (game, name): in_process(vllm_hits, game, history) for game in GAMES for name, history in HISTORIES.items()
        }
    return [Played(*key, **cost, seconds=seconds[key], vllm_hits=hits.get(key)) for key, cost in costs.items()]


@dataclass(frozen=True)
class Learnt:
    """Success of each step's episodes."""

    history: str
    seed: int
    curve: list[float]
    turns: list[float]


def read(name: str, seed: int) -> Learnt:
    """Return what a run has learned so far, or what was published of it."""
    folder = ROOT / f"{name.replace(' ', '-')}-{seed}"
    if not folder.exists():
        known = [Learnt(**one) for one in published_runs("segments") if (one["history"], one["seed"]) == (name, seed)]
        return known[0] if known else Learnt(name, seed, [], [])
    return Learnt(name, seed, curve(folder, "env/success"), curve(folder, "env/turns"))


def learn() -> None:
    """Train what is missing."""
    for seed in SEEDS:
        for name, words in LEARNING.items():
            if len(read(name, seed).curve) >= STEPS:
                continue
            options = [f"--history.{word}" for word in words.split(",")] if words else []
            command = [
                "FrozenLake-v1",
                "--env-kwargs=is_slippery=false",
                "--max-completion-length=96",
                f"--seed={seed}",
                *options,
            ]
            command += [f"--steps={STEPS}", "--eval-episodes=16", "--credit=pool"]
            train(ROOT / f"{name.replace(' ', '-')}-{seed}", command)


def last(one: Learnt) -> float:
    """Return the mean success of the last steps."""
    return statistics.fmean(one.curve[-WINDOW:])


def tables(played: Sequence[Played], learnt: Sequence[Learnt]) -> Iterator[Table]:
    """Yield a table of the rollouts, and one of what was learned."""

    def share(one: Played, field: str) -> str:
        usual = next(other for other in played if (other.game, other.history) == (one.game, "all of it"))
        return f"{getattr(one, field) / one.turns / (getattr(usual, field) / usual.turns):.2f}"

    header = ["game", "history", "turns", "ended by the game", "sampled", "computed", "trained", "rows", "longest row"]
    header += ["cache MB", "computed a turn", "trained a turn", "seconds", "prefix hits of vLLM"]
    rows: list[list[str | float | None]] = [
        [
            *(one.game, one.history, f"{one.turns:.0f}", f"{one.to_the_end:.0%}", one.sampled, one.computed),
            *(one.trained, one.rows, one.longest, f"{one.cache_mb:.0f}", share(one, "computed"), share(one, "trained")),
            f"{statistics.median(one.seconds):.1f} ({min(one.seconds):.1f} to {max(one.seconds):.1f})",
            None if one.vllm_hits is None else f"{one.vllm_hits:.0%}",
        ]
        for one in played
    ]
    yield Table("segments", header, rows)
    if learnt:
        header = ["history", "seed", "turns at first", f"success at first, mean of {WINDOW} steps", "at last"]
        learned: list[list[str | float | None]] = [
            [
                one.history,
                one.seed,
                f"{one.turns[0]:.1f}",
                f"{statistics.fmean(one.curve[:WINDOW]):.3f}",
                f"{last(one):.3f}",
            ]
            for one in learnt
        ]
        yield Table("segments_learning", header, learned)


def picture(learnt: Sequence[Learnt], figure: Any) -> None:
    """Draw success by step."""
    panel = figure.subplots()
    figure.set_size_inches(7, 3.6)
    for one in learnt:
        means = [statistics.fmean(one.curve[max(0, end - WINDOW) : end]) for end in range(1, len(one.curve) + 1)]
        colour = dict(zip(LEARNING, ("tab:gray", "tab:blue"), strict=True))[one.history]
        panel.plot(means, color=colour, label=one.history if one.seed == 0 else None)
    panel.set(title="FrozenLake, 96 tokens for a segment", xlabel="steps", ylabel="success", ylim=(0, 1.05))
    panel.legend()


def main() -> None:
    """Measure, train if it was asked for, and publish."""
    before = [Played(**one) for one in published_runs("segments", "rollouts")]
    played = before if "--learning" in sys.argv and before else rollouts()
    if "--learning" in sys.argv:
        learn()
    learnt = [one for name in LEARNING for seed in SEEDS if len((one := read(name, seed)).curve) >= STEPS]
    figures = {"rollouts": [asdict(one) for one in played], "runs": [asdict(one) for one in learnt]}
    publish(
        "segments", figures, tables=list(tables(played, learnt)), picture=partial(picture, learnt) if learnt else None
    )


if __name__ == "__main__":
    run(main)
