"""Verdict on an environment, from the numbers of its card."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from gym_trl.evaluation.blind import NEAR
from gym_trl.evaluation.estimates import Estimate, settled
from gym_trl.report import OK, PROBLEM, SKIPPED, WARNING
from gym_trl.text.textify import counted


class AuditVerdict(StrEnum):
    """Answer to the question if an environment pays only those who read its observations."""

    READS = "reads"
    """No action without observations scores more than random play."""
    PARTLY_BLIND = "partly blind"
    """Actions without observations score more than random play; less than 80% of the way, or no best score is known."""
    BLIND = "blind"
    """Actions without observations come near the best known score: at least 80% of the way from random play."""
    BROKEN = "broken"
    """It cannot be reset and stepped, or the same seed and actions give another episode."""
    NOT_MEASURED = "not measured"
    """Its scores allow no verdict; the reason says why."""


READS, PARTLY_BLIND, BLIND, BROKEN, NOT_MEASURED = AuditVerdict
BROKEN_BY: Final = ("construction", "reset", "step", "determinism", "fresh start")
"""Checks of ``gym-trl validate`` whose problems make an environment broken."""
COLUMNS: Final = {
    "seeds": ("determinism", "variety"),
    "generators": ("own generator",),
    "end": ("end",),
    "invalid actions": ("invalid actions",),
    "doing nothing": ("stalling", "ending early"),
    "constant": ("constant action",),
    "answer shown": ("answer in the observation", "seed in the observation", "judgement in the action"),
}
"""Columns of the table with the checks of a card that they sum up: the worst of their verdicts."""
BLIND_POLICIES: Final = ("blind", "constant", "nothing", "invalid")
"""Policies of a card that do not read observations."""
_NOT_ITS_FAULT = re.compile(
    r"raised (MissingDependencyError|DependencyNotInstalled|ModuleNotFoundError|ImportError|ConfigError|URLError)\b"
    r"|.* missing \d+ required |.*raised LookupError: \*+ Resource "  # NLTK's, for data that it has to download
    r"|.* gave the reward (ndarray|list|tuple|dict)\b"
    r"|reset: no answer within "
)
"""Reasons for which an environment is not measured here.

Packages, data, arguments or a network are missing, it is slow or hangs before its first step is known, or there is a
reward for each of several agents or objectives.
"""
_FEW_ACTIONS, _FEW_SEQUENCES = 5, 20
"""Numbers of sequences below which a search that finds nothing shows nothing: of one action, and of more."""
_WORST = (PROBLEM, WARNING, SKIPPED, OK)


@dataclass(frozen=True)
class AuditRow:
    """Row of an audit: an environment, its verdict and what that rests on."""

    env_id: str
    env_kwargs: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Options of the text with which it was measured, as they are typed."""
    verdict: AuditVerdict = NOT_MEASURED
    reason: str = ""
    """Sentence that explains the verdict."""
    package: str = ""
    """Package and version."""
    licence: str = ""
    objective: str = ""
    """``"success"`` or ``"return"``: the score that is compared."""
    random: Estimate = field(default_factory=Estimate)
    blind: Estimate = field(default_factory=Estimate)
    """Best score of the policies that do not read observations."""
    best: float | None = None
    """Best known score."""
    columns: Mapping[str, str] = field(default_factory=dict)
    """Verdict of each of ``COLUMNS``."""
    tokens: int | None = None
    """Tokens of the longest episode that was played."""
    steps_per_s: float | None = None
    defects: tuple[Mapping[str, Any], ...] = ()
    """Findings of the card that are problems or warnings."""

    @property
    def name(self) -> str:
        """Id, with the arguments and options as they are typed.

        >>> AuditRow("External/TextArena-v0", {"game": "Wordle-v0"}, ("--turn-limit", "8")).name
        'External/TextArena-v0 game=Wordle-v0 --turn-limit 8'
        """
        return " ".join([self.env_id, *(f"{name}={value}" for name, value in self.env_kwargs.items()), *self.flags])

    def as_dict(self) -> dict[str, Any]:
        """Return the row as plain JSON values."""
        return {**asdict(self), "verdict": str(self.verdict)}


class _Scores(NamedTuple):
    objective: str
    random: Estimate
    blind: Estimate
    best: float | None
    shown_random: Estimate
    """As it was measured: without an interval where all returns are equal."""
    shown_blind: Estimate


