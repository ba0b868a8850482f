"""Law 23 for ``doctor``: each finding on episodes reports its planted fault, and nothing about sound episodes."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

from gym_trl.episode import Episode, Segment, Span, Turn
from gym_trl.report import Finding, Verdict
from gym_trl.training import findings
from gym_trl.training.findings import Played
from gym_trl.types import Answer, StopReason, Task

END = 9
READ, UNREAD = {"action": "5", "action_valid": True}, {"action": None, "action_valid": False}


def episode(reward, *, success=None, said="<action>5</action>", read=READ, ended=True, tokens=4, prompt=5, stop=None):
    """Return an episode of one turn."""
    ids = [*([1] * (tokens - 1)), END if ended else 1]
    stop = stop or StopReason.ENDED
    turns = [] if not stop.scored else [Turn("Guess.", Answer("", said), reward, spans=[Span(0, 0, tokens)], **read)]
    return Episode(
        Task("TrlEnv/GuessNumber-v0", 0),
        segments=[Segment([1] * prompt, ids, [1] * tokens, [0.0] * tokens)],
        turns=turns,
        stop_reason=stop,
        terminated=stop is StopReason.ENDED,
        success=success,
        error=None if stop.scored else "reset raised ZeroDivisionError",
    )


def played(*episodes):
    return Played([*episodes] * 8, group_size=len(episodes), ends={END})


SOUND = played(episode(0.0, success=False), episode(1.0, success=True))
KNOWN = {"success_optimum": 1.0, "return_optimum": 1.0, "success_random": 0.1}
LOOK = {
    "scored_episodes": findings.scored_episodes,
    "crashes": findings.crashes,
    "readable_actions": lambda one: findings.readable_actions(one, "tag", cut_actions="reject", judge=None),
    "group_spread": lambda one: findings.group_spread(one, best=1.0, group_size=2, readable=Verdict.OK),
    "ends_of_turns": lambda one: findings.ends_of_turns(one, ends={END: "<end>"}, cut_actions="reject", max_tokens=4),
    "episode_length": lambda one: findings.episode_length(one, max_completion=4),
    "scores": lambda one: findings.scores(one, KNOWN),
}
LOST = episode(0.0, stop=StopReason.ENV_ERROR)
CRASHED = replace(episode(-0.2, stop=StopReason.CRASHED), error="step raised ZeroDivisionError")
PLANTED = {
    "each action crashes the environment": ("crashes", played(CRASHED, CRASHED), Verdict.PROBLEM),
    "some actions crash the environment": ("crashes", played(CRASHED, episode(1.0), episode(0.0)), Verdict.WARNING),
    "the environment fails": ("scored_episodes", played(LOST, LOST), Verdict.PROBLEM),
    "the environment fails at times": ("scored_episodes", played(LOST, episode(1.0), episode(0.0)), Verdict.WARNING),
    "the model writes no tags": (
        "readable_actions",
        played(*[episode(0.0, said="It is five.", read=UNREAD)] * 2),
        Verdict.PROBLEM,
    ),
    "half of the actions are illegal": (
        "readable_actions",
        played(episode(0.0), episode(0.0, read={"action": "x", "action_valid": False})),
        Verdict.WARNING,
    ),
    "all members of a group are alike": ("group_spread", played(episode(0.0), episode(0.0)), Verdict.PROBLEM),
    "all tasks are solved": (
        "group_spread",
        played(*[episode(1.0, success=True)] * 2),
        Verdict.PROBLEM,
    ),
    "only penalties differ": (
        "group_spread",
        played(episode(0.0, success=False), episode(-0.1, success=False)),
        Verdict.WARNING,
    ),
    "the model never ends its turn": (
        "ends_of_turns",
        played(*[episode(0.0, ended=False, read=UNREAD)] * 2),
        Verdict.PROBLEM,
    ),
    "half of the turns are cut off": (
        "ends_of_turns",
        played(episode(0.0, ended=False), episode(1.0)),
        Verdict.WARNING,
    ),
    "the budget of tokens ends all episodes": (
        "episode_length",
        played(*[episode(0.0, stop=StopReason.TOKEN_LIMIT)] * 2),
        Verdict.PROBLEM,
    ),
    "the budget of tokens ends half of them": (
        "episode_length",
        played(episode(0.0, stop=StopReason.TOKEN_LIMIT), episode(0.0)),
        Verdict.WARNING,
    ),
    "there is nothing left to learn": ("scores", played(*[episode(1.0, success=True)] * 2), Verdict.WARNING),
}


def found(name, one) -> list[Finding]:
    result: Any = LOOK[name](one)
    return [result] if isinstance(result, Finding) else result


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_fault_of_a_model_is_found(fault) -> None:
    name, one, verdict = PLANTED[fault]
    [finding] = found(name, one)
    assert finding.verdict is verdict, finding
    assert finding.fix


@pytest.mark.parametrize("name", LOOK)
def test_sound_episodes_have_no_finding(name) -> None:
    assert {finding.verdict for finding in found(name, SOUND)} <= {Verdict.OK}


def test_every_examination_has_a_planted_fault() -> None:
    examinations = {
        name
        for name, function in inspect.getmembers(findings, inspect.isfunction)
        if function.__module__ == findings.__name__
        and any(one.annotation is Played for one in inspect.signature(function).parameters.values())
    }
    assert examinations == LOOK.keys() == {name for name, *_ in PLANTED.values()}


@pytest.mark.parametrize("name", sorted(LOOK.keys() - {"scored_episodes", "crashes"}))
def test_each_rate_has_the_number_of_its_cases_and_an_interval(name) -> None:
    [finding] = found(name, SOUND)
    assert re.search(r"of (?:its )?(?:16|8) (responses|turns|episodes|groups)", finding.got), finding.got
    rates = re.findall(r"(\d\.\d{3}) \[(\d\.\d{3}), (\d\.\d{3})\]", finding.got)
    assert rates
    assert all(low <= mean <= high and low < high for mean, low, high in rates), finding.got
