"""Train a tiny model for some steps and record the results: run by the tests, alone or on several processes.

Arguments: a folder to write to, and a JSON object of options (``plain``, ``grpo``, ``spec``, ``curriculum``,
``faults``).
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch
import trl
from datasets import Dataset
from support import tiny_trainer

from gym_trl import GymSpec
from gym_trl.grpo.parts.part import Rollout
from gym_trl.grpo.processes import leave_process_group
from gym_trl.options import Curriculum
from gym_trl.testing import FaultyEnv, tiny_tokenizer


def main(folder: Path, options):
    rollouts: list[dict[str, Any]] = []
    returned: list[dict[str, Any]] = []
    differences: list[float | None] = []
    first_prompts: list[str] = []

    def keep(rollout: Rollout) -> None:
        rollouts.append(
            {
                "split": rollout.split,
                "step": rollout.step,
                "tasks": [trajectory.task.to_json() for trajectory in rollout.episodes],
                "first_observations": [
                    trajectory.turns[0].observation if trajectory.turns else None for trajectory in rollout.episodes
                ],
                "texts": [[turn.answer.text for turn in trajectory.turns] for trajectory in rollout.episodes],
                "replaced": [
                    (one.place, one.attempt, one.episode.task.to_json(), one.episode.episode_return)
                    for one in rollout.replaced
                ],
            }
        )

    given = {"env_kwargs": {"high": 8, "turns": 3}, "num_tasks": 40, "num_eval_tasks": 4, **options.get("spec", {})}
    if "curriculum" in options:
        given["curriculum"] = Curriculum(**options["curriculum"])
    spec = GymSpec(
        "TrlEnv/GuessNumber-v0",
        **given,
        wrappers=[partial(FaultyEnv, **options["faults"])] if "faults" in options else [],
        action_format="plain",
        max_tokens_per_turn=2,
        cut_actions="accept",
        on_rollout=keep,
    )

    def rollout_func(prompts, trainer):
        columns = spec.rollout_func(prompts, trainer)
        differences.append(logprob_difference(columns, trainer))
        first_prompts.append(tokenizer.decode(columns["prompt_ids"][0]))
        returned.append({name: columns[name] for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask")})
        return columns

    dataset = spec.train_dataset
    if options.get("plain"):
        dataset = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Play."}]] * 40})
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = options.get("template", tokenizer.chat_template)
    grpo = {"max_steps": 3, "per_device_train_batch_size": 8, "per_device_eval_batch_size": 8}
    trainer = tiny_trainer.make(
        folder / "out",
        spec,
        grpo={**grpo, **options.get("grpo", {})},
        processing_class=tokenizer,
        train_dataset=dataset,
        rollout_func=rollout_func,
    )
    trainer.train()
    evaluation = trainer.evaluate()
    report = {
        "trl": trl.__version__,
        "rank": trainer.accelerator.process_index,
        "rollouts": rollouts,
        "returned": returned,
        "logprob_differences": differences,
        "first_prompts": first_prompts,
        "logs": trainer.state.log_history,
        "evaluation": evaluation,
    }
    (folder / f"rank{trainer.accelerator.process_index}.json").write_text(json.dumps(report))
    leave_process_group()


def logprob_difference(columns, trainer):
    """Return the mean difference of the rollout's logprobs and the training model's, on whole rows."""
    args, differences = trainer.args, []
    names = ("prompt_ids", "completion_ids", "logprobs", "env_mask")
    for prompt, completion, logprobs, mask in zip(*(columns[name] for name in names), strict=True):
        with torch.no_grad():
            logits = trainer.model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1]
        logits = logits / args.temperature
        if args.top_k:
            logits = logits.masked_fill(logits < logits.topk(args.top_k).values[:, -1:], -torch.inf)
        recomputed = logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].tolist()
        pairs = zip(recomputed, logprobs, mask, strict=True)
        differences += [abs(ours - theirs) for ours, theirs, sampled in pairs if sampled]
    return sum(differences) / len(differences) if differences else None


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
