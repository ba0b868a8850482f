"""Laws 1, 3 and 16: a conversation continues as one rendering of it says, or the template is refused."""

import random
import warnings
from collections import Counter
from typing import Any

import pytest
import tokenizers
from chat.conversations import Conversation, hold
from chat.foreign_templates import SUITES, foreign, tokenizer_for
from chat.templates import CHATML, TEMPLATES, encode, make_tokenizer
from hypothesis import example, given, strategies as st
from support.lanes import examples

from gym_trl.chat import Chat
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Answer, Message

SYSTEM, ASKED = Message("system", "Play well."), Message("user", "2 + 2?")
# Templates whose rendering of a whole conversation is what the model was given and said, as long as it does not think.
KEEP_HISTORY = {
    "cohere",
    "gemma3",
    "gemma4",
    "lfm2",
    "llama3",
    "llama3_2",
    "phi3",
    "qwen2_5",
    "qwen3_vl_training",
}
ENDS = {
    "cohere2": "<|END_OF_TURN_TOKEN|>",
    "deepseekv3": "<｜end▁of▁sentence｜>",  # noqa: RUF001 -- DeepSeek's bars are wide
    "gemma3": "<end_of_turn>",
    "glm4moe": "<|user|>",
    "gptoss": "<|return|>",
    "llama3": "<|eot_id|>",
    "phi3": "<|end|>",
    "qwen3": "<|im_end|>",
}


def where(condition: str, *, dropped: bool = False) -> str:
    """ChatML that writes a reminder into the messages for which a condition holds, or drops them."""
    message = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    if dropped:
        return CHATML.replace(message, f"{{% if not ({condition}) %}}{message}{{% endif %}}")
    return CHATML.replace("{{ m.content", f"{{% if {condition} %}}Keep to the rules.\n{{% endif %}}{{{{ m.content")


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_each_template_of_trl_continues_as_one_rendering_says(name: str) -> None:
    tokenizer: Any = make_tokenizer(TEMPLATES[name])
    chat = Chat(tokenizer)
    assert not chat.refusal
    hold(chat, tokenizer, seed=name)
    if name in ENDS:
        assert chat.stop_ids == {tokenizer.convert_tokens_to_ids(ENDS[name])}
    if name in KEEP_HISTORY:
        conversation = Conversation(chat, tokenizer, system=False)
        for turn in range(9):
            conversation.say(f"It is {turn}.", None, random.Random(5))
        assert conversation.decode(conversation.ids) == conversation.render(conversation.messages)


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_each_template_of_others_continues_or_is_refused(suite: str) -> None:
    templates = foreign(suite)
    if not templates:
        pytest.skip(f"no {SUITES[suite].package}: make test-full downloads it")
    verdicts = Counter[str]()
    for name, found in templates.items():
        tokenizer = tokenizer_for(*found)
        try:
            chat = Chat(tokenizer)
            refused = bool(chat.refusal)
        except ChatTemplateError:
            refused = True
        verdicts["refused" if refused else "holds"] += 1
        if not refused:
            hold(chat, tokenizer, seed=name)
    assert verdicts.total() >= 30
    assert verdicts["holds"] >= 0.93 * verdicts.total()


CONDITIONS = [
    "loop.index0 >= {n}",
    "messages | length > {n}",
    "messages | length == {n} and loop.first",
    "messages | selectattr('role', 'equalto', 'assistant') | list | length >= {n} and loop.first",
    "messages | length % {n} == 0 and loop.last",
    "loop.revindex == {n}",
    "m.role == 'user' and loop.index // 2 == {n}",
]


@examples(40)
@given(condition=st.sampled_from(CONDITIONS), n=st.integers(2, 16), dropped=st.booleans(), system=st.booleans())
@example(condition="loop.revindex == {n}", n=6, dropped=True, system=False)
@example(condition="messages | length == {n} and loop.first", n=4, dropped=False, system=True)
def test_a_template_that_counts_is_refused_or_continues_as_one_rendering_says(
    condition: str, n: int, dropped: bool, system: bool
) -> None:
    tokenizer: Any = make_tokenizer(where(condition.format(n=n), dropped=dropped))
    try:
        chat = Chat(tokenizer)
    except ChatTemplateError:
        return
    if chat.refusal:
        return
    conversation = Conversation(chat, tokenizer, system=system)
    for turn in range(16):
        conversation.say(f"It is {turn}.", None, random.Random(5))
        assert conversation.decode(conversation.ids) == conversation.render(conversation.messages)


