"""Laws 1 to 3: what is trained on is what was sampled, extended by what the chat template puts around a message."""

from collections.abc import Sequence
from copy import copy
from datetime import UTC, datetime
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from support.lanes import examples
from support.templates import ADDED, CHATML, SPECIAL, TEMPLATES, WANTS_PARTS, encode, make_tokenizer
from transformers.utils import chat_template_utils

from gym_trl.chat.delimiter import DelimiterChat
from gym_trl.chat.protocol import Chat
from gym_trl.chat.template import TemplateChat
from gym_trl.chat.transcript import Transcript
from gym_trl.errors import ChatTemplateError, TranscriptError
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import Answer, Logprobs, Message, TokenIds, TokenTrace

# ---------------------------------------------------------------------------------------------------------------------
# The templates that TRL ships, on a small tokenizer
# ---------------------------------------------------------------------------------------------------------------------


# The history that these render is what the model was prompted with and sampled, as long as it does not think.
KEEPS_HISTORY = {
    *("cohere", "cohere_training", "cohere2", "cohere2_training"),
    *("diffusion_gemma", "diffusion_gemma_training", "gemma", "gemma_training", "gemma3", "gemma3_training"),
    *("gemma4", "gemma4_v2", "gemma4_v3", "gemma4_v4", "gemma4_v5"),
    *("lfm2", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "lfm2_training", "lfm2_v2", "lfm2_v2_training"),
    *("llama3", "llama3_1", "llama3_2", "llama3_training"),
    *("phi3", "phi3_5", "phi3_5_training", "phi3_training"),
    *("qwen2_5", "qwen2_5_training", "qwen2_5_vl", "qwen2_5_vl_training", "qwen3", "qwen3_5_nothink_training"),
    *("qwen3_instruct_2507", "qwen3_instruct_2507_training", "qwen3_vl", "qwen3_vl_training"),
}
REFUSES_SYSTEM = {"gemma", "gemma_training"}
ENDS_TURNS_WITH = {
    "cohere2": "<|END_OF_TURN_TOKEN|>",
    "deepseekv3": "<｜end▁of▁sentence｜>",  # noqa: RUF001 -- DeepSeek's bars are wide
    "gemma3": "<end_of_turn>",
    "glm4moe": "<|user|>",
    "gptoss": "<|return|>",
    "llama3": "<|eot_id|>",
    "llava_next": "</s>",
    "phi3": "<|end|>",
    "qwen3": "<|im_end|>",
    "smolvlm": "<end_of_utterance>",
}

PLAIN = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


@cache
def make_chat(name: str) -> tuple[TemplateChat, Any]:
    tokenizer = make_tokenizer(TEMPLATES[name])
    return TemplateChat(tokenizer), tokenizer


def decode(tokenizer: Any, ids: TokenIds) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def as_dicts(name: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    if name not in WANTS_PARTS:
        return [message.as_dict() for message in messages]
    return [{"role": m.role, "content": [{"type": "text", "text": m.content}]} for m in messages]


def render(name: str, messages: Sequence[Message], *, prompt: bool = True) -> str:
    tokenizer = make_tokenizer(TEMPLATES[name])
    said = as_dicts(name, messages)
    return str(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=prompt))


def tokenize(name: str, messages: Sequence[Message]) -> TokenIds:
    tokenizer = make_tokenizer(TEMPLATES[name])
    said = as_dicts(name, messages)
    return list(tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False))


def ending(name: str) -> str:
    """Return the ids that a model that learned this template samples after its answer."""
    chat, tokenizer = make_chat(name)
    (stop,) = chat.stop_ids
    mark = decode(tokenizer, [stop])
    last = render(name, [Message("user", "Why?"), Message("assistant", "So.")], prompt=False).rpartition("So.")[2]
    return last.partition(mark)[0] + mark


