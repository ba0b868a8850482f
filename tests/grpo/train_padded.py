"""Train a tiny model on rows of very different lengths, with this library's passes and with TRL's own.

Arguments: a folder to write to, and a JSON object of cases, by name: arguments of ``train``.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import trl
from support import tiny_trainer
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback
from trl import GRPOTrainer

from gym_trl import GymSpec
from gym_trl.grpo import passes
from gym_trl.grpo.trainer import GymTraining
from gym_trl.testing import tiny_model, tiny_tokenizer


class Overridden(GRPOTrainer):
    """Trainer whose loss may depend on anything in a micro-batch."""

    def compute_loss(self, *given, **named):
        return super().compute_loss(*given, **named)


def with_positions(module, args, named):
    """Let the positions of a row begin with its first token."""
    if named.get("attention_mask") is not None:
        named = {**named, "position_ids": (named["attention_mask"].long().cumsum(-1) - 1).clamp(min=0)}
    return args, named


class Gradients(TrainerCallback):
    """Callback that keeps the gradient and the loss of each optimizer step."""

    def __init__(self):
        self.gradients, self.losses = [], []

    def on_pre_optimizer_step(self, args, state, control, model, **_):
        self.gradients.append(torch.cat([w.grad.flatten() for w in model.parameters() if w.grad is not None]))

    def on_log(self, args, state, control, logs, **_):
        self.losses += [logs["loss"]] if "loss" in logs else []


def main(folder, cases):
    report = {"trl": trl.__version__}
    for name, case in cases.items():
        report[name] = {who: train(folder / name / who, who, **case) for who in ("ours", "theirs")}
    tiny_trainer.end(folder, report)


def train(folder, who, *, grpo=None, seed=0, absolute=False, lora=False, subclass=False, scored_by_trl=False):
    """Return gradients, losses, widths of the passes and tokens of a training of two steps."""
    torch.manual_seed(0)
    tokenizer = tiny_tokenizer()
    model = tiny_model(tokenizer, width=16)
    if absolute:  # positions, which count from the first column
        ids = {"bos_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
        small = {"n_embd": 16, "n_layer": 2, "n_head": 2, "resid_pdrop": 0, "embd_pdrop": 0, "attn_pdrop": 0}
        model = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_positions=64, **ids, **small))
        if who == "theirs" and not scored_by_trl:  # TRL passes no positions: those of padded rows were not sampled
            model.transformer.register_forward_pre_hook(with_positions, with_kwargs=True)
    torch.manual_seed(0)
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    spec = GymSpec("TrlEnv/GuessNumber-v0", num_tasks=40, action_format="plain")
    widths = []
    calls = 0

    def rollout_func(prompts, trainer):
        nonlocal calls
        random = np.random.default_rng([seed, calls, trainer.accelerator.process_index])
        calls += 1
        columns: dict[str, list] = {"prompt_ids": [], "completion_ids": [], "logprobs": [], "env_mask": []}
        for _ in prompts:
            length = min(24, 1 + int(random.pareto(1.0) * 2))
            mask = (random.random(length) < 0.5) * (random.random() < 0.9)
            prompt, ids = random.integers(3, 90, random.integers(1, 8)), random.integers(3, 90, length)
            columns["prompt_ids"].append(prompt.tolist())
            columns["completion_ids"].append(ids.tolist())
            columns["env_mask"].append(mask.astype(int).tolist())
            columns["logprobs"].append((-3.0 * mask).tolist())
        return columns

    taken = vars(passes)["sampled_scores"]
    if scored_by_trl:  # as on a GPU, or with several processes
        vars(passes)["sampled_scores"] = lambda trainer: None
    noted = Gradients()
    settings = {"max_steps": 2, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "optim": "sgd"}
    kind = Overridden if subclass else GRPOTrainer
    trainer = tiny_trainer.make(
        folder,
        spec,
        kind if who == "theirs" else type("Ours", (GymTraining, kind), {}),
        grpo={**settings, "learning_rate": 0.3, "num_generations": 2, "max_grad_norm": 0.0, **(grpo or {})},
        model=model,
        rollout_func=rollout_func,
        reward_funcs=[lambda completion_ids, **_: [sum(ids) % 7 / 7 for ids in completion_ids]],
        callbacks=[noted],
    )
    embed = trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings()
    embed.register_forward_pre_hook(lambda module, args: widths.append(args[0].shape[1]) if len(args[0]) > 1 else None)
    try:
        trainer.train()
    finally:
        vars(passes)["sampled_scores"] = taken
    return {
        "gradients": [gradient.tolist() for gradient in noted.gradients],
        "losses": noted.losses,
        "widths": widths,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
