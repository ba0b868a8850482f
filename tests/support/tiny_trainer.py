"""Specification and trainer of a tiny model, quiet and on a CPU, for tests and the scripts that they run."""

import gc
import json
import os
from pathlib import Path

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
from transformers import PrinterCallback
from trl import GRPOConfig

from gym_trl import GymGRPOTrainer, GymSpec
from gym_trl.grpo.processes import leave_process_group
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


def plain_spec(env="TrlEnv/GuessNumber-v0", **options):
    """Return a specification for a model that ends no response and marks no action."""
    return GymSpec(env, **{"action_format": "open", "max_tokens_per_turn": 2, **options})


def make(folder, spec, trainer=GymGRPOTrainer, *, grpo, **changes):
    """Return a trainer of a spec that writes to a folder.

    ``grpo`` are settings of ``GRPOConfig``, and ``changes`` other arguments of the trainer than the usual.
    """
    torch.set_num_threads(1)
    tokenizer = changes.setdefault("processing_class", None) or tiny_tokenizer()
    made = trainer(
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
    made.remove_callback(PrinterCallback)
    return made


def weights_of(trainer):
    """Return a copy of all weights of a trainer's model, one after the other."""
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def logprob_difference(model, episodes, *, temperature=1.0, top_k=0):
    """Return the mean difference of the log-probabilities of episodes and a model's (law 4); ``None`` without any.

    The model is asked for whole segments, with the temperature and the ``top_k`` that they were sampled with.
    """
    differences = []
    for segment in (segment for one in episodes for segment in one.segments):
        with torch.no_grad():
            logits = (
                model(torch.tensor([segment.ids])).logits[0, len(segment.prompt_ids) - 1 : -1].float() / temperature
            )
        if top_k:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
        recomputed = logits.log_softmax(-1).gather(1, torch.tensor(segment.completion_ids)[:, None])[:, 0].tolist()
        sampled = zip(recomputed, segment.logprobs, segment.mask, strict=True)
        differences += [abs(ours - theirs) for ours, theirs, bit in sampled if bit]
    return sum(differences) / len(differences) if differences else None


def end(folder, report):
    """Write the report of this process, which ``warm.run_ranks`` reads, and leave the others."""
    Path(folder, f"rank{os.environ.get('RANK', '0')}.json").write_text(json.dumps(report))
    leave_process_group()


def columns_of(episodes):
    """Return what the tests of scripts read of episodes, by name, with a value for each."""
    rows = [one.row for one in episodes]
    return {
        "prompt_ids": [row.prompt_ids for row in rows],
        "completion_ids": [row.completion_ids for row in rows],
        "env_mask": [row.mask for row in rows],
        "logprobs": [row.logprobs for row in rows],
        "segments": [len(one.segments) for one in episodes],
        "messages": [[message.as_dict() for message in one.messages] for one in episodes],
        "task": [one.task.to_json() for one in episodes],
        "num_turns": [len(one.turns) for one in episodes],
        "stop_reason": [str(one.stop_reason) for one in episodes],
        "error": [one.error for one in episodes],
    }
