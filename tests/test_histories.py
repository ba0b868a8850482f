"""Histories that are cut, summarised or rendered anew: episodes of several segments."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from support.plays import RULES, Counts
from support.templates import TEMPLATES, WANTS_PARTS, make_tokenizer

from gym_trl import GymSpec
from gym_trl.chat import Chat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ConfigError
from gym_trl.executors.inline import InlinePool
from gym_trl.episode import MAX_TURNS
from gym_trl.options import History
from gym_trl.rollout.config import RolloutConfig
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.history import ASK
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.loop import run_episodes
from gym_trl.testing import ByteChat
from gym_trl.types import Message, StopReason, Task, TokenTrace

CHAT = ByteChat()


def play(history, turns=8, *, chat=CHAT, say=None, preamble=(), filler="", **limits):
    """Play one episode; return its result, and what the engine was given and returned."""
    asked: list[tuple[list[int], list[int]]] = []

    def respond(request):
        ids = say(len(asked), request) if say else chat.say(f"a{len(asked)}")
        before = asked[-1][0] + asked[-1][1] if asked else []
        assert request.seen == (len(before) if history is None else request.seen and len(before))
        assert request.prompt_ids[: request.seen] == before[: request.seen]
        asked.append((request.prompt_ids, ids[: request.max_tokens]))
        return ids[: request.max_tokens]

    limited = Limits(**{"tokens_per_turn": 24, **limits})
    episode = Episode(Task("Counts", 0), chat=chat, limits=limited, preamble=preamble, history=history)
    with InlinePool(lambda _: Counts(turns, filler)) as pool:
        [result] = run_episodes([episode], pool=pool, engine=ScriptedEngine(respond))
    return result, asked


def check_laws(result, asked):
    """Laws 1 and 2, of each segment: what the engine was given and returned is what is trained on."""
    ids, traces = 0, result.trace.segments
    for trace in traces:
        whole = trace.prompt_ids + trace.completion_ids
        assert isinstance(trace, TokenTrace)
        assert len(trace.completion_ids) == len(trace.mask) == len(trace.logprobs)
        place, first = len(trace.prompt_ids), True
        while place < len(whole):
            prompt, sampled = asked[ids]
            assert prompt == whole[: len(prompt)]
            assert not first or prompt == trace.prompt_ids
            assert whole[len(prompt) : len(prompt) + len(sampled)] == sampled
            told, said = len(prompt) - place, len(sampled)
            start = place - len(trace.prompt_ids)
            assert trace.mask[start : start + told + said] == [0] * told + [1] * said
            place, ids, first = len(prompt) + said, ids + 1, False
    assert ids == len(asked), "each sampled token is in one segment"
    assert sum(map(len, (sampled for _, sampled in asked))) == sum(result.trace.mask)
    for turn in result.turns:
        assert set(result.trace.mask[turn.start : turn.stop]) == {1}


histories = st.one_of(
    st.builds(
        lambda last, more, summary: History(last=last, most=max(1, last + more), summary=summary),
        st.integers(0, 4),
        st.integers(0, 4),
        st.sampled_from([None, "model", lambda messages: f"{len(messages)}"]),
    ),
    st.builds(History, summary=st.just("model")),
    st.builds(History, last=st.integers(0, 5)),
)


@settings(deadline=None)
@given(
    history=histories,
    turns=st.integers(1, 12),
    words=st.lists(st.text(max_size=12), min_size=1, max_size=5),
    context=st.integers(60, 900),
    completion=st.integers(300, 900),
)
def test_each_segment_is_what_the_engine_was_given_and_returned(history, turns, words, context, completion):
    def say(number, request):
        return CHAT.say(words[number % len(words)])

    result, asked = play(history, turns, say=say, context=context, tokens=completion)
    check_laws(result, asked)
    for trace in result.trace.segments:
        assert len(trace.prompt_ids) + len(trace.completion_ids) <= context
        assert len(trace.completion_ids) <= completion


@given(st.integers(1, 9), st.booleans())
def test_a_history_that_is_never_cut_changes_nothing(turns, system):
    preamble = [Message("system", "Be brief.")] * system
    plain, asked = play(None, turns, preamble=preamble)
    for history in (History(last=9), History(summary="model"), History(last=0, most=9)):
        kept, asked_too = play(history, turns, preamble=preamble, context=10_000)
        assert (kept, asked_too) == (plain, asked)
        assert kept.trace.borders == ()


def test_the_last_turns_are_shown_after_the_observation_before_them():
    result, asked = play(History(last=1, most=2), 4, preamble=[Message("system", "Be brief.")])
    assert [CHAT.show(prompt) for prompt, _ in asked[-1:]] == [
        "<system>Be brief.<end><user>Count.\n\n[2 earlier turns are left out.]\n\no2<end><assistant>a2<end>"
        "<user>o3<end><assistant>"
    ]
    assert [(border.turn, border.left_out) for border in result.trace.borders] == [(3, 2)]
    assert result.stop_reason is StopReason.SUCCESS


def test_a_summary_of_the_model_is_sampled_in_the_old_segment_and_shown_in_the_new_one():
    result, asked = play(History(summary="model", ask="Notes?"), 9, context=120)
    check_laws(result, asked)
    first, second, *_ = result.trace.segments
    number = next(place for place, (prompt, _) in enumerate(asked) if "Notes?" in CHAT.show(prompt))
    assert CHAT.show(first.completion_ids).endswith(f"<user>Notes?<end><assistant>a{number}<end>")
    assert f"Count.\n\nNotes of the {number} earlier turns before:\na{number}\n\no{number}<end>" in (
        CHAT.show(second.prompt_ids)
    )
    assert len(result.turns) == 9, "a summary is no turn"
    assert result.stop_reason is StopReason.SUCCESS


def test_a_function_gets_what_it_is_to_replace():
    given_to: list[list[Message]] = []

    def summarise(messages):
        given_to.append(messages)
        return "S"

    play(History(last=1, most=1, summary=summarise), 4)
    assert [[message.content for message in messages] for messages in given_to] == [
        ["o0", "a0", "o1"],
        ["S", "o1", "a1", "o2"],
    ]


def test_a_function_gets_every_turn_that_is_left_out_also_where_fewer_have_room_than_are_to_be_kept():
    heard: list[str] = []

    def summarise(messages):
        heard.extend(message.content for message in messages if message.role == "assistant")
        return "S"

    result, asked = play(History(last=8, summary=summarise), 20, filler="x" * 40, context=400)
    assert result.stop_reason is StopReason.SUCCESS
    check_laws(result, asked)
    left_out = result.trace.borders[-1].left_out
    assert heard == [f"a{turn}" for turn in range(left_out)]
    assert len(result.trace.segments) < 10, "a cut makes room for several turns"


def test_a_summary_without_room_ends_the_episode_by_name():
    result, _ = play(History(last=1, most=1, summary=lambda messages: "long" * 99), 9, context=300)
    assert result.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert "a summary of 396 characters" in str(result.error)


def test_a_segment_that_could_never_hold_a_turn_is_refused():
    for history, needed in ((History(last=8), 24), (History(summary="model", ask="Notes?"), 24 + 24 + 10)):
        with pytest.raises(ConfigError, match=f"max_completion_length must be at least {needed} with this history"):
            play(history, tokens=needed - 1)
        play(history, tokens=needed)


@pytest.mark.parametrize("history", [History(last=6), History(summary="model"), History(last=2, summary="model")])
def test_an_episode_of_300_turns_in_a_context_of_2048_tokens_ends_by_its_game(history):
    plain, _ = play(None, 300, filler=" and more" * 3, context=2048)
    assert plain.stop_reason is StopReason.CONTEXT_OVERFLOW
    result, asked = play(history, 300, filler=" and more" * 3, context=2048, tokens=1536)
    assert result.stop_reason is StopReason.SUCCESS
    assert len(result.turns) == 300
    check_laws(result, asked)
    computed = sum(len(trace.prompt_ids) + len(trace.completion_ids) for trace in result.trace.segments)
    assert computed < 300 * 2048 / 8, "histories are cut in steps, so that few prompts are computed anew"


def test_what_cannot_be_shortened_enough_ends_the_episode_and_names_the_history():
    result, _ = play(History(last=3), 9, filler="x" * 200, context=260)
    assert result.stop_reason is StopReason.CONTEXT_OVERFLOW
    assert "history cannot be shortened further" in str(result.error)
    result, _ = play(History(summary="model"), 9, context=70)
    assert "the request for a summary (history) needs" in str(result.error)


@pytest.mark.parametrize(
    ("summary", "error"),
    [
        (lambda messages: None, "history.summary must return a text, got None"),
        (lambda messages: str(messages[99]), "history.summary raised IndexError"),
    ],
)
def test_a_function_that_does_not_summarise_leaves_the_episode_unscored(summary, error):
    result, _ = play(History(last=1, most=1, summary=summary), 9)
    assert result.stop_reason is StopReason.ENV_ERROR
    assert error in str(result.error)


def test_a_history_needs_room_for_a_turn_and_the_models_own_template():
    with pytest.raises(ConfigError, match="history needs max_tokens_per_turn"):
        RolloutConfig(history=History(last=4))
    with pytest.raises(ConfigError, match="needs the tokenizer's chat template"):
        RolloutConfig(history=History(template=True), chat=CHAT)


# ---------------------------------------------------------------------------------------------------------------------
# Conversations that the chat template renders anew before every turn
# ---------------------------------------------------------------------------------------------------------------------

RENDERED = sorted(TEMPLATES.keys() - WANTS_PARTS)


@cache
def rendering(name: str) -> tuple[Chat, Any]:
    tokenizer = make_tokenizer(TEMPLATES[name])
    return Chat(tokenizer), tokenizer


def thinks(tokenizer, name, number):
    """Return a response with thinking, in the form that a model with this template would sample."""
    opened = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True, tokenize=False
    )
    if "gemma4" in name or "diffusion" in name:
        return f"<|channel>thought\nHm {number}.\n<channel|>a{number}"
    if "gptoss" in name:
        return (
            f"<|channel|>analysis<|message|>Hm {number}.<|end|><|start|>assistant<|channel|>final<|message|>a{number}"
        )
    if "muse" in name:
        return f" to=self<|message|>Hm {number}.<|eom|><|start|>assistant to=user<|message|>a{number}"
    begins = "" if opened.rstrip().endswith("<think>") else "<think>\n"
    return f"{begins}Hm {number}.\n</think>\n\na{number}"


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("name", RENDERED)
def test_every_turn_is_what_the_template_renders_of_the_conversation(name, thinking):
    chat, tokenizer = rendering(name)
    end = tokenizer.encode("<|im_end|>", add_special_tokens=False)

    def say(number, request):
        if not thinking:
            return chat.say(f"a{number}")
        return [*tokenizer.encode(thinks(tokenizer, name, number), add_special_tokens=False), *(chat.stop_ids or end)]

    result, asked = play(History(template=True), 10, chat=chat, say=say, tokens_per_turn=200)
    assert result.stop_reason is StopReason.SUCCESS, result.error
    check_laws(result, asked)
    begins = {tuple(trace.prompt_ids) for trace in result.trace.segments}
    messages = [{"role": "user", "content": f"{RULES}\n\no0"}]
    for turn, (prompt, _) in enumerate(asked):
        options = {"add_generation_prompt": True}
        assert chat.encoder.decode(prompt) == tokenizer.apply_chat_template(messages, tokenize=False, **options)
        if tuple(prompt) in begins:
            assert prompt == list(tokenizer.apply_chat_template(messages, return_dict=False, **options))
        thought = {"thinking" if name.startswith(("gptoss", "lfm2_2_5")) else "reasoning_content": f"Hm {turn}."}
        messages.append({"role": "assistant", "content": f"a{turn}", **(thought if thinking else {})})
        messages.append({"role": "user", "content": f"o{turn + 1}"})


def test_qwen3_drops_earlier_thinking_and_each_turn_is_trained_as_it_was_seen():
    chat, tokenizer = rendering("qwen3")
    stop = list(chat.stop_ids)

    def say(number, request):
        return [*tokenizer.encode(thinks(tokenizer, "qwen3", number), add_special_tokens=False), *stop]

    result, asked = play(History(template=True), 10, chat=chat, say=say, tokens_per_turn=200)
    check_laws(result, asked)
    assert len(result.trace.segments) == 10
    last = chat.encoder.decode(result.trace.segments[-1].prompt_ids)
    assert "Hm" not in last
    assert all(f"a{number}<|im_end|>" in last for number in range(9))
    # Without thinking its history only grows.
    result, _ = play(History(template=True), 10, chat=chat, tokens_per_turn=200, say=lambda n, _: encoded(chat, n))
    assert len(result.trace.segments) == 1


def encoded(chat, number):
    return [*chat.encoder.encode(f"a{number}"), *chat.stop_ids]


def test_a_summary_is_asked_for_where_thinking_is_dropped_as_well():
    chat, tokenizer = rendering("qwen3")

    def say(number, request):
        text = thinks(tokenizer, "qwen3", number)
        return [*tokenizer.encode(text, add_special_tokens=False), *chat.stop_ids]

    result, asked = play(
        History(last=1, most=2, summary="model", template=True), 6, chat=chat, say=say, tokens_per_turn=200
    )
    check_laws(result, asked)
    assert result.stop_reason is StopReason.SUCCESS
    asks = [chat.encoder.decode(prompt) for prompt, _ in asked if ASK in chat.encoder.decode(prompt)]
    assert asks
    assert not any("Hm" in ask for ask in asks)


def test_an_episode_of_responses_without_an_action_has_an_end():
    """They use no turn of the environment, and the context no longer ends it."""
    options: dict[str, Any] = {"num_tasks": 2, "num_eval_tasks": 0, "max_tokens_per_turn": 9, "executor": "inline"}
    spec = GymSpec("TrlEnv/GuessNumber-v0", history=History(last=1), **options)
    assert spec.env_spec.end_after_invalid == 3
    assert GymSpec("TrlEnv/GuessNumber-v0", **options).env_spec.end_after_invalid is None
    limited = GymSpec("TrlEnv/GuessNumber-v0", history=History(last=1), turn_limit=9, **options)
    assert limited.env_spec.end_after_invalid is None
    endless, _ = play(History(last=0, most=1), MAX_TURNS + 1)
    assert endless.stop_reason is StopReason.TURN_LIMIT
    assert f"nothing has ended the episode after {MAX_TURNS} turns" in str(endless.error)
