"""Reports of checks: findings, and the numbers that users ask for, as text, JSON and Markdown."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from textwrap import indent
from typing import Any

from gym_trl.check.contract import Finding
from gym_trl.records import to_json


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
        for name, value in self.numbers.items():
            scores = value if isinstance(value, Mapping) else {}
            parts = [f"{key} {score}" for key, score in scores.items() if key != "by"]
            by = f" by {scores['by']}" if "by" in scores else ""
            lines.append(f"  {name:20} {', '.join(parts) if parts else value}{by}")
        if self.prompt:
            lines += ["  the model reads:", *(f"    | {line}" for line in self.prompt.splitlines())]
        return "\n".join([*lines, f"  next: {self.next}"])

    def json(self) -> str:
        """Return it as JSON."""
        findings = [one._asdict() for one in self.findings]
        return to_json({**vars(self), "findings": findings, "failed": self.failed}, indent=2)

    def markdown(self) -> str:
        """Return it as a page in Markdown, on which it stands as it is."""
        return f"# {self.env}\n\n{indent(str(self), '    ')}\n"


@dataclass
class Table:
    """Reports on several environments."""

    reports: list[Report]

    @property
    def failed(self) -> bool:
        """True if there is an error in one of them."""
        return any(one.failed for one in self.reports)

    def __str__(self) -> str:
        """Return a row for each environment, as Markdown has tables."""
        known = {name for one in self.reports for name in one.numbers}
        players = [name for name in ("random", "blind", "solver", "model") if name in known]
        rows = [["environment", "errors", "warnings", *players, "found"]]
        for one in self.reports:
            found = ", ".join(dict.fromkeys(finding.check for finding in one.findings))
            played = [list(one.numbers.get(name, {}).values()) for name in players]
            means = [f"{scores[0].mean:.3f}" if scores else "-" for scores in played]  # success, if it is declared
            rows.append([one.env, str(len(one.errors)), str(len(one.findings) - len(one.errors)), *means, found])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, ["-" * width for width in widths])
        cells = ([f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows)
        return "\n".join(f"| {' | '.join(row)} |" for row in cells)

    def json(self) -> str:
        """Return the reports as JSON."""
        return f"[{', '.join(one.json() for one in self.reports)}]"

    def markdown(self) -> str:
        """Return the table, and the page of each."""
        return "\n\n".join([str(self), *(one.markdown() for one in self.reports)])
