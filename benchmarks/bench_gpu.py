"""Measure a machine with a GPU in a quarter of an hour: sections of four minutes, each of which leaves a result.

$ make bench-gpu                          # with the pretrained model of 135 million weights
$ make bench-gpu MODEL=FOLDER             # a folder, or an id on the hub; the learning curve is always the small one's
$ make bench-gpu ARGS="colocated step"    # these sections; the results keep the others
$ make bench-gpu ARGS=--quick             # a rehearsal without a GPU, with vLLM's CPU build

Each section is a process of its own and notes its figures as it goes: what was measured is kept if it fails or its time
is up, with the reason. All figures so far are written after each to ``results/gpu.json``.
"""

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from typing import Any, TypeAlias

from report import LOGS, QUICK, RESULTS, WORDS, Cell, Table, alternating, gpu_name, medians, publish

from gym_trl.models import find_model
from gym_trl.records import read_lines
from gym_trl.testing import pretrained_folder

EPISODES, ROUNDS, LATENCIES_MS = (8, 1, (50,)) if QUICK else (256, 3, (100, 0))
TURN, CONTEXT = (8, 512) if QUICK else (64, 4096)
"""Most tokens of a turn and of an episode."""
SECONDS = 600.0 if QUICK else 240.0
"""Time of a section; a rehearsal is slower, and says nothing about speed."""
TRAINED = ["TrlEnv/GuessNumber-v0", "--env_kwargs=high=8", "--env_kwargs=turns=4", "--warm_start=random"]
TRAINED += (
    ["--steps=2", "--groups=2", "--num_generations=4", "--warm_episodes=16", "--eval_episodes=4"]
    if QUICK
    else ["--steps=60", "--groups=6", "--num_generations=16", "--grpo=per_device_train_batch_size=48"]
)

Figures: TypeAlias = dict[str, Any]


def colocated(model: str) -> Iterator[Figures]:
    """Compare tokens and turns a second of continuous and lockstep scheduling in the same engine."""
    from engines.talk import SlowPool, continuous, lockstep

    schedulers = {"continuous": continuous, "lockstep": lockstep}
    rows: list[Figures] = []
    with model_on_vllm(model) as played:
        played.play(SlowPool(0.0), indices=range(EPISODES))  # warm up
        for latency_ms in LATENCIES_MS:

            def measure(name: str, latency_ms: int = latency_ms) -> dict[str, float]:
                episodes, seconds, steps = played.play(
                    SlowPool(latency_ms / 1000), schedulers[name], range(EPISODES), seeded=False
                )
                sampled, turns = sum(sum(one.row.mask) for one in episodes), sum(len(one.turns) for one in episodes)
                return {"tokens_per_s": sampled / seconds, "turns_per_s": turns / seconds, "steps": steps}

            took = alternating(list(schedulers), ROUNDS, measure)
            rows.append({"latency_ms": latency_ms, **{name: medians(rounds) for name, rounds in took.items()}})
            yield {"episodes": EPISODES, "tokens_per_turn": TURN, "rows": rows}


def fidelity(model: str) -> Iterator[Figures]:
    """Compare the engine's logprobs with those of the model in Transformers, in both its types."""
    import torch
    from bench_fidelity import Scorer
    from engines.talk import SlowPool

    # Half of the memory is for the other model.
    with model_on_vllm(model, dtype="float32" if QUICK else "auto", gpu_memory_utilization=0.4) as sampling:
        episodes, _, _ = sampling.play(SlowPool(0.0), indices=range(min(EPISODES, 32)))
        engine = str(sampling.llm.llm_engine.model_config.dtype).removeprefix("torch.")
    rows: list[Figures] = []
    for dtype in ("float32", "bfloat16"):
        scorer = Scorer(model, dtype=dtype)
        scorer.model.to(str(torch.accelerator.current_accelerator() or "cpu"))
        found = (scorer.differences(one.row, one.row.logprobs, one.row.mask) for one in episodes)
        apart = [one for row in found for one in row]
        rows.append({"trainer": dtype, "mean": statistics.fmean(apart), "max": max(apart), "tokens": len(apart)})
        yield {"engine": engine, "episodes": len(episodes), "rows": rows}


def step(model: str) -> Iterator[Figures]:
    """Measure a training step, and again without what makes it fast: each variant has what those before it have not."""
    import bench_lm_step

    game, found = "up to 4 turns" if QUICK else "for a GPU", {}
    for name in reversed(bench_lm_step.VARIANTS):
        found[name] = bench_lm_step.step(game, name, model)
        yield {"variants": found}


def learning(model: str) -> Iterator[Figures]:
    """Train with a colocated vLLM, with 96 episodes a step: the success by step, as far as it comes."""
    from support import vllm_cpu

    folder = LOGS / "gpu-learning"
    rmtree(folder, ignore_errors=True)
    words = ["train", *TRAINED, f"--model={model}", "--vllm=colocate", f"--out={folder}"]
    program, variables = ["gym_trl"], {}
    if QUICK:
        path = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])
        program = ["support.vllm_run", "gym_trl"]
        variables = {**vllm_cpu.SETTINGS, **vllm_cpu.own_port(), "PYTHONPATH": path}
    process = subprocess.Popen([sys.executable, "-m", *program, *words], env={**os.environ, **variables})
    while (status := process.poll()) is None:
        time.sleep(2.0)
        yield learned_in(folder)
    if status:
        raise RuntimeError(f"gym-trl {' '.join(words)} ended with {status}")
    yield learned_in(folder)


