"""Criteria of OpenEnv's RFC 008 (environment auto-validation), measured where a Python environment can be.

The numbers are those of the acceptance tests in https://github.com/huggingface/OpenEnv/issues/778, the names are the
check ids of the RFC (rfcs/008-environment-auto-validation.md in that repository). Where the RFC leaves a bound to the
author or the operator, the bound is declared here.
"""

import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from gym_trl.env_checker.card.learning import Learning
from gym_trl.env_checker.card.plays import Level, References
from gym_trl.env_checker.card.splits import Splits
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.env_checker.report import PROBLEM, SKIPPED, WARNING, Finding
from gym_trl.evaluation.scores import mean_estimate
from gym_trl.text.textify import short_count

PASS, FAIL, NOT_MEASURED = "pass", "fail", "not measured"

MARGIN = 0.5
"""Minimum distance of the solver from doing nothing (`floor_margin` of the RFC's example)."""
NOISE = 0.5
"""Minimum distance of the solver from random play, in standard deviations of an episode."""
CORRELATION = 0.8
"""Minimum correlation of return and success."""


class Criterion(NamedTuple):
    """Criterion with its measured value."""

    number: str
    """Number of the acceptance test in issue 778."""
    check_id: str
    """Name of the check in the RFC."""
    threshold: str
    value: str
    status: str
    """``"pass"``, ``"fail"`` or ``"not measured"``."""


class Evidence(NamedTuple):
    """Measurements that the criteria are judged by."""

    env_id: str
    findings: Mapping[str, Finding]
    references: References
    games: Mapping[str, Sequence[PlayedEpisode]]
    """Episodes by policy."""
    levels: Mapping[str, Level]
    """Levels by policy."""
    splits: Splits | None
    lists_actions: bool
    criteria: Mapping[str, float]
    """Weights of the criteria that make up the reward."""
    learning: Learning | None


def judge(evidence: Evidence) -> list[Criterion]:
    """Return all criteria with their values."""
    return [
        *_build(evidence),
        *_learnable(evidence),
        *_secure(evidence),
        *_honest(evidence),
        *_open(evidence),
        *_repeatable(evidence),
    ]


def _build(evidence: Evidence) -> Iterator[Criterion]:
    yield _unknown(
        "1-12", "static.*, semantic.resource_envelope", "image and declarations of a server", "not a container image"
    )


def _learnable(evidence: Evidence) -> Iterator[Criterion]:
    references, blind = evidence.references, evidence.levels.get("blind")
    known = [level for level in (references.solver, references.chance) if level is not None]
    yield _row(
        "13",
        "statistical.reward_reachability",
        "the solver or random play succeeds at times",
        ", ".join(f"{one.policy} {references.value(one)}" for one in known),
        ok=any((references.value(level).mean or 0.0) > 0 for level in known),
    )
    yield from _separation(evidence, references)
    yield _near("15", "statistical.headroom", references, blind)
    yield _signal(evidence, references)
    learned = evidence.learning
    if learned is None or learned.gain is None:
        yield _unknown("17", "statistical.training_signal", "the tiny model improves", "see --train")
    else:
        told = f"{learned.first:.3f} to {learned.last:.3f} in {learned.steps} steps, {learned.seconds:.0f} s"
        yield _row(
            "17", "statistical.training_signal", "the tiny model improves beyond chance", told, ok=learned.improved
        )


def _separation(evidence: Evidence, references: References) -> Iterator[Criterion]:
    name, threshold = "statistical.difficulty_separation", "the solver is above random play on the same tasks"
    if references.solver is None:
        yield _unknown("14", name, threshold, "no solver")
        return
    pairs = zip(evidence.games["solver"], evidence.games["random"], strict=False)
    more = mean_estimate([[one.total - other.total] for one, other in pairs])
    yield _row("14", name, threshold, f"returns {more} more", ok=more.low is not None and more.low > 0)


def _near(number: str, name: str, references: References, level: Level | None) -> Criterion:
    threshold = "the blind baseline is less than 80% of the way from random play to the best"
    top, chance = references.top(), references.value(references.chance).mean
    reached = None if level is None else references.value(level).mean
    if top is None or chance is None or reached is None or top <= chance:
        return _unknown(number, name, threshold, "no blind baseline or no best score")
    share = (reached - chance) / (top - chance)
    return _row(number, name, threshold, f"{share:.0%}", ok=level is not None and not references.is_near(level))


