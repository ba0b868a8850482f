"""Criteria of OpenEnv's RFC 008 (environment auto-validation) that no check of a card covers.

The names are the check ids of the RFC (rfcs/008-environment-auto-validation.md in its repository), which
https://github.com/huggingface/OpenEnv/issues/778 describes. Where the RFC leaves a bound to the author or the operator,
the bound is declared here. A warning is a criterion that is not met.
"""

import re
import statistics

from gym_trl.env_checker.card.evidence import Evidence, criterion
from gym_trl.env_checker.card.plays import scored_pairs
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.evaluation.estimates import difference_estimate, exceed
from gym_trl.report import Finding, ok, skipped, warning
from gym_trl.text.short_count import short_count

MARGIN = 0.5
"""Minimum distance of the solver from doing nothing (`floor_margin` of the RFC's example)."""
NOISE = 0.5
"""Minimum distance of the solver from random play, in standard deviations of an episode."""
CORRELATION = 0.8
"""Minimum correlation of return and success."""


def judge(evidence: Evidence) -> tuple[Finding, ...]:
    """Return the findings on all criteria: the value as ``got``, the threshold as ``why``."""
    return tuple(look(evidence) for look in criterion.values())


def _judged(got: str, *, met: bool) -> Finding:
    return ok(got) if met else warning(got, "")


@criterion("statistical.reward_reachability", "the solver or random play succeeds at times")
def _reachable(evidence: Evidence) -> Finding:
    references = evidence.references
    if references.objective != "success":
        return skipped("success is not declared")
    levels = [level for level in (references.solver, references.chance) if level is not None]
    got = ", ".join(f"{level.policy} {references.value(level)}" for level in levels)
    return _judged(got, met=any((references.value(level).mean or 0.0) > 0 for level in levels))


@criterion("statistical.difficulty_separation", "the solver is above random play on the same tasks")
def _separated(evidence: Evidence) -> Finding:
    if evidence.references.solver is None:
        return skipped("no solver")
    pairs = scored_pairs(evidence.played("solver"), evidence.played("random"))
    if not pairs:
        return skipped("no episode could be scored")
    more = [solved.total - random.total for solved, random in pairs]
    return _judged(f"returns {difference_estimate(more)} more", met=exceed(more))


@criterion("statistical.variance_bound", f"solver is {NOISE} standard deviations above random play")
def _distance(evidence: Evidence) -> Finding:
    chance, solved = ([game.total for game in _scored(evidence, policy)] for policy in ("random", "solver"))
    if evidence.references.solver is None:
        return skipped("no solver")
    if len(chance) < 2 or not solved:
        return skipped("too few episodes could be scored")
    spread = statistics.pstdev([*chance, *solved])
    if not spread:
        return _judged("all returns are the same", met=False)
    distance = (statistics.fmean(solved) - statistics.fmean(chance)) / spread
    return _judged(f"{distance:.2f}", met=distance >= NOISE)


@criterion("semantic.floor_gap", f"the solver returns {MARGIN} more than doing nothing")
def _floor_gap(evidence: Evidence) -> Finding:
    floor, solver = evidence.levels.get("nothing"), evidence.references.solver
    if solver is None:
        return skipped("no solver")
    if floor is None or floor.mean_return.mean is None or solver.mean_return.mean is None:
        return skipped("no episode could be scored")
    gap = solver.mean_return.mean - floor.mean_return.mean
    return _judged(f"{gap:.3f}", met=gap >= MARGIN)


@criterion(
    "statistical.adversarial_floor", "invalid actions and judgements in actions return no more than doing nothing"
)
def _adversarial_floor(evidence: Evidence) -> Finding:
    floor = evidence.levels.get("nothing")
    panel = [evidence.levels[name] for name in ("invalid", "judgement in the action") if name in evidence.levels]
    values = [level.mean_return.mean for level in panel if level.mean_return.mean is not None]
    if floor is None or floor.mean_return.mean is None or not values:
        return skipped("no episode could be scored")
    high = floor.mean_return.mean if floor.mean_return.high is None else floor.mean_return.high
    got = f"{max(values):.3f} against {floor.mean_return.mean:.3f}"
    return _judged(got, met=max(values) <= high + 1e-9)


@criterion("statistical.gameability_gap", f"return and success correlate with {CORRELATION} or more")
def _gameability(evidence: Evidence) -> Finding:
    games = [game for policy in ("solver", "random", "nothing", "invalid") for game in _scored(evidence, policy)]
    returns, solved = [game.total for game in games], [float(game.solved) for game in games]
    if not evidence.declares or len(set(returns)) < 2 or len(set(solved)) < 2:
        return skipped("success is not declared, or never differs")
    correlation = statistics.correlation(returns, solved)
    return _judged(f"{correlation:.2f}", met=correlation >= CORRELATION)


def _scored(evidence: Evidence, policy: str) -> list[PlayedEpisode]:
    return [game for game in evidence.played(policy) if game.result.scored]


@criterion("runtime.tool_declaration_accuracy", "every listed action is valid")
def _listed(evidence: Evidence) -> Finding:
    if not evidence.lists_actions:
        return skipped("actions are not listed")
    valid = [seen[5] for game in evidence.listed_games for seen in game.seen[1:] if seen[5] is not None]
    if not valid:
        return skipped("validity of actions is not declared")
    return _judged(f"{sum(map(bool, valid)):,} of {len(valid):,}", met=all(valid))


@criterion("runtime.task_declaration_accuracy", "no more tasks than declared")
def _declared_tasks(evidence: Evidence) -> Finding:
    splits = evidence.splits
    if splits is None or splits.num_instances is None:
        return skipped("tasks are not counted")
    got = f"{splits.different} different tasks of {short_count(splits.num_instances)}"
    return _judged(got, met=splits.different <= splits.num_instances)


@criterion("hub.immutable_versioning", "the id has a version")
def _versioned(evidence: Evidence) -> Finding:
    version = re.search(r"-v\d+$", evidence.env_id)
    return _judged(version[0][1:] if version else "none", met=version is not None)
