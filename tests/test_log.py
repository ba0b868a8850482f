"""The account of one episode, which every player keeps."""

import math

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.errors import ConfigError, EngineError, PolicyError
from gym_trl.rollout import EpisodeLog, TextPlayer
from gym_trl.rollout.episode import Act
from gym_trl.text.chat_client import ModelStopped
from gym_trl.types import Answer, EnvFailure, EpisodeResult, StepResult, StopReason, Task

TASK = Task("TrlEnv/Echo-v0", seed=1)

reasons = st.sampled_from(sorted(StopReason))
numbers = st.integers(-4, 4).map(float)
steps = st.builds(
    StepResult, st.text(max_size=3), numbers, info=st.sampled_from([{}, {"success": False}]), settlement=numbers
)
ends = st.one_of(
    st.none(),
    st.builds(EnvFailure, st.just("it broke"), reasons.filter(lambda one: one is StopReason.CRASHED or not one.scored)),
    st.builds(StepResult, st.just("over"), numbers, st.just(True), info=st.sampled_from([{}, {"success": True}])),
    st.builds(StepResult, st.just("over"), numbers, st.just(False), st.just(True)),
)


def kept(begun: StepResult, steps: list[StepResult], end: StepResult | EnvFailure | None) -> EpisodeLog:
    log = EpisodeLog(TASK)
    assert log.begin(begun) is None
    for step in steps:
        log.answer("go")
        assert log.step(step) is None
    if end is not None:
        log.answer("end")
        assert log.step(end) is log.reason is not None
    return log


@given(st.builds(StepResult, st.just("begun"), settlement=numbers), st.lists(steps, max_size=4), ends, reasons)
@examples(200)
def test_an_episode_is_worth_its_rewards_and_what_it_owes_where_it_is_cut_off(
    begun: StepResult, steps: list[StepResult], end: StepResult | EnvFailure | None, why: StopReason
) -> None:
    log = kept(begun, steps, end)
    so_far = log.result()
    assert so_far == log.result()  # which changes nothing
    reason = log.stop(why)
    result = log.result()
    assert (result.stop_reason, log.stop(StopReason.CANCELLED)) == (reason, reason)  # an episode ends once
    assert reason is (why if end is None else so_far.stop_reason)
    crashed = isinstance(end, EnvFailure) and end.reason is StopReason.CRASHED
    assert len(result.turns) == len(steps) + (crashed or isinstance(end, StepResult))
    paid = [step.reward for step in steps] + ([end.reward] if isinstance(end, StepResult) else [])
    owed = 0.0 if isinstance(end, StepResult) else (steps[-1] if steps else begun).settlement
    if result.scored:
        assert result.episode_return == math.fsum(paid) + owed
    else:
        assert result.episode_return is None
        assert [turn.reward for turn in result.turns] == paid
    assert [message.role for message in result.messages[:2]] == ["user", "assistant"][: len(result.messages)]


def test_a_crash_declares_nothing_itself() -> None:
    crash = EnvFailure("it broke", StopReason.CRASHED)
    assert kept(StepResult(""), [StepResult("", info={"success": True})], crash).result().success is False


def test_a_mistake_of_the_user_is_raised() -> None:
    log = EpisodeLog(TASK)
    with pytest.raises(ConfigError, match="no such level"):
        log.begin(EnvFailure("no such level", of_user=True))


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (ModelStopped(StopReason.CONTEXT_OVERFLOW, "it is full"), StopReason.CONTEXT_OVERFLOW),
        (ModelStopped(StopReason.TIMEOUT, "it is slow"), StopReason.TIMEOUT),
        (KeyError("no plan"), StopReason.ENV_ERROR),
        (SystemExit(1), StopReason.ENV_ERROR),
    ],
)
def test_a_policy_that_raises_ends_its_episode(raised: BaseException, reason: StopReason) -> None:
    def policy(result: StepResult) -> str:
        if result.observation == "Go.":
            return "on"
        raise raised

    player = TextPlayer(TASK, policy)
    assert player.started(StepResult("Go.")) == Act("on")
    ended = player.stepped(StepResult("On.", settlement=-1.0))
    assert isinstance(ended, EpisodeResult)
    assert (ended.stop_reason, ended.episode_return) == (reason, -1.0 if reason.scored else None)


@pytest.mark.parametrize("raised", [ConfigError("no"), EngineError("no"), PolicyError("no")])
def test_a_mistake_of_a_policy_is_raised(raised: Exception) -> None:
    def policy(result: StepResult) -> str:
        raise raised

    with pytest.raises(type(raised)):
        TextPlayer(TASK, policy).started(StepResult("Go."))


def test_a_response_has_thinking() -> None:
    said = iter([Answer("Hm.", "ox"), "a long action", 7])
    player = TextPlayer(TASK, lambda result: next(said))  # type: ignore[arg-type, return-value]
    assert player.started(StepResult("Say ox.")) == Act("ox")
    assert player.stepped(StepResult("Again.")) == Act("a long action")
    ended = player.stepped(StepResult("Again."))
    assert isinstance(ended, EpisodeResult)
    assert (ended.stop_reason, ended.error) == (StopReason.ENV_ERROR, "the policy must return a text, got 7")
    assert [turn.answer for turn in ended.turns] == [Answer("Hm.", "ox"), Answer("", "a long action")]
