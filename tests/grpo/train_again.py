"""Train a tiny model twice in one process, resume it there, and with other settings: run by the tests.

Arguments: a folder, and a JSON object of options (``grpo``, ``plain``, ``exact``, ``changed``).
"""

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from datasets import Dataset
from support import tiny_trainer
from train_with_failures import guess, make

from gym_trl.errors import ConfigError
from gym_trl.grpo.resume import ExactResume


def main(folder: Path, options):
    played = []

    def keep(rollout):
        tasks = [trajectory.task.to_json() for trajectory in rollout.episodes]
        ids = [trajectory.completion_ids for trajectory in rollout.episodes]
        played.append([rollout.split, rollout.step, tasks, ids])

    spec = guess(on_rollout=keep)  # one for all trainings
    if options.get("plain"):
        prompts = Dataset.from_dict({"prompt": [[{"role": "user", "content": "Play."}]] * 40})
        spec.__dict__ |= {"train_dataset": prompts, "eval_dataset": prompts.select(range(3))}

    def trainer(name, **changes):
        saving = {"save_strategy": "steps", "save_steps": options.get("save_steps", 2), "save_only_model": False}
        settings: dict[str, Any] = {
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 4,
            "num_generations_eval": 2,
        }
        settings |= {"learning_rate": 0.01, "max_steps": 4, **saving, **options.get("grpo", {}), **changes}
        made = make(folder / name, spec, spec.reward_funcs, **settings)
        if options.get("exact", True):
            ExactResume().attach(made)
        return made

    def train(made, **how):
        played.clear()
        made.train(**how)
        return list(played)

    def evaluate(made):
        played.clear()
        numbers = made.evaluate()
        return list(played), {name: value for name, value in numbers.items() if "env/" in name}

    report = {}
    first = trainer("first")
    report["first"] = train(first)
    report["evaluations"] = [evaluate(first), evaluate(first)]
    report["second"] = train(trainer("second"))
    checkpoint = str(folder / "first" / "out" / f"checkpoint-{options.get('save_steps', 2)}")
    report["resumed"] = train(trainer("third"), resume_from_checkpoint=checkpoint)
    report["resumed itself"] = train(first, resume_from_checkpoint=checkpoint)
    report["refused"] = []
    for changes in options.get("changed", ()):
        try:
            train(trainer("fourth", **changes), resume_from_checkpoint=checkpoint)
            report["refused"].append([len(played), None])
        except ConfigError as error:
            report["refused"].append([len(played), str(error)])
    tiny_trainer.end(folder, report)


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