def play(name: str, opening: Sequence[Message], turns: Sequence[tuple[str, str]]) -> tuple[Transcript, list[Message]]:
    """An episode of ``(answer, observation)`` turns, as ids and as the messages of the same conversation."""
    chat, tokenizer = make_chat(name)
    transcript, messages = Transcript(chat.open(opening)), list(opening)
    delta: TokenIds = []
    for answer, observation in turns:
        ids = encode(tokenizer, answer + ending(name))
        transcript.commit(delta, ids, [-1.0] * len(ids))
        delta = chat.reply(observation, closed=chat.closes(ids))
        messages += [Message("assistant", answer), Message("user", observation)]
    ids = encode(tokenizer, "x")
    transcript.commit(delta, ids, [-1.0])
    return transcript, messages


every_template = pytest.mark.parametrize("name", TEMPLATES)
texts = st.text(st.characters(exclude_categories=["Cs", "Cn"]), max_size=30).filter(
    lambda text: not (SPECIAL.search(text) or ADDED.search(text))  # an observation with control tokens loses them
)
answers = texts.map(str.strip).filter(bool)
conversations = st.lists(st.tuples(answers, texts), min_size=1, max_size=3)
OPENING = [Message("user", "Guess a number.")]
TURNS = [("7", "Higher.\n"), ("I say\n\n9!", "Lower"), ("8", "Yes.")]


# ---------------------------------------------------------------------------------------------------------------------
# Law 3
# ---------------------------------------------------------------------------------------------------------------------


@every_template
def test_a_template_opens_replies_ends_and_is_read(name: str) -> None:
    chat, tokenizer = make_chat(name)
    system = Message("system", "Play well.")
    opened = chat.open(OPENING)
    assert opened == tokenize(name, OPENING)
    folded = [Message("user", "Play well.\n\nGuess a number.")]
    assert chat.open([system, *OPENING]) == tokenize(name, folded if name in REFUSES_SYSTEM else [system, *OPENING])

    transcript, messages = play(name, OPENING, TURNS)
    whole = transcript.prompt_ids + transcript.completion_ids[:-1]
    assert (whole == tokenize(name, messages)) == (name in KEEPS_HISTORY)

    cut, closed = chat.reply("Higher.", closed=False), chat.reply("Higher.", closed=True)
    assert cut[-len(closed) :] == closed
    end = cut[: -len(closed)]
    assert chat.closes(end)
    assert decode(tokenizer, cut) == decode(tokenizer, end) + decode(tokenizer, closed)
    assert tokenizer.bos_token_id not in cut
    assert opened.count(tokenizer.bos_token_id) <= 1

    assert chat.closes(encode(tokenizer, "7" + ending(name)))
    assert not any(map(chat.closes, ([], encode(tokenizer, "7"), encode(tokenizer, "7<eos>"))))
    if name in ENDS_TURNS_WITH:
        assert chat.stop_ids == {tokenizer.convert_tokens_to_ids(ENDS_TURNS_WITH[name])}
        assert chat.stop_strings == ()

    said = chat.say("I say <action>7</action>.")
    assert chat.text(said).text == "I say <action>7</action>."
    assert split_thinking(decode(tokenizer, said)).thinking == ""
    assert {said[-1]} == chat.stop_ids
    assert chat.closes(said)
    assert not chat.stop_ids & {*said[:-1]}
    if name in KEEPS_HISTORY - {"qwen3"}:
        conversation = [*OPENING, Message("assistant", "7"), Message("user", "Higher.")]
        assert opened + chat.say("7") + closed == tokenize(name, conversation)

    thought = "</think>" if decode(tokenizer, opened).endswith("<think>\n") else ""
    assert chat.text(encode(tokenizer, thought + "It is 7." + ending(name))).text == "It is 7."


def test_equal_openings_are_equal_lists_that_share_nothing() -> None:
    chat = TemplateChat(make_tokenizer(TEMPLATES["qwen3"]))
    first = chat.open(OPENING)
    before = first.copy()
    first.append(0)
    for turn in range(40):  # more than are kept
        chat.open([*OPENING, Message("assistant", f"{turn}"), Message("user", "Lower.")])
    assert chat.open(OPENING) == chat.open(tuple(OPENING)) == before


