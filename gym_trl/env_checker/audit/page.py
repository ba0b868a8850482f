"""Audit as a page, Markdown and HTML, and as a picture."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from gym_trl.env_checker.audit.audits import Budget
from gym_trl.env_checker.audit.verdicts import BLIND, COLUMNS, NOT_MEASURED, PARTLY_BLIND, READS, AuditRow, AuditVerdict
from gym_trl.env_checker.card.page import MARKS, html_page, table
from gym_trl.evaluation.blind import NEAR
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
        f"with seed {budget.seed}. Scores have 95% intervals, unless all are equal."
    )


def scores_table(rows: Sequence[AuditRow]) -> str:
    """Return the table with a line for each environment."""
    scores = ("without observations", "at random", "at best")
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
    """Draw how far each environment's best score without observations is on the way from random play to the best one.

    There is a line of points for each package. Environments without a known best score have no point.
    """
    ways = [(row.package or "other", way_without_observations(row), row.verdict) for row in rows]
    shown = [(package, way, verdict) for package, way, verdict in ways if way is not None]
    counts = Counter(package for package, *_ in shown)
    packages = sorted(counts, key=str.casefold, reverse=True)
    size = (7.6, 1.6 + 0.42 * max(1, len(packages)))
    with drawn(path, size, title="What is reached without reading observations") as figure:
        axes = figure.subplots()
        axes.axvspan(NEAR, 1.05, color=_COLOURS[BLIND], alpha=0.08, zorder=0)
        heights = _heights([(package, way) for package, way, _ in shown])
        for verdict, colour in _COLOURS.items():
            points = [
                (way, packages.index(package) + height)
                for (package, way, own), height in zip(shown, heights, strict=True)
                if own == verdict
            ]
            if points:
                across, up = zip(*points, strict=True)
                axes.scatter(across, up, color=colour, s=13, label=f"{verdict} ({len(points)})", zorder=2)
        for line in range(len(packages)):
            axes.axhline(line, color="#dddddd", linewidth=0.6, zorder=1)
        axes.set_yticks(range(len(packages)), [f"{name} ({counts[name]})" for name in packages])
        axes.set(xlim=(-0.16, 1.05), ylim=(-0.6, len(packages) - 0.4 if packages else 1))
        axes.set_xlabel("0: random play, 1: best known score; shaded: blind")
        if shown:
            figure.legend(loc="outside lower center", ncols=len(_COLOURS), frameon=False)


def way_without_observations(row: AuditRow) -> float | None:
    """Return the share of the way from random play to the best known score; ``None`` if no best score is known.

    >>> from gym_trl.evaluation.estimates import Estimate
    >>> way_without_observations(AuditRow("Coin-v0", random=Estimate(0.5), blind=Estimate(0.75), best=1.0))
    0.5
    """
    chance, blind = row.random.mean, row.blind.mean
    if row.best is None or chance is None or blind is None or row.best <= chance:
        return None
    return max(-0.1, min(1.0, (blind - chance) / (row.best - chance)))


def _heights(points: Sequence[tuple[str, float]]) -> list[float]:
    """Return the height of each point above the line of its package, so that those in one place stand side by side."""
    places = [(package, round(across * 40)) for package, across in points]
    most, taken, heights = Counter(places), Counter[tuple[str, int]](), []
    for place in places:
        taken[place] += 1
        number = taken[place]
        heights.append((number // 2) * (1 if number % 2 else -1) * min(0.11, 0.8 / most[place]))
    return heights
