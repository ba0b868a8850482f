"""Findings of checks: of an environment, of a model, and of the episodes of a training."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, ParamSpec

_P = ParamSpec("_P")


class Verdict(StrEnum):
    """Meaning of a finding for a training."""

    OK = "ok"
    """Nothing to change."""
    WARNING = "warning"
    """A training works, but worse than it could."""
    PROBLEM = "problem"
    """A training would fail or teach nothing."""
    SKIPPED = "skipped"
    """The check was not possible."""


OK, WARNING, PROBLEM, SKIPPED = Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of one check."""

    name: str
    """Name of the check."""
    verdict: Verdict
    got: str
    """Observed behavior, or measured values as text."""
    fix: str = ""
    """Suggested change."""
    why: str = ""
    """Reason for the check, or its threshold."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of a training that make the change, by name."""
    warm_start: bool = False
    """True if a warm start makes the change."""
    examples: tuple[str, ...] = ()
    numbers: Mapping[str, Any] = field(default_factory=dict)
    """Measured values, for programs."""

    def __repr__(self) -> str:
        return f"<{self.verdict}: {self.name and f'{self.name}: '}{self.got}{self.fix and f' -> {self.fix}'}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the finding as plain JSON values."""
        return {**asdict(self), "verdict": str(self.verdict), "examples": list(self.examples)}


def ok(got: str, numbers: Mapping[str, Any] | None = None) -> Finding:
    """Return a finding without a name that has nothing to change; its ``Check`` names it."""
    return Finding("", OK, got, numbers=numbers or {})


def warning(got: str, fix: str, numbers: Mapping[str, Any] | None = None) -> Finding:
    """Return the warning of a check."""
    return Finding("", WARNING, got, fix, numbers=numbers or {})


def problem(got: str, fix: str, numbers: Mapping[str, Any] | None = None) -> Finding:
    """Return the problem that a check has found."""
    return Finding("", PROBLEM, got, fix, numbers=numbers or {})


def skipped(reason: str) -> Finding:
    """Return the finding of a check that was not possible."""
    return Finding("", SKIPPED, f"not checked: {reason}")


@dataclass(frozen=True, slots=True)
class Check(Generic[_P]):
    """Function that returns a finding, with the name and the reason of the check."""

    name: str
    why: str
    look: Callable[_P, Finding]

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Finding:
        """Return the finding with the name and the reason."""
        return self.named(self.look(*args, **kwargs))

    def named(self, finding: Finding) -> Finding:
        """Return a finding as one of this check."""
        return replace(finding, name=self.name, why=self.why)


class Checks(dict[str, Check[_P]]):
    """Checks by name, in the order of their declarations; a decorator declares one.

    >>> check = Checks()
    >>> @check("parity", "Halves must be whole.")
    ... def parity(number):
    ...     return problem(f"{number} is odd", "add 1") if number % 2 else ok(f"{number} is even")
    >>> found = check["parity"](3)
    >>> found.name, str(found.verdict), found.fix, found.why
    ('parity', 'problem', 'add 1', 'Halves must be whole.')
    """

    def __call__(self, name: str, why: str) -> Callable[[Callable[_P, Finding]], Check[_P]]:
        """Declare the decorated function as the check of this name."""

        def declare(look: Callable[_P, Finding]) -> Check[_P]:
            self[name] = Check(name, why, look)
            return self[name]

        return declare


@dataclass(frozen=True, slots=True)
class Report:
    """Findings of all checks of an environment."""

    name: str
    findings: tuple[Finding, ...]

    def count(self, verdict: str) -> int:
        """Return the number of checks with this verdict."""
        return sum(finding.verdict == verdict for finding in self.findings)

    @property
    def summary(self) -> str:
        """Numbers of checks by their verdicts."""
        return ", ".join(f"{count} {verdict}" for verdict in Verdict if (count := self.count(verdict)))

    def __repr__(self) -> str:
        return f"<Report on {self.name}: {self.summary}>"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        counts = {str(verdict): self.count(verdict) for verdict in Verdict}
        return {"version": 1, "id": self.name, **counts, "findings": [one.as_dict() for one in self.findings]}