def judge(card: Mapping[str, Any]) -> AuditRow:
    """Return the row of an environment from its card, as ``Card.as_dict`` returns it.

    >>> def level(policy, mean, low, high):
    ...     return {"policy": policy, "success": {"mean": mean, "low": low, "high": high}}
    >>> card = {"id": "Coin-v0", "levels": [level("random", 0.5, 0.43, 0.57), level("blind", 0.97, 0.94, 0.99)]}
    >>> row = judge(card)
    >>> str(row.verdict), row.reason
    ('blind', 'success 0.970 [0.940, 0.990] without observations, 0.500 [0.430, 0.570] at random, at best 1')

    The bounds of the 95% intervals are compared, not the means: with the distance from random play to the best known
    score as 1, *blind* has a lower bound of at least ``NEAR`` (0.8), *partly blind* one above the interval of random
    play, and *reads* an upper bound at most 1 - ``NEAR`` above the lower bound of random play, whose interval has at
    most half of that distance. What lies between has too few episodes. Nothing *reads* whose search for blind actions
    was cut off by time or tried less than 20 sequences (5 actions, where one ends the episode), or in which every seed
    seems to give the same task: a longer search would find a sequence.
    The best known score is the declared optimum, that of the solver or of a better blind policy, or a success rate of
    1. Where none is known, only *partly blind* can be said.
    """
    findings = [one for one in card.get("findings", ()) if isinstance(one, Mapping)]
    source, tokens, speed = (card.get(name) or {} for name in ("source", "tokens", "speed"))
    scores = _scores(card)
    verdict, reason = _verdict(findings, scores)
    return AuditRow(
        card["id"],
        card.get("env_kwargs") or {},
        verdict=verdict,
        reason=reason,
        package=f"{source.get('package') or ''} {source.get('version') or ''}".strip(),
        licence=source.get("licence") or "",
        objective=scores.objective if scores else "",
        random=scores.shown_random if scores else Estimate(),
        blind=scores.shown_blind if scores else Estimate(),
        best=scores.best if scores else None,
        columns={column: _worst(findings, checks) for column, checks in COLUMNS.items()},
        tokens=tokens.get("longest"),
        steps_per_s=speed.get("steps"),
        defects=tuple(one for one in findings if one["verdict"] in (PROBLEM, WARNING)),
    )


def _worst(findings: list[Mapping[str, Any]], checks: tuple[str, ...]) -> str:
    verdicts = {one["verdict"] for one in findings if one["name"] in checks}
    return next((str(one) for one in _WORST if one in verdicts), "")


def _scores(card: Mapping[str, Any]) -> _Scores | None:
    """Return the scores that are compared; ``None`` if random play has none."""
    levels = {one["policy"]: one for one in (*card.get("levels", ()), *card.get("others", ()))}
    if "random" not in levels:
        return None
    objective = "success" if levels["random"]["success"]["mean"] is not None else "return"
    key = "success" if objective == "success" else "mean_return"
    measured = {name: Estimate(**one[key]) for name, one in levels.items()}
    estimates = {name: settled(one, levels[name].get("episodes", 0)) for name, one in measured.items()}
    blind, shown_blind = max(
        (
            (estimates[name], measured[name])
            for name in BLIND_POLICIES
            if name in measured and measured[name].mean is not None
        ),
        key=lambda pair: (pair[0].low if pair[0].low is not None else pair[0].mean, pair[0].mean),
        default=(Estimate(), Estimate()),
    )
    best = card.get("optimal_success" if objective == "success" else "optimal_return")
    solved = estimates.get("solver", Estimate()).mean
    if best is None and solved is not None:  # a solver need not be the best that there is
        best = max(solved, solved if blind.mean is None else blind.mean)
    elif best is None and objective == "success":
        best = 1.0
    return _Scores(objective, estimates["random"], blind, best, measured["random"], shown_blind)


def _verdict(findings: list[Mapping[str, Any]], scores: _Scores | None) -> tuple[AuditVerdict, str]:
    problems = {one["name"]: one["got"] for one in findings if one["verdict"] == PROBLEM}
    for name in BROKEN_BY:
        if name in problems:
            here = any(map(_NOT_ITS_FAULT.match, (problems[name], f"{name}: {problems[name]}")))
            return NOT_MEASURED if here else BROKEN, f"{name}: {problems[name]}"
    if scores is None or scores.random.mean is None:
        why = next((f"{name}: {got}" for name, got in problems.items()), "random play has no score")
        return NOT_MEASURED, why
    reason = f"{scores.objective} {scores.shown_blind} without observations, {scores.shown_random} at random"
    if scores.best is None:
        more = scores.blind.low is not None and scores.random.high is not None and scores.blind.low > scores.random.high
        return PARTLY_BLIND if more else NOT_MEASURED, f"no best score is known; {reason}"
    reason += f", at best {scores.best:g}"
    verdict, reason = _compared(scores.random, scores.blind, scores.best, reason)
    if verdict is READS and (doubt := _doubt(findings)):
        return NOT_MEASURED, f"{doubt}; {reason}"
    return verdict, reason


def _doubt(findings: list[Mapping[str, Any]]) -> str:
    """Return why a search that found nothing shows nothing, if so."""
    for search in (one["numbers"] for one in findings if one["name"] == "blind baseline" and one.get("numbers")):
        if search.get("cut"):
            return f"the search was cut off by time after {counted(search['steps'], 'step')}"
        needed = _FEW_ACTIONS if search.get("turns", 1.0) <= 1 else _FEW_SEQUENCES
        if search.get("sequences", needed) < needed:
            return f"the search tried only {counted(search['sequences'], 'sequence')} of actions"
    if any(one["name"] == "variety" and one["verdict"] in (WARNING, PROBLEM) for one in findings):
        return "every seed seems to give the same task, so that some sequence of actions is the best policy"
    return ""


def _compared(random: Estimate, blind: Estimate, best: float, reason: str) -> tuple[AuditVerdict, str]:
    if random.mean is None or best <= random.mean:
        return NOT_MEASURED, f"random play reaches the best known score; {reason}"
    if blind.low is None or blind.high is None or random.low is None or random.high is None:
        return NOT_MEASURED, f"too few episodes; {reason}"
    way = best - random.mean
    if blind.low >= random.mean + NEAR * way:
        return BLIND, reason
    if blind.low > random.high:
        return PARTLY_BLIND, reason
    if random.high - random.low <= way / 2 and blind.high <= random.low + (1 - NEAR) * way:
        return READS, reason
    return NOT_MEASURED, f"too few episodes; {reason}"
