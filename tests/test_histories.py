"""Histories that are cut, replaced by notes or rendered anew: episodes of several segments (laws 1 and 2 of each)."""

import asyncio
from functools import cache
from typing import Any

import gymnasium as gym
import pytest
from chat.templates import TEMPLATES, WANTS_PARTS, make_tokenizer
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.chat import Chat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.episode import Episode
from gym_trl.errors import ChatTemplateError, ConfigError, EngineError
from gym_trl.executors import InlinePool
from gym_trl.history import ASK, last_turns, notes, rendered
from gym_trl.rollout import Limits, rollout, run
from gym_trl.testing import ByteChat
from gym_trl.types import Message, StopReason, Task

CHAT = ByteChat()
RULES = "Count."


class Counts(gym.Env[str, str]):
    """Environment of some turns that says the number of the turn, and is won in the last one."""

    observation_space = gym.spaces.Text(10**6)
    action_space = gym.spaces.Text(10**6)
    instructions = RULES
    declares_success = True

    def __init__(self, turns: int, filler: str = "") -> None:
        self._turns, self._filler = turns, filler

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return f"o0{self._filler}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._step += 1
        over = self._step == self._turns
        return f"o{self._step}{self._filler}", float(over), over, False, {"success": True} if over else {}


def play(
    history: Any,
    turns: int = 8,
    *,
    chat: Any = CHAT,
    say: Any = None,
    preamble: Any = (),
    filler: str = "",
    **limits: Any,
) -> tuple[Episode, list[tuple[list[int], list[int]]]]:
    """Play one episode; return it, and what the engine was given and returned."""
    asked: list[tuple[list[int], list[int]]] = []

    def respond(request: Any) -> Any:
        ids = say(len(asked), request) if say else chat.say(f"a{len(asked)}")
        asked.append((request.prompt_ids, list(ids[: request.max_tokens])))
        return ids

    with InlinePool(lambda _: Counts(turns, filler)) as pool:
        options = {"engine": ScriptedEngine(respond), "chat": chat, "history": history, "preambles": [preamble]}
        limited = Limits(**{"tokens_per_turn": 24, **limits})
        [[episode]] = run(rollout([Task("Counts", 0)], pool=pool, limits=limited, **options))
    return episode, asked


def check_laws(episode: Episode, asked: list[tuple[list[int], list[int]]]) -> None:
    """Check that each segment is what the engine was given and returned, and each token is in one of them."""
    left = iter(asked)
    row = episode.row
    assert len(row.completion_ids) == len(row.mask) == len(row.logprobs)
    for segment in episode.segments:
        assert len(segment.completion_ids) == len(segment.mask) == len(segment.logprobs)
        place, whole = len(segment.prompt_ids), segment.ids
        while place < len(whole):
            prompt, sampled = next(left)
            end = len(prompt) + len(sampled)
            assert prompt == whole[: len(prompt)]
            assert whole[len(prompt) : end] == sampled
            bits = segment.mask[place - len(segment.prompt_ids) : end - len(segment.prompt_ids)]
            assert bits == [0] * (len(prompt) - place) + [1] * len(sampled)
            place = end
    assert next(left, None) is None
    spans = [span for turn in episode.turns for span in turn.spans]
    found = [episode.segments[span.segment].completion_ids[span.start : span.stop] for span in spans]
    assert found == [sampled for _, sampled in asked][: len(found)]
    row = episode.row
    assert sum(row.mask) == sum(len(sampled) for _, sampled in asked)
    for start, segment in zip(episode.starts, episode.segments, strict=True):
        assert row.completion_ids[start : start + len(segment.completion_ids)] == segment.completion_ids


histories = st.one_of(
    st.builds(last_turns, st.integers(1, 5)),
    st.builds(notes, st.none() | st.integers(1, 5)),
    st.just(rendered),
)


@given(
    history=histories,
    turns=st.integers(1, 12),
    words=st.lists(st.text(max_size=5), min_size=1, max_size=5),  # none is cut off: it would be no action
    context=st.integers(60, 900),
    completion=st.integers(100, 900),
)
@examples(120)
def test_each_segment_is_what_the_engine_was_given_and_returned(
    history: Any, turns: int, words: list[str], context: int, completion: int
) -> None:
    def say(number: int, request: Any) -> list[int]:
        return CHAT.say(words[number % len(words)])

    episode, asked = play(history, turns, say=say, context=context, tokens=completion)
    check_laws(episode, asked)
    assert episode.stop_reason in (StopReason.ENDED, StopReason.TOKEN_LIMIT)
    for segment in episode.segments:
        assert len(segment.ids) <= context
        assert len(segment.completion_ids) <= completion


