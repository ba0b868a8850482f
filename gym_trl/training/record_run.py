"""Callback that makes the output folder of a trainer a run that ``gym-trl view`` opens."""

import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gym_trl.errors import check_counts, needs
from gym_trl.grpo.rollout_func import Rollout
from gym_trl.training.recording import Recorder
from gym_trl.training.run_folder import Checkpoint, RunFolder

with needs("train", "a trainer's callback"):
    from transformers import TrainerCallback

_log = logging.getLogger(__name__)


class RecordRun(TrainerCallback):  # type: ignore[misc]  # Transformers is untyped
    """Callback that writes the metrics and some episodes of a ``GymGRPOTrainer`` into a folder, as ``gym-trl train``.

    ::

        record = RecordRun("runs/mine")
        spec = GymSpec("TrlEnv/Wordle-v0", on_rollout=record.on_rollout)
        trainer = GymGRPOTrainer(..., spec=spec, args=GRPOConfig(output_dir="runs/mine"), callbacks=[record])
        trainer.train()  # gym-trl view runs/mine

    The folder gets ``metrics.jsonl``, ``rollouts.jsonl``, ``curve.png`` and ``tokenizer``. A training that is resumed
    appends to the lines up to its checkpoint; any other one begins the files anew.

    Args:
        folder: The folder.
        episodes: Number of episodes of each step that are recorded, in whole groups.
        about: Further fields of all records, by the names of ``as_record``'s arguments: ``env_kwargs``, ``policy``.

    Raises:
        ConfigError: ``episodes`` is below 1.
    """

    def __init__(self, folder: str | os.PathLike[str], *, episodes: int = 32, **about: Any) -> None:
        check_counts(episodes=episodes)
        self._folder = RunFolder(Path(folder), writes=os.environ.get("RANK", "0") == "0")
        self._episodes, self._about = episodes, about
        self._recorder: Recorder | None = None
        self._began = 0.0

    def on_rollout(self, rollout: Rollout) -> None:
        """Record some of the episodes; pass this method as ``GymSpec(on_rollout=...)``."""
        if self._recorder is not None:
            self._recorder.on_rollout(rollout)

    def on_train_begin(self, args: Any, state: Any, control: Any, processing_class: Any = None, **_: Any) -> None:
        """Open the files, which keep the lines of earlier steps."""
        step = state.global_step
        start = Checkpoint(Path(args.output_dir) if step else None, step)
        self._folder.begin(start, state.max_steps, **self._about)
        self._folder.tokenizer(processing_class)
        self._recorder = Recorder(self._folder, _log.warning, episodes=self._episodes, group_size=args.num_generations)
        self._began = time.monotonic()

    def on_log(self, args: Any, state: Any, control: Any, logs: Mapping[str, Any], **_: Any) -> None:
        """Write a line of metrics."""
        # The trainer's final log belongs to no step, and an evaluation after the training is no part of it.
        if self._recorder is not None and "train_runtime" not in logs:
            seconds = round(time.monotonic() - self._began, 3)
            self._folder.metrics({"step": state.global_step, "seconds": seconds, **logs})

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Draw the curve, and close the files."""
        self._folder.draw(self._folder.path.name)
        self._folder.close()
        self._recorder = None
