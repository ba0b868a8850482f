"""``gym-trl check``."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption, JsonOption, NamesArgument, TrustOption, read_trust
from gym_trl.cli.terminal import coloured, say, say_styled
from gym_trl.records.json_lines import to_json
from gym_trl.text.textify import counted

if TYPE_CHECKING:
    from gym_trl.training.checking.run import StageReport, StepReport

EXAMPLES = """
gym-trl check runs/first
gym-trl check runs/first --step 51
gym-trl check runs/first --json
gym-trl check runs/mine my_game.py:MyGame
"""
_SHOWN = 5


@clear_errors
def check(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run.", show_default=False)],
    names: NamesArgument = None,
    *,
    step: Annotated[
        int | None,
        Option(min=1, help="Step to check. Default: all steps that are recorded as a whole.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
    trust: TrustOption = False,
    debug: DebugOption = False,
) -> None:
    """Recompute training steps, and name the stage that differs.

    The stages of a step are: the seeds; the environment, which is played again with the recorded actions; token ids and
    masks, of the recorded texts; returns of the rewards; groups; rows of the loss; advantages; log-probabilities, with
    the weights of a checkpoint; the loss. No GPU is needed.

    The first step and every 50th one after it are recorded as a whole (gym-trl train --full-record-every). Of other
    steps some episodes are, and the stages up to groups are checked.

    Exit status: 1 if a stage differs from what was recorded, 2 for an error, otherwise 0.
    """
    from gym_trl.training.checking.run import check_run
    from gym_trl.training.process import quiet_libraries

    trusted = read_trust(trust, names, f"gym-trl check {shlex.quote(str(run))}", [(".*", "")])
    reports = []
    with quiet_libraries():
        for report in check_run(run, step=step, trust=trusted):
            reports.append(report)
            if not as_json:
                _show(report)
    differs = next((one for one in reports if one.first is not None), None)
    if as_json:
        say(to_json({"version": 1, "steps": [one.as_dict() for one in reports]}, indent=2))
    elif differs is None:
        say(f"{counted(len(reports), 'step')} checked: no difference.")
    elif differs.first is not None:
        say(f"The first stage that differs: {differs.first.name} of step {differs.step}.")
    if differs is not None:
        raise typer.Exit(1)


def _show(report: "StepReport") -> None:
    """Print a line for each stage, and the first differences."""
    count = counted(report.episodes, "episode")
    say(f"Step {report.step}: {f'all {count}' if report.full else f'{count} of it that are recorded'}")
    for stage in report.stages:
        verdict, colour = _verdict(stage)
        say_styled(f"  {stage.name:<18} {coloured(verdict, fg=colour)}")
        for one in stage.differences[:_SHOWN]:
            whose = "" if one.episode is None else f"{report.names[one.episode]}, "
            say(f"    {whose}{one.text}")
        if (more := len(stage.differences) - _SHOWN) > 0:
            say(f"    and {more} more")
        for note in stage.notes:
            say(f"    not compared: {note}")


def _verdict(stage: "StageReport") -> tuple[str, str]:
    if stage.differences:
        return counted(len(stage.differences), "difference"), "red"
    return (f"not checked: {stage.unchecked}", "yellow") if stage.unchecked else ("the same", "green")
