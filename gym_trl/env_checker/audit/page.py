"""Audit as a page, Markdown and HTML, and as a picture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gym_trl.env_checker.audit.audits import Budget
from gym_trl.env_checker.audit.verdicts import BLIND, COLUMNS, NOT_MEASURED, PARTLY_BLIND, READS, AuditRow, AuditVerdict
from gym_trl.env_checker.card.page import MARKS, html_page, table
from gym_trl.evaluation.pictures import drawn
from gym_trl.text.short_count import short_count
from gym_trl.text.textify import counted

TITLE = "Audit"
_COLOURS = {
    READS: "#009E73",
    PARTLY_BLIND: "#E69F00",
    BLIND: "#D55E00",
    NOT_MEASURED: "#999999",
}
"""Colours of Okabe and Ito, which colour-blind people tell apart."""


def markdown(rows: Sequence[AuditRow], budget: Budget) -> str:
    """Return the table of an audit, and what its verdicts rest on."""
    return "\n\n".join([f"# {TITLE}", *_parts(rows, budget)]).rstrip() + "\n"


def html(rows: Sequence[AuditRow], budget: Budget) -> str:
    """Return the page of an audit, which needs nothing else."""
    return html_page(TITLE, markdown(rows, budget))


def summary(rows: Sequence[AuditRow], budget: Budget) -> str:
    """Return the numbers of rows by verdict, and what was done for each."""
    counts = Counter(row.verdict for row in rows)
    listed = ", ".join(f"{counts[verdict]} {verdict}" for verdict in AuditVerdict if counts[verdict])
    return (
        f"{counted(len(rows), 'environment')}: {listed}. At most {counted(budget.episodes, 'episode')} of each policy "
        f"and {short_count(budget.search_steps)} steps of search were played in about {budget.seconds:g} s for each, "
        f"with seed {budget.seed}. Scores have 95% intervals."
    )


def scores_table(rows: Sequence[AuditRow]) -> str:
    """Return the table with a line for each environment."""
    scores = ("without observations", "at random", "best known")
    header = ("environment", "verdict", *scores, *COLUMNS, "tokens", "steps/s", "package", "licence")
    return table(header, [_cells(row) for row in rows])


def _parts(rows: Sequence[AuditRow], budget: Budget) -> Iterator[str]:
    yield summary(rows, budget)
    yield scores_table(rows)
    explained = [row for row in rows if row.verdict != READS]
    if explained:
        yield "## Reasons"
        yield table(("environment", "verdict", "reason"), [(row.name, row.verdict, row.reason) for row in explained])
    defects = [
        (row.name, MARKS[one["verdict"]], one["name"], one["got"], one["fix"]) for row in rows for one in row.defects
    ]
    if defects:
        yield "## Findings"
        yield table(("environment", "", "check", "finding", "change"), defects)


def _cells(row: AuditRow) -> tuple[str, ...]:
    unit = "" if row.objective in ("", "success") else " (return)"
    return (
        row.name,
        row.verdict,
        f"{row.blind}{unit}",
        f"{row.random}{unit}",
        "-" if row.best is None else f"{row.best:g}",
        *(MARKS.get(row.columns.get(name, ""), "") for name in COLUMNS),
        "" if row.tokens is None else f"{row.tokens:,}",
        "" if row.steps_per_s is None else f"{row.steps_per_s:,.0f}",
        row.package,
        row.licence,
    )


def picture(rows: Sequence[AuditRow], path: Path) -> None:
    """Draw the blind score of each environment against that of random play, with the best known score as 1.

    Environments whose score is a return without a known best one have no point.
    """
    with drawn(path, (6.4, 5.2), title="Scores without observations, with the best known score as 1") as figure:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color="#bbbbbb", linewidth=1, zorder=0)
        for verdict, colour in _COLOURS.items():
            points = [
                (row.random.mean / row.best, row.blind.mean / row.best)
                for row in rows
                if row.verdict == verdict
                and row.best
                and row.best > 0
                and row.random.mean is not None
                and row.blind.mean is not None
            ]
            if points:
                across, up = zip(*points, strict=True)
                axes.scatter(across, up, color=colour, s=22, label=f"{verdict} ({len(points)})", alpha=0.8)
        axes.set(
            xlabel="random play", ylabel="best policy without observations", xlim=(-0.03, 1.03), ylim=(-0.03, 1.03)
        )
        axes.legend(loc="lower right", frameon=False)
