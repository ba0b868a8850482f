"""Findings and report of the checks of an environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

OK, WARNING, PROBLEM, SKIPPED = "ok", "warning", "problem", "skipped"
"""Verdicts: requirement met; training works, but worse; training does not work; could not be checked."""


class Finding(NamedTuple):
    """Result of one check."""

    promise: str
    verdict: str
    """``"ok"``, ``"warning"``, ``"problem"``, or ``"skipped"`` if it could not be checked."""
    got: str
    """Observed behavior."""
    why: str
    """Reason why training requires it."""
    fix: str = ""
    """Suggested change."""
    numbers: Mapping[str, Any] | None = None
    """Measured values, for programs."""


@dataclass(frozen=True, slots=True)
class Report:
    """Results of all checks of an environment."""

    name: str
    findings: tuple[Finding, ...]

    def count(self, verdict: str) -> int:
        """Return the number of checks with this verdict."""
        return sum(one.verdict == verdict for one in self.findings)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        counts = {verdict: self.count(verdict) for verdict in (OK, WARNING, PROBLEM, SKIPPED)}
        return {"version": 1, "id": self.name, **counts, "findings": [one._asdict() for one in self.findings]}
