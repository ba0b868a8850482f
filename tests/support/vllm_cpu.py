"""The real vLLM on a CPU, for tests: settings to make before its import, and a small model.

The CPU backend packs each weight for its own kernels after loading and drops the original, so that TRL, which loads
the trained weights into the running engine, finds nowhere to put them. ``keep_weights`` leaves them as they are
and multiplies with torch. On a GPU vLLM keeps its weights, so the library needs none of this.
"""

import os
from contextlib import contextmanager
from pathlib import Path

from support.warm import free_port

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine in this process, as TRL has it
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # other tests run at the same time: leave the cores to the scheduler
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling what the sampler needs takes longer than all tests
    "OMP_NUM_THREADS": "1",
}


def own_port() -> dict[str, str]:
    """Return a port for a colocated vLLM's process group: parallel tests would all use TRL's default."""
    return {"MASTER_PORT": str(free_port())}


BLOCK = 32  # tokens of the prefix cache: the smallest that the CPU's attention has, so that short prompts fill some
ENGINE = {
    "dtype": "float32",  # law 4 compares with the trainer's float32; "auto" would halve it
    "enforce_eager": True,
    "block_size": BLOCK,
}
IN_ONE_PASS = 2**15
"""Tokens of a pass. Where prompts are computed in parts, vLLM asks the generator of a seeded request for its offset,
which only a GPU's has."""


def prepare() -> None:
    """Prepare the process for an engine."""
    os.environ.update(SETTINGS)
    import torch

    torch.set_num_threads(1)  # the setting is read when torch is imported, which may have been earlier
    keep_weights()


def keep_weights() -> None:
    """Let the CPU backend keep the weights that TRL loads new ones into."""
    from torch.nn.functional import linear
    from vllm.model_executor.layers import utils

    def keep(layer, remove_weight):
        layer.cpu_linear = linear

    utils.dispatch_cpu_unquantized_gemm = keep


def save_model(folder: Path, *, seed: int = 0):
    """Write a tiny model and its tokenizer to ``folder``, and return them."""
    from transformers import AutoModelForCausalLM

    from gym_trl.testing import save_tiny, tiny_tokenizer

    save_tiny(folder, seed=seed)
    return AutoModelForCausalLM.from_pretrained(folder).eval(), tiny_tokenizer()


@contextmanager
def small_llm(folder: Path, **options):
    """Return an engine for the model in ``folder`` without leaving process state that trainers would find."""
    import torch

    environment, threads = dict(os.environ), torch.get_num_threads()
    prepare()
    from vllm import LLM
    from vllm.distributed import cleanup_dist_env_and_memory

    given = {"max_model_len": 512, "max_num_batched_tokens": 4096, "logprobs_mode": "processed_logprobs", **options}
    llm = LLM(model=str(folder), **{**ENGINE, **given})
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()
        cleanup_dist_env_and_memory()
        torch.set_num_threads(threads)
        os.environ.clear()
        os.environ.update(environment)


def prepare_trl() -> None:
    """Make TRL create its engine as ``small_llm`` does: it has no argument for these settings."""
    prepare()
    from trl.generation import vllm_generation

    make = vllm_generation.LLM
    vllm_generation.LLM = lambda **given: make(**{**given, **ENGINE, "max_num_batched_tokens": IN_ONE_PASS})
