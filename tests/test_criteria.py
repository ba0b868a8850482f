"""Law 23 for the criteria of a card: each passes on sound evidence and fails on evidence with a planted fault."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gym_trl.env_checker.card.criteria import judge
from gym_trl.env_checker.card.plays import Level, References
from gym_trl.env_checker.card.splits import Splits
from gym_trl.env_checker.play import PlayedEpisode
from gym_trl.evaluation.estimates import Estimate
from gym_trl.report import OK, SKIPPED, WARNING, Verdict
from gym_trl.rollout.log import EpisodeLog
from gym_trl.types import StepResult, Task


def game(reward: float, *, valid: bool = True, success: bool | None = None) -> PlayedEpisode:
    solved = reward > 0.5 if success is None else success
    played = PlayedEpisode(EpisodeLog(Task("Sound", 0)))
    played.log.begin(StepResult("a"))
    played.see(None)
    played.log.answer("x")
    info = {"action_valid": valid, "success": solved}
    played.log.step(StepResult("b", reward, terminated=True, info=info))
    played.see("x")
    return played


def level(policy: str, mean: float) -> Level:
    near = Estimate(mean, max(0.0, mean - 0.05), min(1.0, mean + 0.05))
    return Level(policy, near, near, 1.0, 40)


def levels(**changed: float) -> Mapping[str, Level]:
    return {name: level(name, mean) for name, mean in ({"nothing": 0.0, "invalid": 0.0} | changed).items()}


WON, LOST = [game(1.0)] * 40, [game(0.0)] * 30 + [game(1.0)] * 10
GAMES = {"solver": WON, "random": LOST, "nothing": [game(0.0)] * 40, "invalid": [game(0.0)] * 40}
GAMES |= {"listed actions": LOST}
COUNTED = Splits(400, 100, 480, 0.0, "the solver's episode", 1_000)


@dataclass
class Measured:
    """Evidence with given measurements."""

    env_id: str = "Sound/Sound-v0"
    references: References = References(level("random", 0.25), level("solver", 1.0), level("optimum", 1.0))  # noqa: RUF009
    games: Mapping[str, Sequence[PlayedEpisode]] = field(default_factory=GAMES.copy)
    levels: Mapping[str, Level] = field(default_factory=levels)
    splits: Splits | None = COUNTED
    lists_actions: bool = True
    declares: bool = True

    @property
    def listed_games(self) -> Sequence[PlayedEpisode]:
        return self.played("listed actions")

    def played(self, policy: str) -> Sequence[PlayedEpisode]:
        return self.games.get(policy, ())


SOUND = Measured()
UNSOLVED = References(level("random", 0.0), level("solver", 0.0), level("optimum", 1.0))
PLANTED: dict[str, dict[str, Any]] = {
    "statistical.reward_reachability": {"references": UNSOLVED},
    "statistical.difficulty_separation": {"games": {**SOUND.games, "solver": LOST}},
    "statistical.variance_bound": {
        "references": replace(SOUND.references, solver=level("solver", 0.3)),
        "games": {**SOUND.games, "solver": LOST},
    },
    "semantic.floor_gap": {"levels": levels(nothing=0.8)},
    "statistical.adversarial_floor": {"levels": levels(invalid=0.5)},
    "statistical.gameability_gap": {
        "games": {**SOUND.games, "random": [game(1.0, success=False)] * 20 + [game(0.0, success=True)] * 20}
    },
    "runtime.tool_declaration_accuracy": {"games": {**SOUND.games, "listed actions": [game(0.0, valid=False)] * 40}},
    "runtime.task_declaration_accuracy": {"splits": Splits(400, 100, 480, 0.0, "an episode", 100)},
    "hub.immutable_versioning": {"env_id": "Sound/Sound"},
}


def verdicts(evidence: Any) -> dict[str, Verdict]:
    return {criterion.name: criterion.verdict for criterion in judge(evidence)}


def test_sound_evidence_meets_every_criterion_and_each_has_a_planted_fault() -> None:
    assert verdicts(SOUND) == dict.fromkeys(PLANTED, OK)


@pytest.mark.parametrize("name", PLANTED)
def test_a_criterion_fails_on_its_planted_fault(name: str) -> None:
    assert verdicts(replace(SOUND, **PLANTED[name]))[name] == WARNING


def test_what_could_not_be_measured_is_no_pass() -> None:
    nothing = Measured(
        references=replace(SOUND.references, solver=None), games={}, levels={}, splits=None, lists_actions=False
    )
    measured = {name for name, verdict in verdicts(nothing).items() if verdict != SKIPPED}
    assert measured == {"statistical.reward_reachability", "hub.immutable_versioning"}