def test_an_opening_with_the_date_is_rendered_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    chat = TemplateChat(make_tokenizer("{{ strftime_now('%d %B %Y') }}" + CHATML))
    before = chat.open(OPENING)
    another_day = SimpleNamespace(now=lambda: datetime(2001, 1, 1, tzinfo=UTC))
    monkeypatch.setattr(chat_template_utils, "datetime", another_day)
    assert chat.open(OPENING) != before


@pytest.mark.parametrize("name", sorted(KEEPS_HISTORY & TEMPLATES.keys()))
@examples(10)
@given(question=texts, turns=conversations)
def test_a_transcript_equals_one_rendering_of_the_whole_conversation(
    name: str, question: str, turns: list[tuple[str, str]]
) -> None:
    system = [] if name in REFUSES_SYSTEM else [Message("system", "Play well.")]
    transcript, messages = play(name, [*system, Message("user", question)], turns)
    assert transcript.prompt_ids + transcript.completion_ids[:-1] == tokenize(name, messages)


@every_template
@examples(5)
@given(observation=texts, turns=st.lists(st.tuples(answers, texts), max_size=2))
def test_a_reply_is_what_the_template_puts_around_the_new_message(
    name: str, observation: str, turns: list[tuple[str, str]]
) -> None:
    chat, tokenizer = make_chat(name)
    before = [Message(role, said) for turn in turns for role, said in zip(("user", "assistant"), turn, strict=True)]
    messages = [*before, *OPENING, Message("assistant", "It is 7."), Message("user", observation)]
    reply = chat.reply(observation, closed=False)
    assert render(name, messages).endswith("It is 7." + decode(tokenizer, reply))


ENDINGS = st.lists(st.sampled_from(["<|end|>", "<|close|>", "<|eos|>", "\n", ""]), max_size=3, unique=True).map("".join)


def with_eos(template: str, eos: str) -> Any:
    tokenizer = copy(make_tokenizer(f"{template}<|end|><|close|><|eos|>"))
    tokenizer.eos_token, tokenizer.chat_template = eos, template
    return tokenizer


def with_ends(after: str, final: str, *, prompts: bool, head: str = "<|user|>") -> str:
    """A template that writes ``after`` behind each answer and ``final`` behind the last one."""
    prompt = "{% if true %}" if prompts else "{% if add_generation_prompt %}"
    return (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{{ m.content }}" + after + "{% else %}"
        f"{head}{{{{ m.content }}}}{{% endif %}}{{% endfor %}}{prompt}<|assistant|>{{% else %}}{final}{{% endif %}}"
    )


@examples(60)
@given(
    after=ENDINGS,
    final=ENDINGS,
    prompts=st.booleans(),
    eos=st.sampled_from(["<|end|>", "<|close|>", "<|eos|>", "</s>"]),
)
@example(after="<|close|><|end|>", final="", prompts=True, eos="<|end|>")  # Command-A
@example(after="", final="<|eos|>", prompts=False, eos="<|eos|>")  # metharme
@example(after="<|end|>", final="<|eos|>", prompts=False, eos="<|eos|>")  # gpt-oss
def test_of_what_follows_an_answer_only_what_the_sampled_end_covers_is_left_out(
    after: str, final: str, prompts: bool, eos: str
) -> None:
    tokenizer = with_eos(with_ends(after, final, prompts=prompts), eos)
    chat = TemplateChat(tokenizer)
    between = f"{after}<|user|>"
    for sampled in ("7", f"7{eos}", f"7{between.partition(eos)[0]}{eos}"):
        ids = encode(tokenizer, sampled)
        end = eos if sampled.endswith(eos) else ""
        added = between.partition(end)[2] if end and end in between else between
        reply = decode(tokenizer, chat.reply("Higher.", closed=chat.closes(ids)))
        assert reply == f"{added}Higher.<|assistant|>"
    if eos in between:
        assert chat.stop_ids == {tokenizer.eos_token_id}
    assert decode(tokenizer, chat.say("7")).endswith(eos) or eos not in between