def _signal(evidence: Evidence, references: References) -> Criterion:
    name, threshold = "statistical.variance_bound", f"solver is {NOISE} standard deviations above random play"
    chance = [game.total for game in evidence.games.get("random", ())]
    solved = None if references.solver is None else references.solver.mean_return.mean
    if solved is None or len(chance) < 2:
        return _unknown("16", name, threshold, "no solver")
    spread = statistics.pstdev([*chance, *(game.total for game in evidence.games.get("solver", ()))])
    if not spread:
        return _row("16", name, threshold, "all returns are the same", ok=False)
    distance = (solved - statistics.fmean(chance)) / spread
    return _row("16", name, threshold, f"{distance:.2f}", ok=distance >= NOISE)


def _secure(evidence: Evidence) -> Iterator[Criterion]:
    yield _unknown(
        "18-20",
        "runtime.network_policy, host_containment, resource_bounds",
        "limits of a sandbox",
        "runs in the process of its executor",
    )
    yield _by_findings(evidence, "21", "runtime.episode_isolation", ["fresh start", "own generator", "closing"])
    yield _by_findings(evidence, "22", "runtime.oracle_containment", ["seed in the observation", "hidden information"])


def _honest(evidence: Evidence) -> Iterator[Criterion]:
    yield _by_findings(evidence, "23", "runtime.reward_well_formed", ["step", "after the end"])
    if evidence.criteria:
        told = ", ".join(f"{name} {weight:g}" for name, weight in evidence.criteria.items())
        yield _row("24", "runtime.rubric_introspectable", "criteria and weights are listed", told, ok=True)
    else:
        yield _unknown(
            "24", "runtime.rubric_introspectable", "criteria and weights are listed", "the reward is one number"
        )
    references = evidence.references
    if references.solver is None:
        yield _row("25", "semantic.oracle_max", "a solver reaches the best score", "no solver", ok=False)
    else:
        yield _by_findings(
            evidence,
            "25",
            "semantic.oracle_max",
            ["solver"],
            threshold="the solver reaches the declared optimum",
            value=f"{references.value(references.solver)}",
        )
    yield _floor_gap(evidence, references)
    yield _adversarial_floor(evidence)
    yield _gameability(evidence)
    yield _by_findings(evidence, "28", "semantic.canary_floor", ["constant action", "stalling", "ending early"])


def _floor_gap(evidence: Evidence, references: References) -> Criterion:
    name, threshold = "semantic.floor_gap", f"the solver returns {MARGIN} more than doing nothing"
    floor = evidence.levels.get("nothing")
    if floor is None or floor.mean_return.mean is None or references.solver is None:
        return _unknown("25", name, threshold, "no solver")
    gap = (references.solver.mean_return.mean or 0.0) - floor.mean_return.mean
    return _row("25", name, threshold, f"{gap:.3f}", ok=gap >= MARGIN)


def _adversarial_floor(evidence: Evidence) -> Criterion:
    name = "statistical.adversarial_floor"
    threshold = "invalid actions and judgements in actions return no more than doing nothing"
    floor = evidence.levels.get("nothing")
    panel = [evidence.levels[one] for one in ("invalid", "judgement in the action") if one in evidence.levels]
    values = [one.mean_return.mean for one in panel if one.mean_return.mean is not None]
    if floor is None or floor.mean_return.mean is None or not values:
        return _unknown("26", name, threshold, "no episode could be scored")
    high = floor.mean_return.mean if floor.mean_return.high is None else floor.mean_return.high
    return _row(
        "26", name, threshold, f"{max(values):.3f} against {floor.mean_return.mean:.3f}", ok=max(values) <= high + 1e-9
    )


def _gameability(evidence: Evidence) -> Criterion:
    name, threshold = "statistical.gameability_gap", f"return and success correlate with {CORRELATION} or more"
    games = [game for one in ("solver", "random", "nothing", "invalid") for game in evidence.games.get(one, ())]
    games = [game for game in games if game.success is not None and game.error is None]
    returns, solved = [game.total for game in games], [float(game.solved) for game in games]
    if len(set(returns)) < 2 or len(set(solved)) < 2:
        return _unknown("27", name, threshold, "success is not declared, or never differs")
    found = statistics.correlation(returns, solved)
    return _row("27", name, threshold, f"{found:.2f}", ok=found >= CORRELATION)


