"""One episode: its ids, its turns, what it is worth and why it ended (laws 1, 2, 5, 8, 13, 15 and 19)."""

import asyncio
import itertools
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.play import Limits, play
from gym_trl.testing import ByteChat
from gym_trl.types import (
    Completion,
    EnvFailure,
    FinishReason,
    Message,
    ModelStopped,
    StepResult,
    StopReason,
    Task,
    UnfinishedResponse,
)

CHAT = ByteChat()
TASK = Task("Any-v0", 0)


def played(results: Any, answers: Any = (), **options: Any) -> tuple[Any, list[tuple[list[int], list[int]]], list[str]]:
    """Play an episode whose results and answers are given; return it, what was asked and returned, and the actions."""
    replies, says, asked, actions = iter(results), iter(answers), list[Any](), list[str]()

    async def step(work: Any) -> Any:
        if isinstance(work, str):
            actions.append(work)
        return next(replies, StepResult("", terminated=True))

    async def sample(ids: list[int], max_tokens: int, seat: int) -> Completion:
        answer = next(says, "go")
        if isinstance(answer, BaseException):
            raise answer
        if not isinstance(answer, Completion):
            said = CHAT.say(answer)
            finish = FinishReason.STOP if len(said) <= max_tokens else FinishReason.LENGTH
            answer = Completion("", said[:max_tokens], [-0.5] * len(said[:max_tokens]), finish)
        asked.append((ids, answer.ids))
        return answer

    options.setdefault("limits", Limits(tokens_per_turn=40))
    [episode] = asyncio.run(play(TASK, step, CHAT, sample, **options))
    return episode, asked, actions


texts = st.text(max_size=12)
rewards = st.integers(-4, 4).map(float)
steps = st.builds(
    StepResult, texts, rewards, info=st.sampled_from([{}, {"success": False}, {"success": True}, {"action_valid": 0}])
)
failures = st.builds(
    EnvFailure, st.just("it broke"), st.sampled_from([StopReason.CRASHED, StopReason.ENV_ERROR, StopReason.CANCELLED])
)
ends = st.one_of(
    failures,
    st.builds(StepResult, texts, rewards, st.just(True), info=st.sampled_from([{}, {"success": True}])),
    st.builds(StepResult, texts, rewards, st.just(False), st.just(True)),
)
begins = st.one_of(
    failures,
    *[st.builds(StepResult, texts, loss_return=rewards, declares_success=st.booleans(), instructions=texts)] * 4,
)
budgets = st.builds(Limits, *(st.none() | st.integers(1, most) for most in (20, 200, 300)))


@given(begins, st.lists(steps, max_size=5), ends, st.lists(texts, max_size=5), budgets)
@examples(300)
def test_every_episode_obeys_the_laws_of_ids_worth_and_success(
    begun: Any, between: list[StepResult], end: Any, answers: list[str], limits: Limits
) -> None:
    episode, asked, actions = played([begun, *between, end], answers, limits=limits)
    assert episode.seat is None
    # Law 1 and 2: what the engine was given and returned is prompt and completion, and the mask is where it sampled.
    whole, row = episode.row.ids, episode.row
    assert [whole[: len(prompt) + len(ids)] for prompt, ids in asked] == [prompt + ids for prompt, ids in asked]
    assert whole == ([*asked[-1][0], *asked[-1][1]] if asked else [])
    assert len(row.completion_ids) == len(row.mask) == len(row.logprobs)
    assert row.logprobs == [-0.5 if bit else 0.0 for bit in row.mask]
    spans = [span for turn in episode.turns for span in turn.spans]
    assert [row.completion_ids[span.start : span.stop] for span in spans] == [ids for _, ids in asked]
    assert sum(row.mask) == sum(span.stop - span.start for span in spans)
    assert all(len(ids) <= (limits.tokens_per_turn or math.inf) for _, ids in asked)
    assert len(row.completion_ids) <= (limits.tokens or math.inf)
    assert not asked or len(whole) <= (limits.context or math.inf)
    # Law 8: it has a reason, and is scored if and only if the model acted and the infrastructure held.
    reason = episode.stop_reason
    taken = [begun, *between, end][: len(actions) + 1]
    failure = next((one for one in taken if isinstance(one, EnvFailure)), None)
    if failure is not None:
        assert (reason, episode.error) == (failure.reason, "it broke")
    elif len(actions) > len(between):
        assert reason is (StopReason.ENDED if end.terminated else StopReason.TURN_LIMIT)
    else:
        assert reason is StopReason.TOKEN_LIMIT
    assert episode.scored == (reason.scored and bool(actions))
    # Law 15: what is cut off is worth no more than what is lost, and the last turn pays for it.
    steps_taken = [one for one in taken[1:] if isinstance(one, StepResult)]
    paid = math.fsum(one.reward for one in steps_taken)
    if episode.scored:
        worth = min(paid, begun.loss_return) if reason.cut_off else paid
        assert episode.episode_return == pytest.approx(worth)
        assert [turn.reward for turn in episode.turns][:-1] == [one.reward for one in steps_taken][: len(actions) - 1]
        # Law 13: success is what the last step declares; where any does, what does not, or is cut off, has failed.
        declares = begun.declares_success or any("success" in one.info for one in steps_taken)
        last = steps_taken[-1].info if failure is None and steps_taken else {}
        declared = last.get("success", False if declares else None)
        assert episode.success is (declared and not reason.cut_off)
    else:
        assert (episode.episode_return, episode.success) == (None, None)