def test_an_end_that_only_the_generation_config_has_is_left_out_too() -> None:
    tokenizer = with_eos(with_ends("<|end|><|close|>", "", prompts=True), "</s>")
    close = tokenizer.convert_tokens_to_ids("<|close|>")
    ids = encode(tokenizer, "7<|end|><|close|>")
    for ends, added in (((), "<|end|><|close|>"), ((close, tokenizer.eos_token_id), "")):
        chat = TemplateChat(tokenizer, end_ids=ends)
        reply = decode(tokenizer, chat.reply("8", closed=chat.closes(ids)))
        assert reply == f"{added}<|user|>8<|assistant|>"
    assert chat.stop_ids == {close}


def test_a_header_that_ends_the_turn_is_kept_where_another_end_was_sampled() -> None:
    tokenizer = with_eos(with_ends("", "", prompts=False), "</s>")
    chat = TemplateChat(tokenizer)
    for sampled, reply in (("7</s>", "<|user|>8<|assistant|>"), ("7<|user|>", "8<|assistant|>")):
        closed = chat.closes(encode(tokenizer, sampled))
        assert decode(tokenizer, chat.reply("8", closed=closed)) == reply


@pytest.mark.parametrize(
    ("name", "response"),
    [
        ("deepseekv3", "\n</think>\n\n7<\uff5cend\u2581of\u2581sentence\uff5c>"),  # its prompt opens thinking
        ("glm4moe", "\n<think></think>\n7<|user|>"),
        ("gptoss", "<|channel|>final<|message|>7<|return|>"),
        ("qwen3", "<think>\n\n</think>\n\n7<|im_end|>"),
        ("smolvlm", " 7<end_of_utterance>"),
    ],
)
def test_a_response_has_what_stands_before_an_answer(name: str, response: str) -> None:
    if name not in TEMPLATES:
        pytest.skip(f"this TRL has no template {name}")
    chat, tokenizer = make_chat(name)
    assert decode(tokenizer, chat.say("7")) == response


@pytest.mark.parametrize("text", ["<|im_end|>", "7<|im_end|>8", "<think>8</think>7", "\ud800"])
def test_a_response_that_its_tokens_would_change_is_refused(text: str) -> None:
    with pytest.raises(ChatTemplateError, match="cannot write the response"):
        make_chat("qwen3")[0].say(text)


def test_a_response_without_an_end_is_refused() -> None:
    tokenizer = copy(make_tokenizer(PLAIN))
    tokenizer.eos_token = None
    with pytest.raises(ChatTemplateError, match="has no eos_token"):
        TemplateChat(tokenizer).say("7")


@pytest.mark.parametrize("sentencepiece", [False, True])
@examples(20)
@given(turns=st.lists(st.tuples(st.text("ab !\n").map(str.strip).filter(bool), st.text("ab !\n")), max_size=3))
def test_a_boundary_between_turns_adds_no_blank(sentencepiece: bool, turns: list[tuple[str, str]]) -> None:
    tokenizer = make_tokenizer(CHATML, sentencepiece=sentencepiece)
    chat, messages = TemplateChat(tokenizer), list(OPENING)
    ids = chat.open(messages)
    for answer, observation in turns:
        # What a model samples continues the text, so it has no leading blank either.
        sampled = encode(tokenizer, f"<|im_end|>{answer}<|im_end|>")[1:]
        ids += sampled + chat.reply(observation, closed=chat.closes(sampled))
        messages += [Message("assistant", answer), Message("user", observation)]
    said = [message.as_dict() for message in messages]
    assert decode(tokenizer, ids) == decode(
        tokenizer, tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)
    )


