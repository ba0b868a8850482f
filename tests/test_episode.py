import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.rollout.episode import Act, Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.testing import ByteChat
from gym_trl.types import (
    Completion,
    EnvFailure,
    EpisodeResult,
    FinishReason,
    Message,
    StepResult,
    StopReason,
    Task,
)

CHAT = ByteChat()
TASK = Task("TrlEnv/Echo-v0", 0)


def episode(**limits):
    return Episode(TASK, chat=CHAT, limits=Limits(**(limits or {"tokens": 10_000})))


def said(text, finish=FinishReason.STOP):
    ids = CHAT.say(text)
    return Completion("r", ids, [-0.5] * len(ids), finish)


def play(game, answers, replies):
    """Drive an episode and keep what the engine was asked for."""
    todo, asked = game.started(StepResult("begin")), []
    for answer, reply in zip(answers, replies, strict=False):
        if isinstance(todo, EpisodeResult):
            break
        asked.append(todo.prompt_ids)
        ids = CHAT.say(answer)
        cut = ids[: todo.max_tokens]
        todo = game.sampled(Completion("r", cut, [-0.5] * len(cut)))
        if isinstance(todo, Act):
            todo = game.stepped(reply)
    return (todo if isinstance(todo, EpisodeResult) else game.stopped(StopReason.CANCELLED)), asked


texts = st.text(max_size=20)
replies = st.lists(st.builds(StepResult, texts, st.floats(-1, 1)), min_size=1, max_size=6)
limits = st.fixed_dictionaries(
    {"tokens": st.integers(1, 200)},
    optional={"tokens_per_turn": st.integers(1, 20), "context": st.integers(1, 200)},
)


@given(limits, st.lists(texts, min_size=1, max_size=6), replies)
def test_laws_1_and_2_hold_under_any_budget_and_none_is_exceeded(budget, answers, observations):
    trajectory, asked = play(episode(**budget), answers, observations)
    whole = trajectory.prompt_ids + trajectory.completion_ids
    for prompt in asked[: len(trajectory.turns)]:
        assert whole[: len(prompt)] == prompt
    assert len(trajectory.completion_ids) == len(trajectory.mask) == len(trajectory.logprobs)
    assert all(
        logprob == (-0.5 if mask else 0.0) for mask, logprob in zip(trajectory.mask, trajectory.logprobs, strict=True)
    )
    sampled = [i for turn in trajectory.turns for i in range(turn.start, turn.stop)]
    assert set(sampled) <= {i for i, mask in enumerate(trajectory.mask) if mask}
    assert not trajectory.mask or trajectory.mask[-1] == 1
    assert len(trajectory.completion_ids) <= budget["tokens"]
    if asked and "context" in budget:
        assert len(trajectory.prompt_ids) + len(trajectory.completion_ids) <= budget["context"]
    for turn in trajectory.turns:
        assert turn.stop - turn.start <= budget.get("tokens_per_turn", budget["tokens"])


def test_rules_and_the_first_observation_join_the_users_message():
    game = Episode(TASK, chat=CHAT, limits=Limits(tokens=9), preamble=[Message("system", "S"), Message("user", "U")])
    asked = game.started(StepResult("O", instructions="I"))
    assert isinstance(asked, Sample)
    assert CHAT.show(asked.prompt_ids) == "<system>S<end><user>U\n\nI\n\nO<end><assistant>"


def test_a_turn_cut_short_is_closed_by_the_environment():
    game = episode(tokens_per_turn=2)
    game.started(StepResult("go"))
    game.sampled(Completion("r", [104, 105], [-1.0, -1.0], FinishReason.LENGTH))
    asked = game.stepped(StepResult("on"))
    assert CHAT.show(asked.prompt_ids).endswith("<assistant>hi<end><user>on<end><assistant>")


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (StepResult("", 1.0, terminated=True), StopReason.TERMINATED),
        (StepResult("", 0.0, terminated=True, info={"success": None}), StopReason.TERMINATED),
        (StepResult("", 1.0, terminated=True, info={"success": False}), StopReason.FAILURE),
        (StepResult("", -1.0, terminated=True, info={"success": True}), StopReason.SUCCESS),
        (StepResult("", 1.0, truncated=True), StopReason.TURN_LIMIT),
        (StepResult("", terminated=True, info={"stop_reason": "parse_error"}), StopReason.PARSE_ERROR),
        (StepResult("", truncated=True, info={"stop_reason": "bored"}), StopReason.TURN_LIMIT),
        (StepResult("", terminated=True, info={"stop_reason": ["odd"]}), StopReason.TERMINATED),
        (EnvFailure("it broke"), StopReason.ENV_ERROR),
        (EnvFailure("it hung", StopReason.TIMEOUT), StopReason.TIMEOUT),
    ],
)
def test_an_episode_says_why_it_ended(reply, reason):
    game = episode()
    game.started(StepResult("go"))
    game.sampled(said("x"))
    assert game.stepped(reply).stop_reason is reason


@pytest.mark.parametrize(
    ("finish", "reason"),
    [
        (FinishReason.ERROR, StopReason.CANCELLED),
        (FinishReason.CANCELLED, StopReason.CANCELLED),
        (FinishReason.TIMEOUT, StopReason.TIMEOUT),
    ],
)
def test_an_answer_that_the_engine_could_not_give_leaves_no_score(finish, reason):
    game = episode()
    game.started(StepResult("go"))
    trajectory = game.sampled(Completion("r", [], [], finish, error="the socket closed"))
    assert (trajectory.stop_reason, trajectory.error) == (reason, "the socket closed")
    assert trajectory.episode_return is None


def test_an_empty_answer_is_a_fault_of_the_engine():
    game = episode()
    game.started(StepResult("go"))
    trajectory = game.sampled(Completion("r", [], []))
    assert (trajectory.stop_reason, trajectory.scored) == (StopReason.CANCELLED, False)


def test_a_first_observation_that_does_not_fit_is_named_and_not_scored():
    trajectory = episode(context=5).started(StepResult("a long beginning"))
    assert trajectory.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert trajectory.error == "the first observation needs 19 tokens and one for the answer, the context holds 5"
    assert not trajectory.scored


def test_each_turn_is_sampled_from_a_seed_of_its_own():
    game = episode()
    first = game.started(StepResult("go"))
    game.sampled(said("x"))
    second = game.stepped(StepResult("on"))
    assert isinstance(first, Sample)
    assert first.seed != second.seed


def test_an_episode_needs_a_limit():
    with pytest.raises(ConfigError, match="needs a limit"):
        Limits()


@pytest.mark.parametrize(
    ("reply", "terminated"),
    [
        (StepResult("over", terminated=True), True),
        (StepResult("over", terminated=True, info={"stop_reason": "parse_error"}), True),
        (StepResult("over", truncated=True), False),
    ],
)
def test_a_trajectory_says_whether_its_environment_ended_it(reply, terminated):
    trajectory, _ = play(episode(), ["x"], [reply])
    assert trajectory.terminated is terminated
    assert trajectory.scored


def test_what_a_wrapper_read_from_an_answer_is_kept_if_it_is_text():
    replies = [
        StepResult("on", info={"action": "25"}),
        StepResult("on", info={"action": 3}),
        StepResult("", terminated=True),
    ]
    trajectory, _ = play(episode(), ["a", "b", "c"], replies)
    assert [turn.action for turn in trajectory.turns] == ["25", None, None]
