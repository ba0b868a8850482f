"""``gym-trl compare``."""

from pathlib import Path

from gym_trl.cli.environments import named_environments
from gym_trl.cli.terminal import say, show_columns
from gym_trl.records.json_lines import to_json

EXAMPLES = """
gym-trl compare evals/before evals/after --fail-if-worse
gym-trl compare evals/all
"""
_HEADS = ("environment", "A", "B", "success B-A", "tasks", "return B-A", "better", "worse")


def compare(
    a: Path,
    b: Path | None = None,
    *,
    fail_if_worse: bool = False,
    json_: bool = False,
) -> None:
    """Compare two evaluations on the tasks that both contain.

    The differences are means of B - A, with 95% intervals.

    Args:
        a: Folder or file of records.
        b: Folder or file to compare with A. Default: compare the policies in A.
        fail_if_worse: Exit with status 1 if B is significantly worse.
        json_: Print JSON instead of text.
    """
    from gym_trl.evaluation.scores import compare as compare_records
    from gym_trl.records.files import read_records

    comparison = compare_records(read_records(a), None if b is None else read_records(b))
    if json_:
        say(to_json({"version": 1, "rows": [one.as_dict() for one in comparison]}, indent=2))
    else:
        cells = [
            (env, *one.policies, one.success, one.tasks, one.mean_return, one.better, one.worse)
            for env, one in zip(named_environments(comparison), comparison, strict=True)
        ]
        show_columns({head: [str(row[place]) for row in cells] for place, head in enumerate(_HEADS)})
    if fail_if_worse and any(one.is_worse for one in comparison):
        raise SystemExit(1)