def learned_in(folder: Path) -> Figures:
    """Return the curve of a training that may be going on, and its evaluations as far as there are any."""
    from gym_trl.training import METRICS, summary_of

    file, summary = folder / METRICS, summary_of(folder)
    logs = [line for _, line in read_lines(file) if "env/return" in line] if file.exists() else []
    curve = [{"step": one["step"], "seconds": one["seconds"], "success": one.get("env/success")} for one in logs]
    ratios = [one["sampling/importance_sampling_ratio/mean"] for one in logs]
    return {
        "command": TRAINED,
        "curve": curve,
        "ratio_lowest": min(ratios, default=None),
        "before": summary.get("before") or {},
        "after": summary.get("after") or {},
    }


@contextmanager
def model_on_vllm(model: str, **options: Any) -> Iterator[Any]:
    """Provide a model that plays short talks, in this process as TRL has it."""
    from engines.talk import Model
    from support import vllm_cpu

    from gym_trl.rollout import Limits

    given = {"dtype": "bfloat16" if QUICK else "auto", "max_model_len": CONTEXT, "max_num_seqs": EPISODES, **options}
    limits = Limits(tokens_per_turn=TURN, context=CONTEXT)
    if QUICK:
        given.pop("gpu_memory_utilization", None)
        with vllm_cpu.small_llm(Path(model), **given) as llm:
            yield Model.of(llm, limits)
        return
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM

    yield Model.of(
        LLM(model, **{"logprobs_mode": "processed_logprobs", "gpu_memory_utilization": 0.8, **given}), limits
    )


SECTIONS = {one.__name__: one for one in (colocated, fidelity, step, learning)}


def run_section(name: str, model: str) -> Figures:
    """Run a section in a process of its own until its time is up; return what it has noted, and why it ended."""
    notes, log = LOGS / f"gpu-{name}.json", LOGS / f"gpu-{name}.log"
    LOGS.mkdir(parents=True, exist_ok=True)
    notes.unlink(missing_ok=True)
    command = [sys.executable, __file__, *["--quick"] * QUICK, f"--section={name}", model]
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            ended = "done" if process.wait(SECONDS) == 0 else f"failed: {_last_line(log)}"
        except subprocess.TimeoutExpired:
            ended = f"cut off after {SECONDS:.0f} s"
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    noted = json.loads(notes.read_text("utf-8")) if notes.exists() else {}
    return {"model": Path(model).name, "ended": ended, "seconds": time.monotonic() - began, **noted}


def note_section(name: str, model: str) -> None:
    """Write the figures of a section after each of them; one that is cut off has the last."""
    notes = LOGS / f"gpu-{name}.json"
    for figures in SECTIONS[name](model):
        whole = notes.with_suffix(".part")
        whole.write_text(json.dumps(figures), encoding="utf-8")
        whole.replace(notes)


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:200].replace("|", "/") if lines else "nothing was said"


def table(sections: Mapping[str, Figures]) -> Table:
    """Return rows with what was measured, and how each section ended."""
    rows: list[list[Cell]] = []
    for name, found in sections.items():
        rows += [[name, found["model"], *row, None] for row in rows_of(name, found)]
        rows.append([name, found["model"], None, None, None, found["ended"]])
    return Table("gpu", ["section", "model", "figures", "first", "second", "ended"], rows)


def rows_of(name: str, found: Figures) -> Iterator[tuple[str, Cell, Cell]]:
    """Yield what two figures of a section are, and the figures."""
    if name == "learning" and (curve := found.get("curve")):
        last = statistics.fmean(one["success"] or 0.0 for one in curve[-4:])
        yield (
            f"success in the last of {len(curve)} training steps, seconds a step",
            last,
            curve[-1]["seconds"] / len(curve),
        )
        scores = [found[when].get("model") or {} for when in ("before", "after")]
        before, after = ((score.get("success") or {}).get("mean") for score in scores)
        yield "success on held-out tasks after the warm start, and after GRPO", before, after
    for variant, one in found.get("variants", {}).items():
        yield f"seconds of a step, and peak GB: {variant}", one["seconds"], one["peak_gb"]
    for row in found.get("rows", ()):
        if name == "fidelity":
            what = f"difference of logprobs, engine in {found['engine']}, trainer in {row['trainer']}: mean, largest"
            yield what, row["mean"], row["max"]
        else:
            for key in row["lockstep"]:
                what = f"{key}, environments of {row['latency_ms']} ms: continuous, lockstep"
                yield what, row["continuous"][key], row["lockstep"][key]


def main(words: Sequence[str]) -> None:
    """Run the sections that are named, or all."""
    named = [word.removeprefix("--section=") for word in sys.argv if word.startswith("--section=")]
    if named:
        note_section(named[0], words[0])
        return
    if gpu_name() is None and not QUICK:
        raise SystemExit("there is no GPU here; to rehearse on a CPU: make bench-gpu ARGS=--quick")
    models = [word for word in words if word not in SECTIONS]
    model = str(find_model(models[0]) if models else pretrained_folder())
    file = RESULTS / "gpu.json"
    sections: dict[str, Figures] = json.loads(file.read_text("utf-8"))["sections"] if file.exists() else {}
    for name in [word for word in words if word in SECTIONS] or SECTIONS:
        print(f"{name}: {LOGS / f'gpu-{name}.log'}", flush=True)
        sections[name] = run_section(name, str(pretrained_folder()) if name == "learning" else model)
        publish("gpu", {"rehearsal": QUICK, "sections": sections}, [table(sections)])


if __name__ == "__main__":
    main(WORDS)
