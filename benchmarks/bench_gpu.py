"""Measure a real model on a machine with a GPU: throughput with vLLM colocated and on a server, fidelity, learning.

$ make bench-gpu MODEL=FOLDER             # a folder, or an id on the hub
$ make bench-gpu ARGS=--quick             # a rehearsal without a GPU: vLLM's CPU build and the pretrained model
$ make bench-gpu MODEL=FOLDER ARGS="colocated fidelity"       # these sections, printed only
$ make bench-gpu MODEL=FOLDER ARGS="colocated fidelity --add" # added to the results, each with its model

$ make bench-gpu ARGS=guess-number        # a published training with the model that it had, and the published curve

Each section is a process of its own; the reason of one that fails is its row, and the others go on. The figures are
written after each section to ``results/gpu-NAME.json``, where NAME is that of the GPU.
"""

import json
import os
import re
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import (
    QUICK,
    RESULTS,
    Cell,
    Table,
    alternating,
    bars,
    gpu_name,
    in_process,
    markdown,
    medians,
    processor,
    publish,
    run,
)

EPISODES = 8 if QUICK else 256
ROUNDS = 1 if QUICK else 3
LATENCIES_MS = (50,) if QUICK else (0, 100)
TURN = 8 if QUICK else 64
"""Most tokens of a turn."""
CONTEXT = 512 if QUICK else 4096
SERVED_TOKENS = 8 if QUICK else 48
"""Most tokens of a turn from the server, whose context is that of ``vllm_serve``."""
LEARNING = ["TrlEnv/GuessNumber-v0", "--env-kwargs", "high=8", "--env-kwargs", "turns=4"] + (
    [
        "--steps=2",
        "--groups=2",
        "--num-generations=2",
        "--max-tokens-per-turn=6",
        "--eval-episodes=2",
        "--grpo=save_strategy=no",
    ]
    if QUICK
    else [
        "--steps=20",
        "--groups=8",
        "--num-generations=16",
        "--max-tokens-per-turn=16",
        "--eval-episodes=128",
        "--action-format=regex:([0-9]+)",
        "--learning-rate=1e-4",
    ]
)


@dataclass(frozen=True)
class Reference:
    """Training of another project with published figures, which is repeated with its model, episodes and steps."""

    model: str
    env: str
    options: str
    published: Sequence[tuple[int, float]]
    """Success after a number of steps."""
    note: str
    """Source, and what differs."""
    lora: int | None = None


TINY = "--steps=2 --groups=2 --num-generations=2 --max-tokens-per-turn=6 --eval-episodes=2"
"""Options of a rehearsal with the tiny model, which learns nothing in them."""
REFERENCES = {
    "guess-number": Reference(
        "Qwen/Qwen3.5-4B",
        "TrlEnv/GuessNumber-v0 --env-kwargs=low=0 --env-kwargs=high=1023 --env-kwargs=turns=10",
        "--steps=20 --groups=32 --num-generations=8 --learning-rate=3e-5 --grpo=max_completion_length=2048 "
        "--max-tokens-per-turn=64 --chat-template-kwargs=enable_thinking=false --eval-episodes=256",
        [(0, 0.0), (20, 0.8)],
        "Tinker cookbook 0.6.1, recipes/multiplayer_rl/guess_number, with LoRA: about 0 to at least 0.80",
        lora=32,
    ),
    "wordle": Reference(
        "PrimeIntellect/Qwen3-1.7B-Wordle-SFT",
        "TrlEnv/Wordle-v0 --env-kwargs=guesses=6 --env-kwargs=turns=6 --env-kwargs=choices=0",
        "--steps=100 --groups=32 --num-generations=16 --learning-rate=1e-6 --grpo=max_completion_length=4096 "
        "--max-tokens-per-turn=1024 --eval-episodes=256",
        [(100, 0.6)],
        "prime-rl, examples/basic/wordle: wins 0 before its warm start, about 60% after 100 steps on 2 GPUs; its "
        "words and the wording of its rules are other ones, and its learning rate is not in the page",
    ),
    "sokoban": Reference(
        "Qwen/Qwen2.5-0.5B-Instruct",
        "TrlEnv/Sokoban-v0 --env-kwargs=difficulty=easy",
        "--steps=200 --groups=8 --num-generations=16 --learning-rate=1e-6 --grpo=max_completion_length=4096 "
        "--max-tokens-per-turn=100 --eval-episodes=256",
        [],
        "lmgame-org/GRL, 6x6 squares and one box, PPO with 128 agents on an A100: 2 to 56 points more success in "
        "games of the family; its curve and RAGEN's are pictures without numbers",
    ),
}
"""Published trainings, each a section that runs only if it is named; hours on one GPU."""
ONE_GPU = "one GPU: TRL sends a server its weights over NCCL, which a trainer and a server cannot do on the same GPU"
PATIENCE_S = 480.0 if QUICK else 5400.0


