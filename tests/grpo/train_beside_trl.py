"""Train a tiny model, and compute each loss twice: at sampled positions only, and by TRL alone.

Arguments: a folder to write to, and a JSON object of cases, by name: ``grpo``, ``lora``, ``dtype``, ``model``.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
import trl
from support import tiny_trainer
from support.law_4 import difference
from trl import GRPOTrainer

from gym_trl import GymGRPOTrainer
from gym_trl.testing import tiny_model, tiny_tokenizer


class Beside(GymGRPOTrainer):
    """Trainer that computes each loss a second time as TRL would without this library."""

    found: dict

    def compute_loss(self, model, inputs, *given, **named):
        loss = super().compute_loss
        ours = self._noted(loss, model, inputs, *given, **named)
        self.__class__ = GRPOTrainer
        try:
            theirs = Beside._noted(self, self.compute_loss, model, inputs, *given, **named)
        finally:
            self.__class__ = Beside
        self.found["losses"].append({"ours": ours, "theirs": theirs})
        mask = inputs["completion_mask"] * inputs["tool_mask"]
        self.found["sampled"].append(int(mask.sum()))
        return super().compute_loss(model, inputs, *given, **named)

    def _noted(self, compute, model, inputs, *given, **named):
        heads = []
        head = (model.get_base_model() if hasattr(model, "peft_config") else model).get_output_embeddings()
        noted = head.register_forward_pre_hook(lambda module, args: heads.append(args[0].numel() // args[0].shape[-1]))
        before = {name: len(values) for name, values in self._metrics["train"].items()}
        loss = compute(model, inputs, *given, **named)
        trained = [weight for weight in model.parameters() if weight.requires_grad]
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        noted.remove()
        logged = {
            name: values[before.get(name, 0) :][0]
            for name, values in self._metrics["train"].items()
            if len(values) > before.get(name, 0)
        }
        flat = torch.cat([part.float().flatten() for part in gradients if part is not None])
        return {
            "loss": float(loss),
            "norm": float(flat.norm()),
            "gradient": flat.tolist(),
            "logged": logged,
            "head": heads,
        }


def main(folder, cases):
    report = {"trl": trl.__version__}
    for name, case in cases.items():
        report[name] = train(folder / name, **case)
    tiny_trainer.end(folder, report)


def train(folder, *, grpo=None, lora=None, dtype="float32", scaled=False, masked=False):
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, width=32)
    if scaled:  # a model whose scores are not the product of its states and its head
        forward = model.forward

        def halved(*given, **named):
            found = forward(*given, **named)
            if found.logits is not None:
                found.logits = found.logits / 2
            return found

        model.forward = halved
    model.to(getattr(torch, dtype))
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=lora, target_modules="all-linear", init_lora_weights=False))
    spec = tiny_trainer.plain_spec(env_kwargs={"high": 8, "turns": 3}, num_tasks=40, num_eval_tasks=4)
    found: dict[str, Any] = {"losses": [], "sampled": [], "differences": [], "weights_kept": []}

    def rollout_func(prompts, trainer):
        before = {name: weight.detach().clone() for name, weight in trainer.model.named_parameters()}
        columns = spec.rollout_func(prompts, trainer)
        kept = all(torch.equal(before[name], weight) for name, weight in trainer.model.named_parameters())
        found["weights_kept"].append(kept)
        found["differences"].append(difference(trainer.model, columns, temperature=trainer.args.temperature))
        for row in range(len(prompts)):  # of different lengths, so that there is padding on both sides
            columns["prompt_ids"][row] = columns["prompt_ids"][row][row % 4 :]
            for name in ("completion_ids", "env_mask", "logprobs"):
                columns[name][row] = columns[name][row][: len(columns[name][row]) - row % 3]
        if masked:  # as an unscored episode is
            columns["env_mask"] = [[0] * len(mask) for mask in columns["env_mask"]]
        return columns

    settings = {"max_steps": 2, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    trainer = tiny_trainer.make(
        folder,
        spec,
        Beside,
        grpo={**settings, "learning_rate": 1e-2, **(grpo or {})},
        model=model,
        rollout_func=rollout_func,
        reward_funcs=[lambda completion_ids, **_: [sum(ids) % 7 / 7 for ids in completion_ids]],
    )
    trainer.found = found
    trainer.train()
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