@given(st.integers(1, 9), st.booleans())
@examples(20)
def test_a_history_that_never_changes_anything_changes_nothing(turns: int, system: bool) -> None:
    preamble = [Message("system", "Be brief.")] * system
    plain, asked = play(None, turns, preamble=preamble)
    for history in (last_turns(9), notes(), rendered, lambda shown: None):
        kept, asked_too = play(history, turns, preamble=preamble, context=10_000)
        assert (kept.segments, kept.turns, asked_too) == (plain.segments, plain.turns, asked)


def test_the_last_turns_are_shown_after_the_observation_before_them() -> None:
    episode, asked = play(last_turns(1), 4, preamble=[Message("system", "Be brief.")])
    assert [CHAT.show(prompt) for prompt, _ in asked[-1:]] == [
        "<system>Be brief.<end><user>Count.\n\no0\n\n[Earlier turns are left out.]\n\no2<end><assistant>a2<end>"
        "<user>o3<end><assistant>"
    ]
    assert (episode.stop_reason, episode.success, len(episode.segments)) == (StopReason.ENDED, True, 2)


def test_notes_are_sampled_in_the_old_segment_shown_in_the_new_one_and_are_no_turn() -> None:
    episode, asked = play(notes(ask="Notes?"), 9, context=120)
    check_laws(episode, asked)
    first, second, *_ = episode.segments
    number = next(place for place, (prompt, _) in enumerate(asked) if "Notes?" in CHAT.show(prompt))
    assert CHAT.show(first.completion_ids).endswith(f"<user>Notes?<end><assistant>a{number}<end>")
    assert f"Count.\n\no0\n\nYour notes:\na{number}\n\no{number}<end>" in CHAT.show(second.prompt_ids)
    assert (len(episode.turns), episode.success) == (9, True)
    assert [len(turn.spans) for turn in episode.turns].count(2) == len(episode.segments) - 1


@pytest.mark.parametrize("history", [last_turns(6), notes(), notes(after=20)])
def test_an_episode_of_300_turns_in_a_context_of_2048_tokens_ends_by_its_game(history: Any) -> None:
    filler = " and more" * 3
    assert play(None, 300, filler=filler, context=2048)[0].stop_reason is StopReason.TOKEN_LIMIT
    episode, asked = play(history, 300, filler=filler, context=2048, tokens=1536)
    assert (episode.stop_reason, len(episode.turns)) == (StopReason.ENDED, 300)
    check_laws(episode, asked)
    computed = sum(len(segment.ids) for segment in episode.segments)
    assert computed < 300 * 2048 / 8, "histories are cut in steps, so that few prompts are computed anew"


@pytest.mark.parametrize("history", [last_turns(3), notes()])
def test_what_cannot_be_shortened_enough_ends_the_episode(history: Any) -> None:
    episode, asked = play(history, 9, filler="x" * 200, context=440)
    assert episode.stop_reason is StopReason.TOKEN_LIMIT
    check_laws(episode, asked)


def test_a_history_that_fails_leaves_the_episode_unscored_and_one_that_returns_nonsense_is_refused() -> None:
    episode, _ = play(lambda shown: shown.messages[99])
    assert (episode.stop_reason, episode.scored) == (StopReason.ENV_ERROR, False)
    for nonsense in ([], ["text"], 7):
        with pytest.raises(ConfigError, match="history"):
            play(lambda shown, returned=nonsense: returned)


class Numbers(ByteChat):
    """Chat of a template that numbers its messages, so that nothing can be appended."""

    refusal = "it numbers messages"

    def open(self, messages: Any) -> Any:
        numbered = [Message(one.role, f"{number}. {one.content}") for number, one in enumerate(messages)]
        return super().open(numbered)

    def reply(self, text: str, *, closed: bool) -> Any:
        raise ChatTemplateError(self.refusal)


@pytest.mark.parametrize("history", [rendered, last_turns(2), notes(after=2), lambda shown: None])
def test_a_template_that_does_not_continue_is_rendered_anew_with_any_history(history: Any) -> None:
    episode, asked = play(history, 6, chat=Numbers(), context=900)
    assert episode.success, episode.error
    check_laws(episode, asked)


