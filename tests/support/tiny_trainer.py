"""Trainer of a tiny model, quiet and on a CPU, for tests and the scripts that they run."""

import gc
import os

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer
from gym_trl.testing import tiny_model, tiny_tokenizer

gc.freeze()  # every training looks for garbage, half of its time among what was imported

QUIET = {
    "use_cpu": True,
    "bf16": False,
    "report_to": [],
    "save_strategy": "no",
    "logging_steps": 1,
    "num_generations": 4,
    "max_completion_length": 64,
    "disable_tqdm": True,
}


def make(folder, spec, trainer=GymGRPOTrainer, *, grpo, **changes):
    """Return a trainer of a spec that writes to a folder.

    ``grpo`` are settings of ``GRPOConfig``, and ``changes`` other arguments of the trainer than the usual.
    """
    torch.set_num_threads(1)
    tokenizer = changes.setdefault("processing_class", None) or tiny_tokenizer()
    return trainer(
        **{
            "model": changes.pop("model", None) or tiny_model(tokenizer),
            "args": GRPOConfig(**{"output_dir": str(folder), **QUIET, **grpo}),
            "train_dataset": spec.train_dataset,
            "eval_dataset": spec.eval_dataset,
            "reward_funcs": spec.reward_funcs,
            "rollout_func": spec.rollout_func,
            **changes,
            "processing_class": tokenizer,
        }
    )
