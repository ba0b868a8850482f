"""``gym-trl compare``."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gym_trl.cli.errors import clear_errors
from gym_trl.cli.options import DebugOption, JsonOption
from gym_trl.cli.terminal import say, show_columns
from gym_trl.records.json_lines import to_json

EXAMPLES = """
gym-trl compare evals/before evals/after --fail-if-worse
gym-trl compare evals/all
"""


@clear_errors
def compare(
    first: Annotated[Path, Argument(metavar="A", help="Folder or file of records.")],
    second: Annotated[
        Path | None, Argument(metavar="B", help="Folder or file to compare with A. Default: compare the policies in A.")
    ] = None,
    *,
    fail_if_worse: Annotated[
        bool, Option("--fail-if-worse", help="Exit with status 1 if B is significantly worse.")
    ] = False,
    as_json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare two evaluations on the tasks that both contain.

    The differences are means of B - A, with 95% intervals.
    """
    from gym_trl.evaluation.scores import compare as compare_records
    from gym_trl.records.files import read_records

    found = compare_records(read_records(first), None if second is None else read_records(second))
    if as_json:
        say(to_json({"version": 1, "rows": [one.as_dict() for one in found]}, indent=2))
    else:
        show_columns(
            {
                "environment": [one.env_id for one in found],
                "A": [one.policies[0] for one in found],
                "B": [one.policies[1] for one in found],
                "success B-A": [str(one.success) for one in found],
                "tasks": [str(one.tasks) for one in found],
                "return B-A": [str(one.mean_return) for one in found],
                "better": [str(one.better) for one in found],
                "worse": [str(one.worse) for one in found],
            }
        )
    highs = [(one.mean_return if one.success.mean is None else one.success).high for one in found]
    if fail_if_worse and any(high is not None and high < 0 for high in highs):
        raise typer.Exit(1)