# ---------------------------------------------------------------------------------------------------------------------
# Sections, each called in a process of its own
# ---------------------------------------------------------------------------------------------------------------------


def colocated(folder: str) -> dict[str, Any]:
    """Compare continuous and lockstep scheduling, and one generator with a seed per request, in the same engine."""
    from talk import SlowPool, continuous, lockstep

    schedulers: dict[str, tuple[Any, int | None]] = {
        "continuous": (continuous, 0),
        "a seed per request": (continuous, None),
        "lockstep": (lockstep, 0),
    }
    rows = []
    with model_on_vllm(folder) as model:
        model.play(SlowPool(0.0), indices=range(EPISODES))  # warm up
        for latency_ms in LATENCIES_MS:

            def measured(name: str, latency_ms: int = latency_ms) -> dict[str, float]:
                scheduler, seed = schedulers[name]
                played, seconds, steps = model.play(SlowPool(latency_ms / 1000), scheduler, range(EPISODES), seed)
                sampled, turns = sum(sum(one.row.mask) for one in played), sum(len(one.turns) for one in played)
                return {"tokens_per_s": sampled / seconds, "turns_per_s": turns / seconds, "steps": steps}

            took = alternating(list(schedulers), ROUNDS, measured)
            rows.append({"latency_ms": latency_ms, **{name: medians(rounds) for name, rounds in took.items()}})
    return {"episodes": EPISODES, "tokens_per_turn": TURN, "rows": rows}