def _open(evidence: Evidence) -> Iterator[Criterion]:
    yield _by_findings(evidence, "29", "runtime.observation_schema", ["spaces", "words"])
    threshold = "copying parts of the observation is not near the best"
    yield _by_findings(
        evidence, "30", "semantic.no_solution_leakage", ["answer in the observation"], threshold=threshold
    )
    yield _unknown(
        "31-32",
        "runtime.state_contract, trajectory_record",
        "properties of a server",
        "see gym-trl serve and gym-trl eval --out",
    )
    if evidence.criteria:
        yield _row(
            "33", "runtime.reward_attribution", "a score per criterion", f"{len(evidence.criteria)} criteria", ok=True
        )
    else:
        yield _unknown("33", "runtime.reward_attribution", "a score per criterion", "the reward is one number")
    yield _listed(evidence)
    splits = evidence.splits
    if splits is None or splits.num_instances is None:
        yield _unknown(
            "35", "runtime.task_declaration_accuracy", "no more tasks than declared", "tasks are not counted"
        )
    else:
        told = f"{splits.different} different tasks of {short_count(splits.num_instances)}"
        yield _row(
            "35",
            "runtime.task_declaration_accuracy",
            "no more tasks than declared",
            told,
            ok=splits.different <= splits.num_instances,
        )


def _listed(evidence: Evidence) -> Criterion:
    name, threshold = "runtime.tool_declaration_accuracy", "every listed action is valid"
    said = [seen[5] for game in evidence.games.get("random", ()) for seen in game.seen[1:] if seen[5] is not None]
    if not evidence.lists_actions or not said:
        return _unknown("34", name, threshold, "actions are not listed")
    return _row("34", name, threshold, f"{sum(map(bool, said)):,} of {len(said):,}", ok=all(said))


def _repeatable(evidence: Evidence) -> Iterator[Criterion]:
    yield _by_findings(evidence, "36", "runtime.seed_control", ["reset", "variety"])
    yield _by_findings(evidence, "37", "runtime.episode_determinism", ["determinism", "threads"])
    yield _unknown("38", "hub.cross_host_determinism", "the same episodes on two machines", "one machine; see 42")
    yield _by_findings(evidence, "39", "semantic.verifier_determinism", ["determinism"])
    yield _unknown(
        "40-41",
        "semantic.verifier_portability, static.dependency_pinning",
        "an image without network",
        "not a container image",
    )
    yield _by_findings(evidence, "42", "static.task_distribution_pinning", ["processes"])
    versioned = re.search(r"-v\d+$", evidence.env_id)
    yield _row(
        "43",
        "hub.immutable_versioning",
        "the id has a version",
        versioned[0][1:] if versioned else "none",
        ok=bool(versioned),
    )
    yield _by_findings(evidence, "44", "semantic.replayability", ["determinism", "processes"])


def _by_findings(
    evidence: Evidence, number: str, check_id: str, names: Sequence[str], *, threshold: str = "", value: str = ""
) -> Criterion:
    """Return a criterion that is met if all these checks are, and fails if one of them found something."""
    found = [evidence.findings[name] for name in names if name in evidence.findings]
    threshold = threshold or f"no finding in: {', '.join(names)}"
    known = [one for one in found if one.verdict != SKIPPED]
    if not known:
        return _unknown(number, check_id, threshold, "see the findings")
    worst = next((one for verdict in (PROBLEM, WARNING) for one in known if one.verdict == verdict), None)
    return _row(number, check_id, threshold, value or (worst.got if worst else known[0].got), ok=worst is None)


def _row(number: str, check_id: str, threshold: str, value: str, *, ok: bool) -> Criterion:
    return Criterion(number, check_id, threshold, value, PASS if ok else FAIL)


def _unknown(number: str, check_id: str, threshold: str, why: str) -> Criterion:
    return Criterion(number, check_id, threshold, why, NOT_MEASURED)
