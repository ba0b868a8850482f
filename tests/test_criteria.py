"""Law 23 for the criteria of a card: each passes on sound evidence and fails on evidence with a planted fault."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from gym_trl.env_checker.card.criteria import FAIL, PASS, Criterion, Evidence, judge
from gym_trl.env_checker.card.exploits import WHY as EXPLOITS
from gym_trl.env_checker.card.learning import Learning
from gym_trl.env_checker.card.plays import Level, References
from gym_trl.env_checker.card.splits import WHY as SPLITS, Splits
from gym_trl.env_checker.checks import PROMISES
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.env_checker.report import OK, PROBLEM, SKIPPED, WARNING, Finding
from gym_trl.evaluation.play import Optimum
from gym_trl.evaluation.scores import Estimate


def game(reward: float, *, valid: bool = True, success: bool | None = None) -> PlayedEpisode:
    solved = reward > 0.5 if success is None else success
    start, step = (None, "a", 0.0, False, False, None, None, ()), ("x", "b", reward, True, False, valid, solved, ())
    return PlayedEpisode(0, [start, step], ended=True, success=solved)


def level(policy: str, mean: float) -> Level:
    near = Estimate(mean, max(0.0, mean - 0.05), min(1.0, mean + 0.05))
    return Level(policy, near, near, 1.0, 40)


WON, LOST = [game(1.0)] * 40, [game(0.0)] * 30 + [game(1.0)] * 10
LEARNED = Learning("success", tuple(number / 40 for number in range(40)), 60.0, 0.1, 0.9, ())
SOUND = Evidence(
    "Sound/Sound-v0",
    {name: Finding(name, OK, "fine", "") for name in (*PROMISES, *EXPLOITS, *SPLITS)},
    References(level("random", 0.25), level("solver", 1.0), Optimum(1.0, 1.0)),
    {"solver": WON, "random": LOST, "nothing": [game(0.0)] * 40, "invalid": [game(0.0)] * 40},
    {name: level(name, mean) for name, mean in (("blind", 0.3), ("nothing", 0.0), ("invalid", 0.0))},
    Splits(400, 100, 480, 0.0, "the solver's episode", 1_000),
    True,
    {"right": 1.0},
    LEARNED,
)


def without_solver() -> References:
    return replace(SOUND.references, solver=None)


def levels(**changed: float) -> Mapping[str, Level]:
    return {**SOUND.levels, **{name: level(name, mean) for name, mean in changed.items()}}


NOBODY = References(level("random", 0.0), level("solver", 0.0), Optimum(1.0, 1.0))
PLANTED: dict[str, dict[str, Any]] = {
    "statistical.reward_reachability": {"references": NOBODY},
    "statistical.difficulty_separation": {"games": {**SOUND.games, "solver": LOST}},
    "statistical.headroom": {"levels": levels(blind=0.95)},
    "statistical.variance_bound": {
        "references": replace(SOUND.references, solver=level("solver", 0.3)),
        "games": {**SOUND.games, "solver": LOST},
    },
    "statistical.training_signal": {"learning": LEARNED._replace(values=(0.5,) * 40)},
    "semantic.oracle_max": {"references": without_solver()},
    "semantic.floor_gap": {"levels": levels(nothing=0.8)},
    "statistical.adversarial_floor": {"levels": levels(invalid=0.5)},
    "statistical.gameability_gap": {
        "games": {**SOUND.games, "random": [game(1.0, success=False)] * 20 + [game(0.0, success=True)] * 20}
    },
    "runtime.tool_declaration_accuracy": {"games": {**SOUND.games, "random": [game(0.0, valid=False)] * 40}},
    "runtime.task_declaration_accuracy": {"splits": Splits(400, 100, 480, 0.0, "an episode", 100)},
    "hub.immutable_versioning": {"env_id": "Sound/Sound"},
}
DECLARED = {"runtime.rubric_introspectable", "runtime.reward_attribution"}
"""Criteria that pass where something is declared, and are not measured elsewhere."""


def statuses(evidence: Evidence) -> dict[tuple[str, str], str]:
    return {(one.number, one.check_id): one.status for one in judge(evidence)}


def failed(evidence: Evidence) -> set[str]:
    return {check_id for (_, check_id), status in statuses(evidence).items() if status == FAIL}


def test_sound_evidence_fails_no_criterion() -> None:
    assert failed(SOUND) == set()


@pytest.mark.parametrize("check_id", PLANTED)
def test_a_criterion_fails_on_its_planted_fault(check_id: str) -> None:
    assert check_id in failed(SOUND._replace(**PLANTED[check_id]))


def test_every_criterion_that_can_pass_can_fail() -> None:
    passed = {check_id for (_, check_id), status in statuses(SOUND).items() if status == PASS}
    by_finding = set[str]()
    for name in SOUND.findings:
        for verdict in (WARNING, PROBLEM):
            found = {**SOUND.findings, name: Finding(name, verdict, "a fault", "")}
            by_finding |= failed(SOUND._replace(findings=found))
    assert passed - DECLARED == by_finding | PLANTED.keys()


def test_what_could_not_be_checked_is_no_pass() -> None:
    skipped = {name: Finding(name, SKIPPED, "not checked", "") for name in SOUND.findings}
    before, after = judge(SOUND), judge(SOUND._replace(findings=skipped))
    changed: list[Criterion] = [new for old, new in zip(before, after, strict=True) if old.status != new.status]
    assert len(changed) >= 10
    assert {one.status for one in changed} == {"not measured"}