def server(folder: str) -> dict[str, Any]:
    """Compare our engine with a bare client of the server that TRL expects."""
    import bench_server
    from support import vllm_cpu
    from support.vllm_serve import TRL, Server
    from transformers import AutoTokenizer

    from gym_trl.chat import Chat

    bench_server.EPISODES, bench_server.ROUNDS, bench_server.TOKENS = EPISODES, ROUNDS, SERVED_TOKENS
    # The bare client does not retry if an idle connection was closed by the server.
    os.environ["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = "60"
    flags = ["--max-num-seqs", str(EPISODES), "--max-num-batched-tokens", str(4096 if QUICK else 16384)]
    flags += ["--dtype", "bfloat16"] if QUICK else ["--dtype", "auto", "--no-enforce-eager", "--block-size", "16"]
    with tempfile.TemporaryDirectory() as scratch:
        settings = vllm_cpu.SETTINGS if QUICK else {}
        started = Server(folder, *TRL, *flags, settings=settings, logs=Path(scratch))
        try:
            started.start()
            started.wait(PATIENCE_S / 3)
            chat = Chat(AutoTokenizer.from_pretrained(folder))
            requests, rounds = bench_server.measure(started, chat, only=["ours", "bare", "by turns"])
        except AssertionError as error:
            log = next(Path(scratch).glob("*.log")).read_text(encoding="utf-8", errors="replace")
            raise RuntimeError(f"{error}: {log[-2000:]}") from error
        finally:
            started.close()
    ways = {name: statistics.median(row["tokens_per_s"] for row in rows) for name, rows in rounds.items()}
    return {"requests": requests, "tokens_per_turn": SERVED_TOKENS, "tokens_per_s": ways, "rounds": rounds}


def fidelity(folder: str) -> dict[str, Any]:
    """Compare the engine's logprobs with those of the model in Transformers, in both its types."""
    import torch
    from bench_fidelity import Scorer
    from talk import SlowPool

    device = str(torch.accelerator.current_accelerator() or "cpu")
    few = min(EPISODES, 32)
    # Half of the memory is for the other model.
    with model_on_vllm(folder, dtype="float32" if QUICK else "auto", gpu_memory_utilization=0.4) as model:
        played, _, _ = model.play(SlowPool(0.0), indices=range(few))
        rows = []
        for dtype in ("float32", "bfloat16"):
            scorer = Scorer(folder, dtype=dtype)
            scorer.model.to(device)
            apart = [
                difference
                for one in played
                for difference in scorer.differences(one.row, one.row.logprobs, one.row.mask)
            ]
            rows.append({"trainer": dtype, "mean": statistics.fmean(apart), "max": max(apart), "tokens": len(apart)})
        engine = str(model.llm.llm_engine.model_config.dtype).removeprefix("torch.")
    return {"engine": engine, "episodes": few, "turns": sum(len(one.turns) for one in played), "rows": rows}


def learning(folder: str, mode: str) -> dict[str, Any]:
    """Train for some steps with vLLM in the trainer's process, or on a server with a GPU of its own."""
    import torch
    from bench_learning import ratios, run_training
    from support.vllm_serve import TRL, Server

    words = [*LEARNING, "--model", folder, "--vllm", mode, *adapter()]
    if mode == "colocate":
        summary, logs = run_training(words, vllm_on_cpu=QUICK)
    else:
        if torch.accelerator.device_count() < 2:
            return {"left_out": ONE_GPU}
        with tempfile.TemporaryDirectory() as scratch:
            last = str(torch.accelerator.device_count() - 1)
            settings, flags = {"CUDA_VISIBLE_DEVICES": last}, ["--dtype", "auto", "--max-model-len", str(CONTEXT)]
            started = Server(folder, *TRL, *flags, settings=settings, logs=Path(scratch))
            try:
                started.start()
                started.wait(PATIENCE_S / 3)
                os.environ["CUDA_VISIBLE_DEVICES"] = "0"
                words.append(f"--grpo=vllm_server_base_url={started.url}")
                summary, logs = run_training(words, vllm_on_cpu=False)
            finally:
                started.close()
    return {"words": words, **summary, **ratios(logs), "curve": curve(logs)}


def step(folder: str) -> dict[str, Any]:
    """Compare a training step without padding and with scores of sampled tokens only with one that has all."""
    import bench_lm_step

    game = "groups of 16" if QUICK else "for a GPU"
    variants = {"ours": "and little padding: the default", "all positions": "keys and values kept, the adapter merged"}
    return rounds_of(
        lambda name: in_process(bench_lm_step.step, game, variants[name], folder, timeout_s=PATIENCE_S),
        list(variants),
    )


def reference(name: str, folder: str) -> dict[str, Any]:
    """Repeat a published training; a rehearsal has the tiny model, and says nothing about it."""
    from bench_learning import run_training

    one = REFERENCES[name]
    words = [*one.env.split(), *(TINY if QUICK else one.options).split()]
    if not QUICK:
        words += ["--model", folder, "--vllm", "colocate", *([f"--lora={one.lora}"] if one.lora else [])]
    summary, logs = run_training(words, vllm_on_cpu=False)
    return {"words": words, **summary, "curve": curve(logs), "published": one.published, "note": one.note}


# ---------------------------------------------------------------------------------------------------------------------
# What they share
# ---------------------------------------------------------------------------------------------------------------------


def rounds_of(measure: Callable[[str], dict[str, float]], names: Sequence[str]) -> dict[str, Any]:
    """Return the medians of some rounds."""
    return {"medians": {name: medians(runs) for name, runs in alternating(names, ROUNDS, measure).items()}}


def curve(logs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the success in training by step."""
    return [{"step": one["step"], "seconds": one["seconds"], "success": one.get("env/success")} for one in logs]


@contextmanager
def model_on_vllm(folder: str, **options: Any) -> Iterator[Any]:
    """Provide a ``talk.Model`` with the model in ``folder``, in this process as TRL has it."""
    from support import vllm_cpu
    from talk import Model

    from gym_trl.chat import Chat
    from gym_trl.rollout import Limits

    def made(llm: Any) -> Model:
        tokenizer = llm.get_tokenizer()
        chat = Chat(tokenizer)
        ends = chat.stop_ids | ({tokenizer.eos_token_id} - {None})
        return Model(llm, chat, ends, Limits(tokens_per_turn=TURN, context=CONTEXT))

    given = {"dtype": "bfloat16" if QUICK else "auto", "max_model_len": CONTEXT, "max_num_seqs": EPISODES, **options}
    if QUICK:
        given.pop("gpu_memory_utilization", None)
        with vllm_cpu.small_llm(Path(folder), **given) as llm:
            yield made(llm)
        return
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    yield made(LLM(folder, **{"logprobs_mode": "processed_logprobs", "gpu_memory_utilization": 0.8, **given}))


def adapter() -> list[str]:
    """Return the options that train a LoRA adapter instead of all weights, where PEFT is installed."""
    return ["--lora=16", "--dtype=bfloat16"] if find_spec("peft") else []


def file_name(machine: str) -> str:
    """Return the name of the results of a machine.

    >>> file_name("NVIDIA H100 80GB HBM3")
    'gpu-nvidia-h100-80gb-hbm3'
    """
    return "gpu-" + re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")


SECTIONS: dict[str, Callable[[str], dict[str, Any]]] = {
    "colocated": lambda folder: in_process(colocated, folder, timeout_s=PATIENCE_S),
    "server": lambda folder: in_process(server, folder, timeout_s=PATIENCE_S),
    "step": step,
    "fidelity": lambda folder: in_process(fidelity, folder, timeout_s=PATIENCE_S),
    "learning": lambda folder: in_process(learning, folder, "colocate", timeout_s=PATIENCE_S),
    "learning-server": lambda folder: in_process(learning, folder, "server", timeout_s=PATIENCE_S),
    **{name: partial(reference, name) for name in REFERENCES},
}


def measure(folder: str, names: Sequence[str], write: Callable[[Mapping[str, Any]], None]) -> dict[str, Any]:
    """Run sections one after the other, and pass all figures so far to ``write`` after each."""
    figures: dict[str, Any] = {}
    for name in names:
        try:
            figures[name] = {"model": Path(folder).name, **SECTIONS[name](folder)}
        except Exception as error:
            traceback.print_exc()
            figures[name] = {"model": Path(folder).name, "failed": str(error).strip()[-2000:]}
        write(figures)
    return figures


def table(figures: Mapping[str, Any]) -> Table:
    """Return a row for each figure, with what it is compared with in the same run."""
    rows: list[list[Cell]] = []
    for row in _section(figures, "colocated").get("rows", ()):
        ours, *others = (name for name in row if name != "latency_ms")
        for key, what in (("tokens_per_s", "tokens/s"), ("turns_per_s", "turns/s"), ("steps", "engine steps")):
            where = f"environments of {row['latency_ms']} ms"
            beside = ", ".join(f"{name}: {row[name][key]:.4g}" for name in others)
            rows.append(["colocated", f"{what}, {where}", row[ours][key], beside])
    if ways := _section(figures, "server").get("tokens_per_s"):
        beside = ", ".join(f"{name}: {ways[name]:.4g}" for name in ways if name != "ours")
        rows.append(["server", "tokens/s", ways["ours"], beside])
    fidelity = _section(figures, "fidelity")
    for row in fidelity.get("rows", ()):
        what = f"logprobs, engine in {fidelity['engine']}, trainer in {row['trainer']}: mean difference"
        rows.append(["fidelity", what, f"{row['mean']:.2g}", f"largest of {row['tokens']}: {row['max']:.2g}"])
    for name in ("learning", "learning-server"):
        if "steps" in (found := _section(figures, name)):
            rows.append([name, f"success after {found['steps']} steps", _success(found, "after"), _before(found)])
            rows.append([name, "seconds of a step", found["seconds"] / max(1, found["steps"]), None])
            rows.append([name, "importance ratio, lowest mean of a step", found["ratio_mean_lowest"], None])
    if medians := _section(figures, "step").get("medians"):
        ours, (other, beside) = medians["ours"], list(medians.items())[1]
        keys = ("seconds", "training", "peak_gb")
        rows += [["step", key.replace("_", " "), ours[key], f"{other}: {beside[key]:.4g}"] for key in keys]
    for name in REFERENCES:
        if "steps" in (found := _section(figures, name)):
            told = ", ".join(f"{success:.2f} after {steps} steps" for steps, success in found["published"])
            what = f"success after {found['steps']} steps{' of a rehearsal' if QUICK else ''}"
            rows.append([name, what, _success(found, "after"), f"published: {told or 'no number'} ({found['note']})"])
    for name, section in figures.items():
        rows += [
            [name, f"{why.replace('_', ' ')}: {_last_line(section[why])}", None, None]
            for why in ("failed", "left_out")
            if why in section
        ]
    header = ["section", "model", "figure", "gym-trl", "beside it, in the same run"]
    return Table("gpu", header, [[name, _section(figures, str(name)).get("model"), *row] for name, *row in rows])


def draw(figures: Mapping[str, Any], figure: Any) -> None:
    """Draw the throughputs, and the learning curve."""
    left, right = figure.subplots(1, 2)
    rows = _section(figures, "colocated").get("rows", ())
    speeds = {f"{name}, {row['latency_ms']} ms": row[name]["tokens_per_s"] for row in rows for name in list(row)[1:]}
    ways = _section(figures, "server").get("tokens_per_s", {})
    bars(left, speeds | {f"server: {name}": speed for name, speed in ways.items()}, "tokens/s")
    for name in ("learning", "learning-server", *REFERENCES):
        if points := _section(figures, name).get("curve"):
            right.plot([one["step"] for one in points], [one["success"] for one in points], label=name)
        if published := _section(figures, name).get("published"):
            right.plot(*zip(*published, strict=True), "o--", label=f"{name}, published")
    right.set(xlabel="step", ylabel="success in training", ylim=(0, 1))


def _section(figures: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = figures.get(name, {})
    return found


def _success(found: Mapping[str, Any], when: str, who: str = "model") -> float | None:
    """Return a success rate of a training's summary."""
    rate: float | None = ((found.get(when) or {}).get(who, {}).get("success") or {}).get("mean")
    return rate


def _before(found: Mapping[str, Any]) -> str:
    levels = {"before": _success(found, "before"), "random play": _success(found, "before", "random")}
    return ", ".join(f"{what}: {level:.3g}" for what, level in levels.items() if level is not None)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:200].replace("|", "/")


def main() -> None:
    words = [word for word in sys.argv[1:] if word not in ("--quick", "--add")]
    names = [word for word in words if word in SECTIONS]
    folders = [word for word in words if word not in SECTIONS]
    machine = gpu_name() or (processor() if QUICK else None)
    if machine is None:
        raise SystemExit(
            "bench-gpu needs a GPU, and PyTorch finds none on this machine: run it where there is one, or rehearse it "
            "with vLLM's CPU build and the pretrained model: make bench-gpu ARGS=--quick"
        )
    published = bool(names) and set(names) <= REFERENCES.keys()
    if len(folders) > 1 or not (folders or QUICK or published):
        raise SystemExit(f"give one model: make bench-gpu MODEL=FOLDER [ARGS='{' '.join(SECTIONS)}'], got {folders}")
    if published:
        for name in names:
            folder = "the tiny model" if QUICK else _found(folders[0] if folders else REFERENCES[name].model)
            _measure(machine, folder, [name], file=f"{file_name(machine)}-{name}")
        return
    if folders:
        folder = _found(folders[0])
    else:
        from gym_trl.testing import pretrained_folder

        folder = str(pretrained_folder())
    adds = "--add" in sys.argv[1:]
    _measure(
        machine,
        folder,
        names or [name for name in SECTIONS if name not in REFERENCES],
        part=bool(names) and not adds,
        earlier=published_sections(file_name(machine)) if adds else {},
    )


def _found(model: str) -> str:
    from gym_trl.players import find_model

    return str(find_model(model))


def published_sections(name: str) -> dict[str, Any]:
    """Return the sections in the results of this name, which may be of another day."""
    path = RESULTS / f"{name}.json"
    sections: dict[str, Any] = json.loads(path.read_text("utf-8"))["sections"] if path.exists() else {}
    return sections


def _measure(
    machine: str,
    folder: str,
    names: Sequence[str],
    *,
    file: str | None = None,
    part: bool = False,
    earlier: Mapping[str, Any] = {},
) -> None:
    """Run sections, and write a table of them and the earlier ones, or to ``file`` what the page has no place for."""

    def write(figures: Mapping[str, Any]) -> None:
        _write(machine, folder, {**earlier, **figures}, file=file, part=part)

    figures = measure(folder, names, write)
    if failed := [name for name, section in figures.items() if "failed" in section]:
        raise SystemExit(f"failed: {', '.join(failed)}")


def _write(machine: str, folder: str, figures: Mapping[str, Any], *, file: str | None, part: bool) -> None:
    rows = table(figures)
    if file is not None:
        print(markdown(rows.header, rows.rows), flush=True)
    publish(
        file or file_name(machine),
        {"model": Path(folder).name, "rehearsal": QUICK, "sections": figures},
        tables=[] if file else [rows],
        picture=lambda figure: draw(figures, figure),
        part=part,
    )


if __name__ == "__main__":
    run(main)