def test_the_cost_of_a_reply_does_not_depend_on_the_episode() -> None:
    class Counting:
        def __init__(self, tokenizer: Any) -> None:
            self.inner, self.characters = tokenizer, 0

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def apply_chat_template(self, *args: Any, **kwargs: Any) -> str:
            rendered = str(self.inner.apply_chat_template(*args, **kwargs))
            self.characters += len(rendered)
            return rendered

    tokenizer = Counting(make_tokenizer(CHATML))
    chat = TemplateChat(tokenizer)
    chat.open([Message("user", "long " * 1000)])
    chat.reply("Higher.", closed=True)  # the first one finds out what the template writes around such a message
    costs = set()
    for _ in range(20):
        tokenizer.characters = 0
        chat.reply("Higher.", closed=True)
        costs.add(tokenizer.characters)
    assert len(costs) == 1
    assert max(costs) < 150


# ---------------------------------------------------------------------------------------------------------------------
# Roles, options, odd text
# ---------------------------------------------------------------------------------------------------------------------


def test_options_reach_every_rendering() -> None:
    tokenizer = make_tokenizer(TEMPLATES["qwen3"])
    chat = TemplateChat(tokenizer, enable_thinking=False)
    for ids in (chat.open(OPENING), chat.reply("Higher.", closed=True)):
        assert decode(tokenizer, ids).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert chat.text(encode(tokenizer, "7<|im_end|>")) == Answer("", "7")


