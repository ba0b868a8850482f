"""Reports of checks: findings, and the numbers that users ask for, as text, JSON and Markdown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from json import dumps
from typing import Any

from gym_trl.check.contract import Finding


@dataclass
class Report:
    """Findings about an environment, and the numbers that users ask for."""

    env: str
    findings: list[Finding] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    """Checks that had nothing to look at, and what to mend first."""
    numbers: dict[str, Any] = field(default_factory=dict)
    """Scores of who played, each with its interval, and sizes."""
    prompt: str = ""
    """First prompt of the model."""
    next: str = ""
    """Command to run next."""
    seconds: float = 0.0

    @property
    def errors(self) -> list[Finding]:
        """Findings with which what is trained is wrong."""
        return [one for one in self.findings if one.verdict == "error"]

    @property
    def failed(self) -> bool:
        """True if there is an error."""
        return bool(self.errors)

    def __str__(self) -> str:
        lines = [f"{self.env}: {'not fit' if self.failed else 'fit'} to train on ({self.seconds:.0f} s)"]
        for one in self.findings:
            lines += [f"  {one.verdict:8} {one.check}: {one.got}", f"           -> {one.fix}"]
        for reason in dict.fromkeys(self.missing.values()):
            names = ", ".join(name for name, why in self.missing.items() if why == reason)
            lines += [f"  not checked: {names}", f"           -> {reason}"]
        lines += [f"  {name:20} {_told(value)}" for name, value in self.numbers.items()]
        if self.prompt:
            lines += ["  the model reads:", *(f"    | {line}" for line in self.prompt.splitlines())]
        return "\n".join([*lines, f"  next: {self.next}"])

    def json(self) -> str:
        """Return it as JSON."""
        findings, numbers = [one._asdict() for one in self.findings], _plain(self.numbers)
        return dumps({**vars(self), "findings": findings, "numbers": numbers, "failed": self.failed}, indent=2)

    def markdown(self) -> str:
        """Return it as a page in Markdown."""
        found = [f"| {one.verdict} | {one.check} | {_cell(one.got)} | {_cell(one.fix)} |" for one in self.findings]
        found += [f"| not checked | {name} | | {_cell(reason)} |" for name, reason in self.missing.items()]
        table = ["| | check | found | what helps |", "|---|---|---|---|", *found, ""] if found else []
        numbers = [f"| {name} | {_told(value)} |" for name, value in self.numbers.items()]
        prompt = ["", "What the model reads:", "", *(f"    {line}" for line in self.prompt.splitlines())]
        verdict = "Not fit to train on." if self.failed else "Fit to train on."
        lines = [
            f"# {self.env}",
            "",
            verdict,
            "",
            *table,
            "| | |",
            "|---|---|",
            *numbers,
            *prompt,
            "",
            f"Next: `{self.next}`",
        ]
        return "\n".join(lines) + "\n"


@dataclass
class Table:
    """Reports on several environments."""

    reports: list[Report]

    @property
    def failed(self) -> bool:
        """True if there is an error in one of them."""
        return any(one.failed for one in self.reports)

    def __str__(self) -> str:
        return "\n".join(
            " ".join(f"{cell:{width}}" for cell, width in zip(row, self._widths(), strict=True)) for row in self._rows()
        )

    def json(self) -> str:
        """Return the reports as JSON."""
        return f"[{', '.join(one.json() for one in self.reports)}]"

    def markdown(self) -> str:
        """Return the table, and the page of each."""
        head, *rows = (f"| {' | '.join(map(_cell, row))} |" for row in self._rows())
        table = [head, "|---" * len(self._rows()[0]) + "|", *rows, ""]
        return "\n".join([*table, *(one.markdown() for one in self.reports)])

    def _rows(self) -> list[list[str]]:
        players = [
            name for name in ("random", "blind", "solver", "model") if any(name in one.numbers for one in self.reports)
        ]
        rows = [["environment", "errors", "warnings", *players, "found"]]
        for one in self.reports:
            scores = [_first(one.numbers.get(name)) for name in players]
            found = ", ".join(dict.fromkeys(finding.check for finding in one.findings))
            rows.append([one.env, str(len(one.errors)), str(len(one.findings) - len(one.errors)), *scores, found])
        return rows

    def _widths(self) -> list[int]:
        return [max(map(len, column)) + 1 for column in zip(*self._rows(), strict=True)]


def _first(scores: Mapping[str, Any] | None) -> str:
    """Return the mean success, or the mean return where success is not declared."""
    return "-" if scores is None else f"{next(iter(scores.values()))[0]:.3f}"


def _told(value: Any) -> str:
    """Return a number, or a score with its interval, as text."""
    if not isinstance(value, Mapping):
        return str(value)
    parts = [f"{name} {score}" for name, score in value.items() if name != "by"]
    return ", ".join(parts) + (f" by {value['by']}" if "by" in value else "")


def _plain(value: Any) -> Any:
    """Return JSON's value of a number; an unknown end of an interval is null."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, tuple):
        return [None if one != one else one for one in value]  # noqa: PLR0124 -- NaN
    return value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
