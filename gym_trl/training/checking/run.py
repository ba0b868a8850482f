"""Check of a run: its recorded steps, stage by stage, up to the first stage that differs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gym_trl.errors import ConfigError
from gym_trl.options import TrainOptions
from gym_trl.records.files import read_records
from gym_trl.records.json_lines import read_json_lines
from gym_trl.records.schema import Record
from gym_trl.training.checking.episodes import (
    check_environment,
    check_groups,
    check_returns,
    check_seeds,
    check_tokens,
)
from gym_trl.training.checking.rows import check_advantages, check_rows
from gym_trl.training.checking.step import CheckedStep, Difference, Stage, UncheckedError
from gym_trl.training.checking.weights import check_logprobs, check_loss
from gym_trl.training.options import read_options
from gym_trl.training.step_file import read_step, step_files
from gym_trl.trust import REGISTERED, Trust
from gym_trl.types import StopReason

STAGES: Mapping[str, Stage] = {
    "seeds": check_seeds,
    "environment": check_environment,
    "tokens": check_tokens,
    "returns": check_returns,
    "groups": check_groups,
    "rows": check_rows,
    "advantages": check_advantages,
    "log-probabilities": check_logprobs,
    "loss": check_loss,
}
"""Stages by name, in the order of a training step."""


@dataclass(frozen=True)
class StageReport:
    """Result of one stage."""

    name: str
    differences: tuple[Difference, ...] = ()
    unchecked: str = ""
    """Reason why it was not recomputed; empty if it was."""
    notes: tuple[str, ...] = ()
    """Parts of it that were not."""


@dataclass(frozen=True)
class StepReport:
    """Result of one step: its stages up to the first one that differs."""

    step: int
    full: bool
    """The step was recorded as a whole; otherwise some of its episodes were."""
    episodes: int
    stages: tuple[StageReport, ...]
    names: tuple[str, ...] = field(repr=False, default=())
    """Names of the episodes, by their indices."""

    @property
    def first(self) -> StageReport | None:
        """Stage that differs; ``None`` if none does."""
        return next((stage for stage in self.stages if stage.differences), None)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        stages = [
            {
                "name": one.name,
                "differences": [{"episode": each.episode, "text": each.text} for each in one.differences],
                "unchecked": one.unchecked or None,
                "notes": list(one.notes),
            }
            for one in self.stages
        ]
        first = None if self.first is None else self.first.name
        return {"step": self.step, "full": self.full, "episodes": self.episodes, "differs": first, "stages": stages}


def check_run(folder: Path, *, step: int | None = None, trust: Trust = REGISTERED) -> Iterator[StepReport]:
    """Recompute recorded steps of a run, and yield a report for each.

    ::

        for report in check_run(Path("runs/first")):
            print(report.step, "agrees" if report.first is None else report.first)

    Args:
        folder: The run's folder, which may be anybody's.
        step: Number of the step, from 1. Default: all steps that were recorded as a whole; if none was, the first and
            the last one of which episodes are recorded.
        trust: Names in the run, other than registered ones, that may be used.

    Raises:
        UntrustedError: The run names code that is neither registered nor trusted.
        ConfigError: The folder has no recorded step, or a file in it cannot be read.
    """
    options = read_options(folder, trust=trust) if (folder / "config.json").is_file() else None
    files = {path: number for path, number in step_files(folder).items() if step in (None, number)}
    for path, number in files.items():
        yield _report(_whole_step(folder, path, number, options, trust))
    if not files:
        by_step: dict[int, list[Record]] = {number: [] for number in _recorded_steps(folder, step)}
        for one in read_records(folder):
            if one["split"] == "train" and one["step"] in by_step:
                by_step[one["step"]].append(one)
        for number, records in by_step.items():
            yield _report(CheckedStep(folder=folder, trust=trust, step=number, records=records, options=options))


def _recorded_steps(folder: Path, step: int | None) -> list[int]:
    """Return the steps to check of which only some episodes are recorded."""
    steps = {one["step"] for one in read_records(folder) if one["split"] == "train" and one["step"] is not None}
    if not steps or (step is not None and step not in steps):
        what = "no step of a training" if step is None else f"no step {step}"
        raise ConfigError(f"{folder} has {what}")
    return [step] if step is not None else sorted({min(steps), max(steps)})


def _whole_step(folder: Path, path: Path, number: int, options: TrainOptions | None, trust: Trust) -> CheckedStep:
    data = read_step(path)
    metrics = folder / "metrics.jsonl"
    lines = (one for one in read_json_lines(metrics) if one.get("step") == number) if metrics.exists() else iter(())
    return CheckedStep(
        folder=folder,
        trust=trust,
        step=number,
        records=data.records,
        options=options,
        data=data,
        metrics=next((one for one in lines if "loss" in one), None),
    )


def _report(step: CheckedStep) -> StepReport:
    for record in step.records:
        if record["stop_reason"] not in StopReason.__members__.values():
            raise ConfigError(f"stop_reason must be one of {', '.join(StopReason)}, got {record['stop_reason']!r:.80}")
    stages: list[StageReport] = []
    for name, stage in STAGES.items():
        stages.append(_run(name, stage, step))
        if stages[-1].differences:
            break
    return StepReport(step.step, step.about is not None, len(step.records), tuple(stages), _names(step.records))


def _run(name: str, stage: Stage, step: CheckedStep) -> StageReport:
    differences, notes, unchecked = list[Difference](), list[str](), ""
    try:
        for finding in stage(step):
            if isinstance(finding, Difference):
                differences.append(finding)
            else:
                notes.append(finding)
    except UncheckedError as error:
        unchecked = str(error)
    return StageReport(name, tuple(differences), unchecked, tuple(notes))


def _names(records: Any) -> tuple[str, ...]:
    def name(index: int, record: Record) -> str:
        return f"episode {index} (group {record['group']}, {record['task']['id']})"

    return tuple(name(index, record) for index, record in enumerate(records))