def test_a_system_message_that_would_be_dropped_goes_in_front_too() -> None:
    tokenizer = make_tokenizer(CHATML.replace("messages %}", "messages if m.role != 'system' %}"))
    opened = TemplateChat(tokenizer).open([Message("system", "Play well."), *OPENING])
    assert (
        decode(tokenizer, opened)
        == "<|im_start|>user\nPlay well.\n\nGuess a number.<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("name", sorted({"qwen3", "llama3", "glm4moe", "lfm2", "muse_glimmer"} & TEMPLATES.keys()))
def test_tools_answer_where_the_template_lets_them(name: str) -> None:
    chat, tokenizer = make_chat(name)
    messages = [*OPENING, Message("assistant", "It is 7."), Message("tool", "Higher.")]
    reply = decode(tokenizer, chat.reply("Higher.", role="tool", closed=False))
    assert render(name, messages).endswith("It is 7." + reply)


@pytest.mark.parametrize("name", sorted({"gemma3", "deepseekv3", "phi3", "gptoss"} & TEMPLATES.keys()))
def test_a_role_that_the_template_has_no_place_for_is_refused(name: str) -> None:
    with pytest.raises(ChatTemplateError, match="tool"):
        make_chat(name)[0].reply("Higher.", role="tool", closed=True)


def test_a_turn_that_ended_on_another_roles_header_keeps_the_header_of_this_one() -> None:
    chat, tokenizer = make_chat("glm4moe")
    assert decode(tokenizer, chat.reply("7", role="tool", closed=True)).startswith("<|observation|>")
    assert decode(tokenizer, chat.reply("7", closed=True)) == "\n7<|assistant|>"


@pytest.mark.parametrize("odd", ["\ud800", "a\x00b", "\ufdd0\ufdd1\ufdd2\ufdd3", "\ufeff", "", " ", "\udc80\ud83d"])
def test_odd_text_does_not_raise(odd: str) -> None:
    tokenizer = make_tokenizer(CHATML)
    for chat in (TemplateChat(tokenizer), DelimiterChat(tokenizer)):
        assert chat.open([Message("user", odd)])
        assert chat.reply(odd, closed=True)


@pytest.mark.parametrize("ids", [[], [10**6], [-1], [1, 10**9, 2], [2**70]])
def test_ids_that_stand_for_nothing_do_not_raise(ids: list[int]) -> None:
    tokenizer = make_tokenizer(CHATML)
    for chat in (TemplateChat(tokenizer), DelimiterChat(tokenizer)):
        assert isinstance(chat.text(ids), Answer)
        assert not chat.closes(ids)


# ---------------------------------------------------------------------------------------------------------------------
# Thinking
# ---------------------------------------------------------------------------------------------------------------------

SAID = {
    "qwen3": ["<think>\nhm\n</think>\n\n7<|im_end|>"],
    "qwen3_6": ["hm\n</think>\n\n7<|im_end|>", "<think>hm</think>7"],
    "deepseekv3": ["hm</think>7<｜end▁of▁sentence｜>"],  # noqa: RUF001 -- as above
    "glm4moe": ["\n<think>hm</think>\n7<|user|>"],
    "nemotron_3_nano": ["hm</think>7<|im_end|>"],
    "gemma4": ["<|channel>thought\nhm<channel|>7<turn|>"],
    "gptoss": ["<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>7<|return|>"],
    "muse_glimmer": [" to=self<|message|>hm<|eom|><|start|>assistant to=user<|message|>7<|eot|>"],
}


@pytest.mark.parametrize(("name", "said"), [(n, s) for n, all_said in SAID.items() if n in TEMPLATES for s in all_said])
def test_thinking_is_kept_apart_from_the_answer(name: str, said: str) -> None:
    chat, tokenizer = make_chat(name)
    assert chat.text(encode(tokenizer, said)) == Answer("hm", "7")


@pytest.mark.parametrize("name", sorted({"qwen3_6", "deepseekv3", "nemotron_3_nano"} & TEMPLATES.keys()))
def test_thinking_that_the_prompt_opened_and_nobody_closed_is_thinking(name: str) -> None:
    chat, tokenizer = make_chat(name)
    assert chat.text(encode(tokenizer, "it could be 7")) == Answer("it could be 7", "")


# ---------------------------------------------------------------------------------------------------------------------
# What cannot be extended
# ---------------------------------------------------------------------------------------------------------------------

REFUSED = {
    "drops or repeats": CHATML.replace("messages %}", "messages[-1:] %}"),
    "drops or repeats a": CHATML.replace("{{ m.content }}", "{{ m.content }}{{ m.content }}"),
    "changes the order": CHATML.replace("messages %}", "messages[::-1] %}"),
    "no generation prompt": CHATML.partition("{% if")[0],
    "or a different one": CHATML.replace("{% if add_", "{% if messages | length < 2 and add_"),
    "longer conversation": CHATML.replace("{{ m.role", "{{ 'again ' if loop.index > 3 and loop.last }}{{ m.role"),
    "begins a conversation differently after 2 answers": "{{ 'Again. ' if messages | length > 3 }}" + CHATML,
    "raises": "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}" + CHATML,
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_template_that_cannot_be_extended_is_refused(why: str) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        TemplateChat(make_tokenizer(CHATML), chat_template=REFUSED[why])
    for hint in ("tiny's", why, "chat_template=", "DelimiterChat"):
        assert hint in str(caught.value)


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(ChatTemplateError, match=r"tiny has no chat template; .*chat_template=\.\.\..*DelimiterChat"):
        TemplateChat(make_tokenizer(None))


def test_a_processor_lends_its_tokenizer_and_its_template() -> None:
    class Processor:
        name_or_path, chat_template, tokenizer = "eyes", CHATML, make_tokenizer(None)

    opened = TemplateChat(Processor()).open(OPENING)
    assert decode(Processor.tokenizer, opened) == "<|im_start|>user\nGuess a number.<|im_end|>\n<|im_start|>assistant\n"


def test_one_of_several_templates_can_be_named() -> None:
    tokenizer = make_tokenizer(CHATML)
    several = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, chat_template={"default": PLAIN, "marks": CHATML}
    )
    assert decode(several, TemplateChat(several).open(OPENING)) == "user: Guess a number.\nassistant: "
    assert TemplateChat(several, chat_template="marks").open(OPENING) == TemplateChat(tokenizer).open(OPENING)


def test_a_template_that_always_prompts_ends_turns_where_the_answer_ends() -> None:
    tokenizer = make_tokenizer(CHATML)
    chat = TemplateChat(tokenizer, chat_template=CHATML.replace("{% if add_generation_prompt %}", "{% if true %}"))
    assert chat.stop_ids == {tokenizer.convert_tokens_to_ids("<|im_end|>")}
    assert decode(tokenizer, chat.reply("7", closed=True)) == "\n<|im_start|>user\n7<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_without_control_tokens_is_extended_by_all_that_follows_an_answer() -> None:
    tokenizer = make_tokenizer(PLAIN)
    chat = TemplateChat(tokenizer)
    assert chat.stop_ids == frozenset()
    assert not chat.closes(encode(tokenizer, "7\n"))
    for closed in (False, True):
        assert decode(tokenizer, chat.reply("Higher.", closed=closed)) == "\nuser: Higher.\nassistant: "


# ---------------------------------------------------------------------------------------------------------------------
# Hand-written markers
# ---------------------------------------------------------------------------------------------------------------------


def byte_chat(**marks: Any) -> DelimiterChat:
    return DelimiterChat(lambda text: [*text.encode()], lambda ids: bytes(ids).decode(errors="replace"), **marks)


@given(question=texts, turns=conversations, end=st.sampled_from(["\n", "</a>", "\n\n"]))
def test_delimiters_write_one_conversation(question: str, turns: list[tuple[str, str]], end: str) -> None:
    chat = byte_chat(bos="^", assistant=("A: ", end))
    ids, text = chat.open([Message("system", "S"), Message("user", question)]), f"^S\n\nUser: {question}\nA: "
    for answer, observation in turns:
        sampled = [*f"{answer}{end}".encode()]
        assert chat.closes(sampled)
        ids += sampled + chat.reply(observation, closed=True)
        text += f"{answer}{end}User: {observation}\nA: "
    assert bytes(ids).decode() == text


def test_an_end_of_one_id_is_a_stop_id_and_a_longer_one_a_stop_string() -> None:
    one, many = byte_chat(), byte_chat(assistant=("A: ", "</a>"))
    assert (one.stop_ids, one.stop_strings) == (frozenset([ord("\n")]), ())
    assert (many.stop_ids, many.stop_strings) == (frozenset(), ("</a>",))
    assert many.text([*b"<think>hm</think>7</a>"]) == Answer("hm", "7")


def test_an_end_that_may_be_merged_into_the_answer_is_a_stop_string_too() -> None:
    tokenizer = make_tokenizer(None)
    chat = DelimiterChat(tokenizer)
    merged = encode(tokenizer, "7!\n")
    assert chat.stop_ids == {*encode(tokenizer, "\n")}
    assert merged[-1] not in chat.stop_ids
    assert chat.stop_strings == ("\n",)
    assert chat.closes(merged)
    assert decode(tokenizer, chat.reply("Higher.", closed=True)) == "User: Higher.\nAssistant: "
    assert decode(tokenizer, chat.reply("Higher.", closed=False)) == "\nUser: Higher.\nAssistant: "


def test_a_reply_loses_nothing_to_the_end_it_could_be_merged_with() -> None:
    tokenizer = make_tokenizer(None)
    chat = DelimiterChat(tokenizer, user=("\nUser: ", ""), assistant=("\nModel: ", "!"))
    assert encode(tokenizer, "!\n")[:-1] != encode(tokenizer, "!")
    assert decode(tokenizer, chat.reply("Higher.", closed=True)) == "\nUser: Higher.\nModel: "


def test_a_control_token_can_be_a_delimiter() -> None:
    tokenizer = make_tokenizer(None)
    chat = DelimiterChat(tokenizer, bos="<bos>", assistant=("", "<eos>"))
    assert (chat.stop_ids, chat.stop_strings) == (frozenset([tokenizer.eos_token_id]), ())
    assert chat.open(OPENING).count(tokenizer.bos_token_id) == 1
    assert chat.text([*encode(tokenizer, "<think>hm</think>7"), tokenizer.eos_token_id]) == Answer("hm", "7")
    assert tokenizer.eos_token_id not in chat.reply("<eos>", closed=True)


def test_delimiters_name_what_is_missing() -> None:
    with pytest.raises(ChatTemplateError, match=r"pass tool=\('\.\.\.', '\.\.\.'\)"):
        byte_chat().reply("7", role="tool", closed=True)
    with pytest.raises(ChatTemplateError, match="end of turn"):
        byte_chat(assistant=("A: ", ""))
    assert bytes(byte_chat(tool=("T: ", "\n")).reply("7", role="tool", closed=True)) == b"T: 7\nAssistant: "


# ---------------------------------------------------------------------------------------------------------------------
# Laws 1 and 2
# ---------------------------------------------------------------------------------------------------------------------

token_ids = st.lists(st.integers(0, 9), max_size=5)
logprobs = st.one_of(st.none(), st.just(float("nan")), st.floats(max_value=0, allow_nan=False))
sampled_ids = st.lists(st.tuples(st.integers(0, 9), logprobs), min_size=1, max_size=5)
deltas_and_samples = st.lists(st.tuples(token_ids, sampled_ids), max_size=5)


def replay(opening: TokenIds, turns: list[tuple[TokenIds, list[tuple[int, float | None]]]]) -> tuple[Transcript, Any]:
    transcript, prompts = Transcript(opening), []
    for delta, sampled in turns:
        prompts.append(transcript.prompt(delta))
        transcript.commit(delta, [i for i, _ in sampled], [logprob for _, logprob in sampled])
    return transcript, prompts


@given(opening=token_ids, turns=deltas_and_samples)
def test_every_prompt_is_a_prefix_of_the_transcript(opening: TokenIds, turns: Any) -> None:
    transcript, prompts = replay(opening, turns)
    whole = transcript.prompt_ids + transcript.completion_ids
    assert transcript.prompt_ids == opening
    assert whole == opening + [i for delta, sampled in turns for i in [*delta, *(i for i, _ in sampled)]]
    for prompt, (_, sampled) in zip(prompts, turns, strict=True):
        assert whole[: len(prompt) + len(sampled)] == prompt + [i for i, _ in sampled]


@given(opening=token_ids, turns=deltas_and_samples)
def test_the_mask_is_one_exactly_where_the_engine_sampled(opening: TokenIds, turns: Any) -> None:
    transcript, _ = replay(opening, turns)
    assert transcript.mask == [bit for delta, sampled in turns for bit in [0] * len(delta) + [1] * len(sampled)]
    lengths = {len(transcript.completion_ids), len(transcript.mask), len(transcript.logprobs)}
    assert lengths == {transcript.completion_length}
    assert len(transcript) == len(opening) + transcript.completion_length
    assert not transcript.mask or transcript.mask[-1] == 1
    pairs = list(zip(transcript.mask, transcript.logprobs, strict=True))
    assert all(logprob == 0.0 for bit, logprob in pairs if not bit)
    assert all(logprob is None or logprob <= 0 for bit, logprob in pairs if bit)


@pytest.mark.parametrize(("ids", "given_logprobs"), [([], []), ([1], []), ([1], [0.0, 0.0]), ([], [0.0])])
def test_a_turn_that_does_not_add_up_is_refused_and_leaves_no_trace(ids: TokenIds, given_logprobs: Logprobs) -> None:
    transcript = Transcript([1])
    with pytest.raises(TranscriptError):
        transcript.commit([2], ids, given_logprobs)
    assert (len(transcript), transcript.trace) == (1, TokenTrace([1]))


def test_nobody_else_can_change_a_transcript() -> None:
    opening, delta = [1], [2]
    transcript = Transcript(opening)
    transcript.commit(delta, [3], [-1.0])
    for outside in (opening, delta, transcript.prompt([]), transcript.completion_ids, transcript.mask):
        outside.append(9)
    transcript.logprobs.clear()
    assert transcript.prompt_ids + transcript.completion_ids == [1, 2, 3]
    assert (transcript.mask, transcript.logprobs) == ([0, 1], [0.0, -1.0])


def test_both_chats_are_chats() -> None:
    chats: list[Chat] = [byte_chat(), TemplateChat(make_tokenizer(CHATML))]
    assert all(chat.closes([*chat.stop_ids]) for chat in chats)
