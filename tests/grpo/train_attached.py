# mypy: allow-untyped-defs, allow-untyped-calls, allow-any-generics
"""Train with each feature, attached before the first batch and in the middle of it: run as one of some processes.

Arguments: a folder to write to.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import for_traces
import tiny_trainer
import torch
import trl
from transformers import PrinterCallback

from gym_trl.grpo.processes import leave_process_group

RANK = int(os.environ.get("RANK", "0"))
CLOCKS = ("time", "second", "runtime")


def train(folder, feature, *, before):
    """Train and return the weights and what was logged."""
    torch.manual_seed(0)
    spec = for_traces.guess(**for_traces.FEATURES[feature])
    grpo = {**for_traces.BATCHES, "max_steps": 2, "max_completion_length": 48, "learning_rate": 1e-2}
    trainer = tiny_trainer.make(folder, spec, grpo=grpo)
    trainer.remove_callback(PrinterCallback)
    if before:
        spec.attach(trainer)
    trainer.train()
    weights = torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
    logs = [
        {name: value for name, value in log.items() if not any(clock in name for clock in CLOCKS)}
        for log in trainer.state.log_history
        if "loss" in log
    ]
    return weights, logs


def main(folder):
    report = {"trl": trl.__version__}
    for feature in for_traces.FEATURES:
        (early, early_logs), (late, late_logs) = (train(folder / "out", feature, before=yes) for yes in (True, False))
        report[feature] = {"weights": bool(torch.equal(early, late)), "logs": [early_logs, late_logs]}
    (folder / f"rank{RANK}.json").write_text(json.dumps(report))
    leave_process_group()


if __name__ == "__main__":
    warnings.simplefilter("default")
    main(Path(sys.argv[1]))
