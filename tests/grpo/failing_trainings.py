"""Trainings that fail in any place, a stock training after them, and what they may have left in TRL and Transformers.

Run with a folder it writes there what the stock training trains on in a process in which nothing was trained before.
"""

import json
import sys
import warnings
from inspect import isclass, ismodule, isroutine
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from support import tiny_trainer
from transformers import TrainerCallback
from trl import GRPOTrainer

from gym_trl import GymGRPOTrainer, env_reward

BATCHES: dict[str, Any] = {
    "per_device_train_batch_size": 2,
    "gradient_accumulation_steps": 4,
    "max_steps": 1,
    "learning_rate": 1e-3,
}
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "credit": {"credit": "pool"},
    "history": {"history": 1},
    "stock": {},
    "both": {"credit": "return_to_go", "history": 1},
}
OWN = "_CAN_RECORD_REGISTRY"  # Transformers notes in it the classes of models that were made
LIBRARIES = ("accelerate", "peft", "transformers", "trl", "vllm")
PLACES = ("nowhere", "generation", "rollout", "reward", "logs", "loss", "backward", "step")
"""Places in which a training may fail."""


def guess(**options):
    """Return a spec whose episodes have several turns of different lengths."""
    settings = {"env_kwargs": {"high": 50, "turns": 4}, "executor": "inline", "num_tasks": 4, "num_eval_tasks": 2}
    return tiny_trainer.plain_spec(**{**settings, **options})


def fail(error):
    """Return a function that raises ``error`` whatever it is given."""

    def raises(*given, **named):
        raise error

    return raises


class Step(TrainerCallback):
    """Callback that raises an error before the weights change."""

    def __init__(self, error):
        self.error = error

    def on_pre_optimizer_step(self, args, state, control, **_):
        raise self.error


def train(folder, feature, place, error, *, evaluates=False):
    """Train with a feature; raise ``error`` in a place of the first batch."""
    options, changes = dict(FEATURES[feature]), {}
    kind = GRPOTrainer if feature == "stock" else GymGRPOTrainer
    if place == "rollout":
        options["on_rollout"] = fail(error)
    if place == "reward":
        changes["reward_funcs"] = [env_reward, fail(error)]
    if place == "step":
        changes["callbacks"] = [Step(error)]
    grpo = {**BATCHES, "max_completion_length": 48}
    trainer = tiny_trainer.make(folder, guess(**options), kind, grpo=grpo, **changes)
    if place in {"generation", "loss"}:
        fails, learns = fail(error), place == "loss"
        embeddings = trainer.model.get_input_embeddings()
        embeddings.register_forward_pre_hook(lambda *_: fails() if torch.is_grad_enabled() == learns else None)
    if place == "backward":
        trainer.accelerator.backward = fail(error)
    if place == "logs":  # after the rewards, before the rows are shuffled
        trainer._logs["prompt"] = None
    if evaluates:
        trainer.evaluate()
    trainer.train()


def stock(folder):
    """Train with TRL alone; return the rows of each micro-batch, in their order, and the losses."""
    lengths = iter([3, 9, 1, 7, 2, 8, 4, 6] * 2)

    def play(prompts, trainer):
        ids = [[5 + row] * next(lengths) for row in range(len(prompts))]
        mask = [[1] * len(row) for row in ids]
        logprobs = [[0.0] * len(row) for row in ids]
        return {"prompt_ids": [[4, 3]] * len(ids), "completion_ids": ids, "logprobs": logprobs, "env_mask": mask}

    trainer = tiny_trainer.make(
        folder,
        guess(),
        GRPOTrainer,
        grpo={**BATCHES, "max_steps": 2},
        rollout_func=play,
        reward_funcs=[lambda completion_ids, **_: [float(len(ids)) for ids in completion_ids]],
        train_dataset=Dataset.from_dict({"prompt": ["one", "two", "three", "four"]}),
        eval_dataset=None,
    )
    rows: list[Any] = []
    compute = trainer._compute_loss

    def watch(model, inputs, *given, **named):
        loss = compute(model, inputs, *given, **named)
        rows.append([inputs["completion_ids"].tolist(), inputs["advantages"].tolist(), float(loss.detach())])
        return loss

    trainer._compute_loss = watch
    trainer.train()
    return rows


def attributes():
    """Return each attribute of the modules of other libraries and of their classes, by its name."""
    found: dict[str, Any] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.split(".")[0] not in LIBRARIES:
            continue
        for name, value in list(vars(module).items()):
            if ismodule(value) or name.startswith("__") or name == OWN:
                continue
            found[f"{module_name}.{name}"] = value if isclass(value) or isroutine(value) else repr(value)
            if isclass(value) and value.__module__ == module_name:
                of_class = {f"{module_name}.{name}.{key}": member for key, member in vars(value).items()}
                found |= {key: member for key, member in of_class.items() if "._abc_" not in key}
    return found


def ours(found):
    """Return the names of what is defined in this library."""
    return [name for name, value in found.items() if str(getattr(value, "__module__", "")).startswith("gym_trl")]


if __name__ == "__main__":
    warnings.simplefilter("default")
    folder = Path(sys.argv[1])
    (folder / "rank0.json").write_text(json.dumps(stock(folder)))