ANSWERED = "messages | selectattr('role', 'equalto', 'assistant') | list | length"
REFUSED = {
    "a window of messages": CHATML.replace("messages %}", "messages[-5:] %}"),
    "a window of many messages": CHATML.replace("messages %}", "messages[-40:] %}"),
    "a reminder from some message on": where("loop.index > 11"),
    "a reminder in the last message": where("messages | length > 41 and loop.last"),
    "another beginning": f"{{% if {ANSWERED} > 3 %}}Summarise.{{% endif %}}{CHATML}",
    "a reminder after thinking": where("loop.index > 1 and '</think>' in loop.previtem.content"),
    "another prompt after some texts": CHATML.replace(
        "%}<|im_start|>a", "%}{{ 'again' if 'http' in messages[0].content }}<|im_start|>a"
    ),
    "answers numbered": CHATML.replace("{{ m.role }}", "{{ m.role }} {{ loop.index }}"),
    "answers counted": CHATML.replace("%}<|im_start|>a", "%}{{ messages | length }}<|im_start|>a"),
    "roles swapped": CHATML.replace("{{ m.role }}", "{{ 'user' if loop.index == 8 else m.role }}"),
    "a limit": "{% if messages | length > 11 %}{{ raise_exception('too long') }}{% endif %}" + CHATML,
    "answers dropped": where("m.role == 'assistant'", dropped=True),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_template_that_depends_on_more_than_the_new_message_is_refused(why: str) -> None:
    tokenizer: Any = make_tokenizer(REFUSED[why])
    chat = Chat(tokenizer)
    assert "history=" in chat.refusal
    with pytest.raises(ChatTemplateError):
        chat.reply("Higher.", closed=True)
    assert chat.open([ASKED]) == encode(
        tokenizer, tokenizer.apply_chat_template([ASKED.as_dict()], tokenize=False, add_generation_prompt=True)
    )


@pytest.mark.parametrize("template", [None, "{{ raise_exception('no') }}"])
def test_a_tokenizer_that_renders_nothing_is_refused(template: str | None) -> None:
    with pytest.raises(ChatTemplateError):
        Chat(make_tokenizer(template))


def test_a_system_message_that_later_turns_would_need_is_refused() -> None:
    """Law 3: SmolLM3's says ``/no_think``, upon which its template closes the thought of each answer."""
    template = CHATML.replace("assistant\n{%", "assistant\n{{ '<think></think>' if '/no' in messages[0].content }}{%")
    chat = Chat(make_tokenizer(template))
    assert chat.open([SYSTEM, ASKED])
    with pytest.raises(ChatTemplateError):
        chat.open([Message("system", "/no_think"), ASKED])


def test_arguments_of_the_template_reach_every_rendering() -> None:
    tokenizer: Any = make_tokenizer(CHATML)
    template = "{{ mood }}" + CHATML.replace("assistant\n{%", "assistant {{ mood }}\n{%")
    chat = Chat(tokenizer, chat_template=template, mood="glad")
    assert tokenizer.decode(chat.open([ASKED])).startswith("glad<|im_start|>user")
    assert tokenizer.decode(chat.reply("Right.", closed=True)).endswith("<|im_start|>assistant glad\n")


@examples(30)
@given(
    turns=st.lists(st.tuples(st.text("ab .,\n", min_size=1), st.text("ab .,\n")), min_size=1, max_size=4),
    sentencepiece=st.booleans(),
)
def test_a_boundary_between_turns_adds_no_blank(turns: list[tuple[str, str]], sentencepiece: bool) -> None:
    tokenizer: Any = make_tokenizer(CHATML, sentencepiece=sentencepiece)
    chat = Chat(tokenizer)
    ids, messages = chat.open([ASKED]), [ASKED]
    for answer, observation in turns:
        sampled = [*encode(tokenizer, "<|im_end|>" + answer)[1:], *chat.stop_ids]
        assert chat.closes(sampled)
        ids += sampled + chat.reply(observation, closed=True)
        messages += [Message("assistant", answer), Message("user", observation)]
    whole = tokenizer.apply_chat_template(
        [one.as_dict() for one in messages], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(ids) == tokenizer.decode(encode(tokenizer, whole))


@pytest.mark.parametrize("kind", ["an end that takes the line break after it", "a mark after each control token"])
def test_replies_and_responses_have_the_ids_of_one_rendering(kind: str) -> None:
    tokenizer = tokenizer_for(CHATML, "<eos>")
    if kind.startswith("an end"):  # Phi-3's tokenizer
        tokenizer.add_tokens([tokenizers.AddedToken("<|im_end|>", special=True, normalized=False, rstrip=True)])
    else:  # Llama 2's, whose mark is a space
        tokenizer.backend_tokenizer.normalizer = tokenizers.normalizers.Prepend("_")
    chat, messages = Chat(tokenizer), [ASKED, Message("assistant", "7"), Message("user", "Higher.")]
    whole = tokenizer.apply_chat_template([one.as_dict() for one in messages], add_generation_prompt=True)["input_ids"]
    assert chat.open([ASKED]) + chat.say("7") + chat.reply("Higher.", closed=True) == whole
    assert whole[-len(end := chat.reply("Higher.", closed=False)) :] == end


def test_a_token_that_ends_thoughts_does_not_end_the_turn() -> None:
    tokenizer: Any = make_tokenizer(TEMPLATES["gptoss"].replace("<|return|>", "<|end|>"))
    assert Chat(tokenizer).stop_ids == {tokenizer.eos_token_id}


# ---------------------------------------------------------------------------------------------------------------------
# Thoughts
# ---------------------------------------------------------------------------------------------------------------------

# What the prompt of a family of models ends with, what the template has, and a response with a thought and an answer.
FAMILIES = {
    "qwen": ("", "<think>{t}</think>\n\n{a}"),
    "deepseek": ("<think>\n", "{t}\n</think>\n\n{a}"),
    "ministral": ("", "[THINK]{t}[/THINK]{a}"),
    "seed": ("", "<seed:think>{t}</seed:think>\n{a}"),
    "apertus": ("", "<|inner_prefix|>{t}<|inner_suffix|>{a}"),
    "minicpm": ("", "<|thought_start|>{t}<|thought_end|>{a}"),
    "apriel": ("Here are my reasoning steps:\n", "{t}\n[BEGIN FINAL RESPONSE]\n{a}\n[END FINAL RESPONSE]"),
    "kimi": (
        "<|open|>think<|sep|>",
        "{t}<|close|>think<|sep|><|open|>response<|sep|>{a}<|close|>response<|sep|><|close|>message<|sep|>",
    ),
    "gpt-oss": ("", "<|channel|>analysis<|message|>{t}<|end|><|start|>assistant<|channel|>final<|message|>{a}"),
    "cohere": ("<|START_THINKING|>", "{t}<|END_THINKING|><|START_TEXT|>{a}<|END_TEXT|>"),
    "gemma": ("", "<|channel>thought\n{t}\n<channel|>{a}"),
    "solar": ("", "<|think|>{t}<|end|><|begin|>assistant<|content|>{a}"),
    "muse": ("", " to=self<|message|>{t}<|eom|><|start|>assistant to=user<|message|>{a}"),
    "minimax": ("", "<mm:think>{t}</mm:think>{a}"),
}
words = st.text("abcdefg 0123.,\n", min_size=1, max_size=20).map(str.strip).filter(bool)


@pytest.mark.parametrize("name", FAMILIES)
@examples(15)
@given(thought=words, answer=words)
def test_each_family_of_models_is_read_by_its_own_marks(name: str, thought: str, answer: str) -> None:
    prompt, response = FAMILIES[name]
    text = response.replace("{t}", thought).replace("{a}", answer)
    template = CHATML.replace("assistant\n{% endif %}", f"assistant\n{prompt}{{% endif %}}{{# {response} #}}")
    tokenizer: Any = make_tokenizer(template)
    chat = Chat(tokenizer)
    ids = encode(tokenizer, f"{text}<|im_end|>")
    assert chat.text(ids) == Answer(thought, answer)
    assert chat.text(chat.say(answer)) == Answer("", answer)
    assert chat.say(answer)[-1] in chat.stop_ids


@pytest.mark.parametrize("name", FAMILIES)
def test_a_response_that_is_cut_off_in_its_thought_has_no_answer(name: str) -> None:
    prompt, response = FAMILIES[name]
    tokenizer: Any = make_tokenizer(CHATML.replace("assistant\n{% endif %}", f"assistant\n{prompt}{{% endif %}}"))
    chat, ids = Chat(tokenizer), encode(tokenizer, response.replace("{t}", "~ Maybe 3?").replace("{a}", "7"))
    for cut in range(len(ids)):
        assert "~" not in chat.text(ids[:cut]).text


def test_an_answer_keeps_the_marks_of_calls_and_of_other_families() -> None:
    with warnings.catch_warnings(action="error"):
        tokenizer: Any = make_tokenizer(TEMPLATES["qwen3"])
    chat, call = Chat(tokenizer), '<tool_call>{"name": "look"}</tool_call>'
    assert chat.text(encode(tokenizer, f"<think>[THINK]</think>{call}<|im_end|>")) == Answer("[THINK]", call)


@pytest.mark.parametrize("ids", [[], [10**6], [1, 10**9, 2]])
def test_ids_that_stand_for_nothing_are_read_as_nothing(ids: list[int]) -> None:
    chat = Chat(make_tokenizer(CHATML))
    assert isinstance(chat.text(ids), Answer)
    assert not chat.closes(ids)


def test_a_response_that_its_tokens_would_change_cannot_be_said() -> None:
    chat = Chat(make_tokenizer(CHATML))
    with pytest.raises(ChatTemplateError):
        chat.say("<think>7")
