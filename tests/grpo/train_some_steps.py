"""Train a tiny model for some steps and record the results: run by the tests, alone or on several processes.

Arguments: a folder to write to, and a JSON object of options (``plain``, ``grpo``, ``spec``, ``curriculum``,
``faults``).
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import trl
from datasets import Dataset
from support import tiny_trainer
from support.law_4 import difference

from gym_trl.grpo.parts.part import Rollout
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
    wrappers = [partial(FaultyEnv, **options["faults"])] if "faults" in options else []
    spec = tiny_trainer.plain_spec(**given, wrappers=wrappers, on_rollout=keep)

    def rollout_func(prompts, trainer):
        columns = spec.rollout_func(prompts, trainer)
        args = trainer.args
        differences.append(difference(trainer.model, columns, temperature=args.temperature, top_k=args.top_k))
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
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
