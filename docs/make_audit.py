"""Generator of docs/audit.md: the table of an audit, and its picture.

gym-trl audit gym_trl gymnasium reasoning-gym --seconds 6 --episodes 60 --search-steps 5000 --out audit
python docs/make_audit.py audit again    # "again" has some of them measured a second time
"""

import json
import os
import platform
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from gym_trl.env_checker.audit.audits import Budget, rows_in
from gym_trl.env_checker.audit.page import picture, scores_table, summary
from gym_trl.env_checker.audit.verdicts import BROKEN, AuditRow
from gym_trl.env_checker.card.page import table

DOCS = Path(__file__).parent


def page(rows: list[AuditRow], again: list[AuditRow], budget: Budget) -> str:
    """Return the whole page."""
    first = {row.name: row for row in rows}
    same = [row for row in again if first[row.name].verdict == row.verdict]
    changed = [row for row in again if first[row.name].verdict != row.verdict]
    confirmed = [row for row in same if row.verdict == BROKEN]
    packages = Counter(row.package or "not installed or not made" for row in rows)
    listed = ", ".join(f"{name} ({count})" for name, count in packages.most_common())
    differing = "; ".join(f"`{row.name}` {first[row.name].verdict}, then {row.verdict}" for row in changed)
    parts = [
        "# Public environments, audited",
        "*For people who choose an environment.*",
        f"{summary(rows, budget)} Measured with [`gym-trl audit`](guides/audit.md), which explains the verdicts and "
        f"columns, on {datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores of {platform.machine()}, while other "
        f"programs ran: speeds are too low, and what was too slow for its time has no verdict. Packages: {listed}.",
        "Most of the searches for actions without observations were cut off by time, and where they found nothing "
        "there is no verdict. The defaults of the command give them five times as long.",
        f"{len(again)} rows were measured a second time in new processes: {len(same)} had the same verdict"
        + (f" ({differing})" if changed else "")
        + ". The search has other sequences where it has other time, so a blind score can differ within its interval.",
        "![Scores without observations against random play](results/audit.png)",
        "## Broken, twice",
        "These were broken in both measurements. The reason has the seed and the action.",
        table(("environment", "reason"), [(row.name, row.reason) for row in confirmed]) if confirmed else "None.",
        "## All",
        scores_table(rows),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Write the page and the picture."""
    folder, again = map(Path, sys.argv[1:3])
    budget = Budget(**json.loads((folder / "config.json").read_text(encoding="utf-8"))["audit"])
    rows = rows_in(folder)
    picture(rows, DOCS / "results" / "audit.png")
    (DOCS / "audit.md").write_text(page(rows, rows_in(again), budget), encoding="utf-8")


if __name__ == "__main__":
    main()