def test_instructions_and_the_first_observation_join_the_last_message_of_the_user() -> None:
    preamble = [Message("system", "S"), Message("user", "U")]
    _, asked, _ = played([StepResult("O", instructions="I")], preamble=preamble)
    assert CHAT.show(asked[0][0]) == "<system>S<end><user>U\n\nI\n\nO<end><assistant>"


def test_a_response_cut_by_the_limit_is_closed_by_the_environment_and_is_no_action() -> None:
    limits = Limits(tokens_per_turn=2)
    _, asked, actions = played([StepResult("go"), StepResult("on")], ["hi!", "ok"], limits=limits)
    assert CHAT.show(asked[1][0]).endswith("<assistant>hi<end><user>on<end><assistant>")
    assert [isinstance(action, UnfinishedResponse) for action in actions] == [True, True]
    assert isinstance(played([StepResult("go")], ["x"], limits=limits)[2][0], UnfinishedResponse) is False


@pytest.mark.parametrize("named", ["invalid", "turn_limit", "bored", ["odd"]])
@pytest.mark.parametrize("terminated", [True, False])
def test_a_wrapper_may_name_its_reason(named: Any, terminated: bool) -> None:
    over = StepResult("", 1.0, terminated, not terminated, {"stop_reason": named}, loss_return=-2.0)
    episode, *_ = played([StepResult("go", loss_return=-2.0), over])
    own = StopReason.ENDED if terminated else StopReason.TURN_LIMIT
    assert episode.stop_reason is (StopReason(named) if named in ("invalid", "turn_limit") else own)
    assert episode.episode_return == (-2.0 if named == "invalid" else 1.0)
    assert episode.last.terminated is terminated


@pytest.mark.parametrize(
    ("answer", "reason", "scored"),
    [
        (Completion("", [], [], FinishReason.ERROR, "the socket closed"), StopReason.CANCELLED, False),
        (Completion("", [], []), StopReason.CANCELLED, False),
        (ModelStopped(StopReason.TOKEN_LIMIT, "it is full"), StopReason.TOKEN_LIMIT, True),
        (ModelStopped(StopReason.CANCELLED, "it is gone"), StopReason.CANCELLED, False),
    ],
)
def test_a_response_that_cannot_be_had_ends_the_episode(answer: Any, reason: StopReason, scored: bool) -> None:
    episode, *_ = played([StepResult("go"), StepResult("on", 1.0)], ["a", answer])
    assert (episode.stop_reason, episode.scored, len(episode.turns)) == (reason, scored, 1)


def test_a_bug_of_the_engine_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        played([StepResult("go")], [ZeroDivisionError()])


@pytest.mark.slow
def test_an_episode_without_an_end_has_one() -> None:
    episode, _, actions = played(itertools.repeat(StepResult("on")), limits=Limits(tokens_per_turn=9))
    assert (episode.stop_reason, len(actions)) == (StopReason.TURN_LIMIT, 10_000)


def test_time_that_is_over_leaves_the_episode_unscored() -> None:
    async def step(work: Any) -> Any:
        if work == "go":
            await asyncio.Event().wait()
        return StepResult("go", 1.0)

    async def sample(ids: list[int], max_tokens: int, seat: int) -> Completion:
        said = CHAT.say("go")
        return Completion("", said, [-0.5] * len(said))

    [episode] = asyncio.run(play(TASK, step, CHAT, sample, limits=Limits(tokens_per_turn=9), timeout=0.01))
    assert (episode.stop_reason, episode.scored, episode.error is not None) == (StopReason.CANCELLED, False, True)
