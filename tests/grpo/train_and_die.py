"""Train a tiny model on changing tasks and record its episodes: to the end, until it is killed, or resumed.

Arguments: a folder, a JSON object of options (``grpo``, ``exact``, ``dies_at``, ``moves``), what to do: ``whole``
trains to the end in ``FOLDER/whole``, ``killed`` does the same in ``FOLDER/killed`` until the step ``dies_at``, at
which the process kills itself, and ``resumed`` goes on with that, with checkpoints of its own elsewhere if it
``moves``. ``whole killed`` does one after the other.
"""

import hashlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from support import tiny_trainer
from transformers import TrainerCallback

from gym_trl.grpo.processes import leave_process_group
from gym_trl.grpo.resume import ExactResume
from gym_trl.options import Curriculum
from gym_trl.training.run_folder import last_checkpoint

RANK = int(os.environ.get("RANK", "0"))
LEVELS = [{"high": high, "turns": 2} for high in (2, 4, 8, 16, 32)]


class Die(TrainerCallback):
    """Callback that kills the process in the middle of a step."""

    def __init__(self, at):
        self.at = at

    def on_pre_optimizer_step(self, args, state, control, **_):
        if state.global_step == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def train(folder: Path, options, *, dies=False, resumes=False):
    """Train, with a line for each rollout in ``played-RANK.jsonl``, and return the result."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / f"played-{RANK}.jsonl").open("a") as played:

        def keep(rollout):
            tasks = [trajectory.task.to_json() for trajectory in rollout.episodes]
            texts = [[turn.answer.text for turn in trajectory.turns] for trajectory in rollout.episodes]
            line = {"split": rollout.split, "step": rollout.step, "tasks": tasks, "texts": texts}
            played.write(json.dumps({"resumed": resumes, **line}) + "\n")
            played.flush()

        spec = tiny_trainer.plain_spec(
            # Every rollout's result moves it, which makes a restart visible.
            curriculum=Curriculum(LEVELS, rise=0.3, fall=0.25, episodes=20),
            num_tasks=8,
            num_eval_tasks=4,
            max_tokens_per_turn=1,
            on_rollout=keep,
        )
        grpo = {
            "learning_rate": 0.01,
            "max_steps": 12,
            "save_strategy": "steps",
            "save_steps": 3,
            "eval_strategy": "steps",
            "eval_steps": 5,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 4,
        }
        trainer = tiny_trainer.make(
            folder / ("later" if resumes and options.get("moves") else "checkpoints"),
            spec,
            grpo={**grpo, **options.get("grpo", {})},
            callbacks=[Die(options["dies_at"])] if dies else [],
        )
        if options.get("exact", True):
            ExactResume().attach(trainer)
        start = last_checkpoint(folder) if resumes else None
        trainer.train(resume_from_checkpoint=str(start.path) if start else None)
    weights = b"".join(weight.detach().numpy().tobytes() for weight in trainer.model.parameters())
    losses = {log["step"]: (log["loss"], log["grad_norm"]) for log in trainer.state.log_history if "grad_norm" in log}
    evaluated = {log["step"]: log["eval_reward"] for log in trainer.state.log_history if "eval_reward" in log}
    result: dict[str, Any] = {"weights": hashlib.sha256(weights).hexdigest(), "losses": losses, "evaluated": evaluated}
    result |= {"start": start.step if start else 0}
    (folder / f"result-{RANK}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    where, how = Path(sys.argv[1]), json.loads(sys.argv[2])
    for what in sys.argv[3:]:
        train(where / what.replace("resumed", "killed"), how, dies=what == "killed", resumes=what == "resumed")
    leave_process_group()