@pytest.mark.parametrize("history", [last_turns(1), notes(after=1)])
def test_messages_before_the_first_observation_are_never_left_out(history: Any) -> None:
    preamble = [Message("user", "An example."), Message("assistant", "Its answer.")]
    episode, asked = play(history, 6, preamble=preamble)
    check_laws(episode, asked)
    assert len(episode.segments) > 1
    for segment in episode.segments:
        assert all(text in CHAT.show(segment.prompt_ids) for text in ("An example.", "Its answer.", RULES))


def test_an_engine_that_fails_while_notes_are_written_ends_the_rollout() -> None:
    def say(number: int, request: Any) -> Any:
        if number == 3:
            raise EngineError("no memory")
        return CHAT.say("a")

    with pytest.raises(EngineError, match="no memory"):
        play(notes(after=1), 6, say=say)


def test_notes_after_which_there_is_no_room_belong_to_the_turn_before() -> None:
    def say(number: int, request: Any) -> Any:
        return CHAT.say("long " * 30 if ASK[:20] in CHAT.show(request.prompt_ids)[-600:] else "a")

    episode, asked = play(notes(after=2), 6, say=say, tokens_per_turn=200, context=400)
    check_laws(episode, asked)
    spans = [span for turn in episode.turns for span in turn.spans]
    assert sum(span.stop - span.start for span in spans) == sum(episode.row.mask)


def test_a_history_may_wait() -> None:
    async def slow(shown: Any) -> Any:
        await asyncio.sleep(0)
        return [*shown.messages[:1], shown.messages[-1]]

    episode, asked = play(slow, 4)
    check_laws(episode, asked)
    assert len(episode.segments) == 4


# ---------------------------------------------------------------------------------------------------------------------
# Conversations that the chat template renders anew before every turn
# ---------------------------------------------------------------------------------------------------------------------

RENDERED = sorted(TEMPLATES.keys() - WANTS_PARTS)


@cache
def rendering(name: str) -> tuple[Chat, Any]:
    tokenizer = make_tokenizer(TEMPLATES[name])
    return Chat(tokenizer), tokenizer


def thinks(tokenizer: Any, name: str, number: int) -> str:
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
def test_every_turn_is_what_the_template_renders_of_the_conversation(name: str, thinking: bool) -> None:
    chat, tokenizer = rendering(name)
    end = tokenizer.encode("<|im_end|>", add_special_tokens=False)

    def say(number: int, request: Any) -> Any:
        if not thinking:
            return chat.say(f"a{number}")
        return [*tokenizer.encode(thinks(tokenizer, name, number), add_special_tokens=False), *(chat.stop_ids or end)]

    episode, asked = play(rendered, 10, chat=chat, say=say, tokens_per_turn=200)
    assert episode.success, episode.error
    check_laws(episode, asked)
    begins = {tuple(segment.prompt_ids) for segment in episode.segments}
    messages = [{"role": "user", "content": f"{RULES}\n\no0"}]
    for turn, (prompt, _) in enumerate(asked):
        options = {"add_generation_prompt": True}
        assert chat.encoder.decode(prompt) == tokenizer.apply_chat_template(messages, tokenize=False, **options)
        if tuple(prompt) in begins:
            assert prompt == list(tokenizer.apply_chat_template(messages, return_dict=False, **options))
        thought = {"thinking" if name.startswith(("gptoss", "lfm2_2_5")) else "reasoning_content": f"Hm {turn}."}
        messages.append({"role": "assistant", "content": f"a{turn}", **(thought if thinking else {})})
        messages.append({"role": "user", "content": f"o{turn + 1}"})


def test_qwen3_drops_earlier_thinking_and_each_turn_is_trained_as_it_was_seen() -> None:
    chat, tokenizer = rendering("qwen3")

    def say(number: int, request: Any) -> Any:
        return [*tokenizer.encode(thinks(tokenizer, "qwen3", number), add_special_tokens=False), *chat.stop_ids]

    episode, asked = play(rendered, 10, chat=chat, say=say, tokens_per_turn=200)
    check_laws(episode, asked)
    assert len(episode.segments) == 10
    last = chat.encoder.decode(episode.segments[-1].prompt_ids)
    assert "Hm" not in last
    assert all(f"a{number}<|im_end|>" in last for number in range(9))
    episode, asked = play(notes(after=2), 6, chat=chat, say=say, tokens_per_turn=200)
    check_laws(episode, asked)
    assert episode.success
    assert any(ASK in chat.encoder.decode(prompt) for prompt, _ in asked)
