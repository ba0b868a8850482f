"""Train a tiny model for a few steps on each of some environments: run by the tests, in a process of its own.

Arguments: a folder to write to, and a JSON list of ``GymSpec``'s arguments.
"""

import gc
import json
import sys
from pathlib import Path
from typing import Any

from support import tiny_trainer

from gym_trl import GymSpec
from gym_trl.grpo.rollout_func import Rollout


def train(folder: Path, arguments):
    """Return the logged steps, and the result of each episode."""
    episodes: list[dict[str, Any]] = []

    def keep(rollout: Rollout) -> None:
        episodes.extend(
            {
                "stop": str(episode.stop_reason),
                "error": episode.error,
                "turns": len(episode.turns),
                "first": episode.turns[0].observation if episode.turns else "",
                "task": episode.task.to_json(),
            }
            for episode in rollout.episodes
        )

    spec = GymSpec(
        **{"action_format": "open", "turn_limit": 3, "num_tasks": 16, "num_eval_tasks": 0, **arguments},
        max_tokens_per_turn=4,
        on_rollout=keep,
    )
    grpo = {"max_steps": 3, "per_device_train_batch_size": 4, "num_generations": 2, "max_completion_length": 800}
    trainer = tiny_trainer.make(folder / "out", spec, grpo=grpo)
    trainer.train()
    return {"logs": trainer.state.log_history, "episodes": episodes}


if __name__ == "__main__":
    gc.freeze()  # what is imported stays, and each training looks through all the rest for garbage
    runs = [train(Path(sys.argv[1]), arguments) for arguments in json.loads(sys.argv[2])]
    gc.unfreeze()
    (Path(sys.argv[1]) / "runs.json").write_text(json.dumps(runs))
