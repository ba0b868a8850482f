"""Thoughts of a response are told from its answer by the marks of its own family, whatever the chat template."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.plays import Counts
from support.templates import CHATML, TEMPLATES, encode, make_tokenizer

from gym_trl.chat.template import TemplateChat
from gym_trl.engines.scripted import ScriptedEngine
from gym_trl.errors import ChatTemplateError
from gym_trl.executors.inline import InlinePool
from gym_trl.options import History
from gym_trl.rollout.episode import Episode
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.log import as_response
from gym_trl.rollout.loop import run_episodes
from gym_trl.text.chat_client import read_reply
from gym_trl.text.thoughts import KNOWN_MARKS, TAGS, may_think, split_thinking
from gym_trl.types import Answer, Message, Task, TokenIds
from gym_trl.wrappers import ParseAction

# ---------------------------------------------------------------------------------------------------------------------
# Small templates in the style of families of models
# ---------------------------------------------------------------------------------------------------------------------

TURN = "<|turn|>{{ m.role }}\n"


@dataclass(frozen=True)
class Family:
    """A template's assistant message, and how a model of this family writes a thought and an answer."""

    said: str
    """Body of an assistant message, in Jinja."""
    thought: str
    """Response with a thought ``{t}`` and an answer ``{a}``, up to the end of the turn."""
    plain: str = "{a}"
    prompt: str = ""
    """Text that the generation prompt adds to the head of a turn."""
    end: str = "<|over|>"
    special: tuple[str, ...] = ()
    keeps: bool = False
    """The template writes earlier thoughts, too."""
    field: str = "reasoning_content"
    head: str = TURN

    @property
    def template(self) -> str:
        other = f"{TURN}{{{{ m.content }}}}<|over|>\n"
        own = f"{self.head}{self.said}{self.end}\n"
        prompt = self.head.replace("{{ m.role }}", "assistant") + self.prompt
        return (
            f"{{% for m in messages %}}{{% if m.role == 'assistant' %}}{own}{{% else %}}{other}{{% endif %}}"
            f"{{% endfor %}}{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
        )

    def respond(self, answer: str, thought: str | None = None) -> str:
        text = (self.plain if thought is None else self.thought).replace("{a}", "\0")
        return text.replace("{t}", thought or "").replace("\0", answer) + self.end


def tagged(opening: str, closing: str, *, gap: str = "", condition: str = "loop.last and ", field: str) -> str:
    return f"{{% if {condition}{field} %}}{opening}{{{{ {field} }}}}{closing}{gap}{{% endif %}}{{{{ m.content }}}}"


LAST, KEPT = "loop.last and ", ""
REASONING = "m.reasoning_content"
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}"
    "[THINK]{{ p.thinking }}[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
)
BLOCKS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content.blocks %}{% if b.type == 'thoughts' %}"
    "<|inner_prefix|>{{ b.text }}<|inner_suffix|>{% else %}{{ b.text }}{% endif %}{% endfor %}{% endif %}"
)
FAMILIES = {
    "ministral": Family(PARTS, "[THINK]{t}[/THINK]{a}", special=("[THINK]", "[/THINK]")),
    "ministral in plain text": Family(PARTS.replace("p.thinking", "p['thinking']"), "[THINK]{t}[/THINK]{a}"),
    "seed": Family(
        tagged("<seed:think>", "</seed:think>", gap="\n", condition=KEPT, field=REASONING),
        "<seed:think>{t}</seed:think>\n{a}",
        special=("<seed:think>", "</seed:think>"),
        keeps=True,
    ),
    "apertus": Family(
        BLOCKS,
        "<|inner_prefix|>{t}<|inner_suffix|>{a}",
        special=("<|inner_prefix|>", "<|inner_suffix|>"),
    ),
    "thinking tags": Family(
        tagged("<thinking>\n", "\n</thinking>\n", field=REASONING), "<thinking>\n{t}\n</thinking>\n{a}"
    ),
    "thinking tags that no history has": Family("{{ m.content }}", "<thinking>\n{t}\n</thinking>\n{a}"),
    "apriel": Family(
        tagged("", "\n[BEGIN FINAL RESPONSE]\n", field=REASONING),
        "{t}\n[BEGIN FINAL RESPONSE]\n{a}",
        plain="\n[BEGIN FINAL RESPONSE]\n{a}",
        prompt="Here are my reasoning steps:\n",
    ),
    "frames": Family(
        f"<|open|>think<|sep|>{{{{ {REASONING} if loop.last }}}}<|close|>think<|sep|><|open|>response<|sep|>"
        "{{ m.content }}<|close|>response<|sep|><|close|>message<|sep|>",
        "{t}<|close|>think<|sep|><|open|>response<|sep|>{a}<|close|>response<|sep|><|close|>message<|sep|>",
        plain="<|close|>think<|sep|><|open|>response<|sep|>{a}<|close|>response<|sep|><|close|>message<|sep|>",
        prompt="<|open|>think<|sep|>",
        special=("<|open|>", "<|sep|>", "<|close|>"),
    ),
    "frames of a new kind": Family(
        f"{{% if loop.last and {REASONING} %}}<|box|>mind<|lid|>{{{{ {REASONING} }}}}<|unbox|>mind<|lid|>{{% endif %}}"
        "<|box|>mouth<|lid|>{{ m.content }}<|unbox|>mouth<|lid|>",
        "<|box|>mind<|lid|>{t}<|unbox|>mind<|lid|><|box|>mouth<|lid|>{a}<|unbox|>mouth<|lid|>",
        plain="<|box|>mouth<|lid|>{a}<|unbox|>mouth<|lid|>",
        special=("<|box|>", "<|lid|>", "<|unbox|>"),
    ),
    "channels": Family(
        "{% if loop.last and m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|turn|>assistant\n"
        "{% endif %}<|channel|>final<|message|>{{ m.content }}",
        "<|channel|>analysis<|message|>{t}<|end|><|turn|>assistant\n<|channel|>final<|message|>{a}",
        plain="<|channel|>final<|message|>{a}",
        special=("<|channel|>", "<|message|>", "<|end|>"),
        field="thinking",
    ),
    "cohere": Family(
        tagged("<|START_THINKING|>", "<|END_THINKING|>", condition=KEPT, field=REASONING).replace(
            "{{ m.content }}", "<|START_TEXT|>{{ m.content }}<|END_TEXT|>"
        ),
        "<|START_THINKING|>{t}<|END_THINKING|><|START_TEXT|>{a}<|END_TEXT|>",
        plain="<|START_TEXT|>{a}<|END_TEXT|>",
        special=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        keeps=True,
    ),
    "cohere that opens a thought": Family(
        tagged("<|START_THINKING|>", "<|END_THINKING|>", field=REASONING).replace(
            "{{ m.content }}", "<|START_TEXT|>{{ m.content }}<|END_TEXT|>"
        ),
        "{t}<|END_THINKING|><|START_TEXT|>{a}<|END_TEXT|>",
        plain="<|END_THINKING|><|START_TEXT|>{a}<|END_TEXT|>",
        prompt="<|START_THINKING|>",
        special=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "functionary": Family("all\n{{ m.content }}", "<think>{t}</think>all\n{a}", plain="all\n{a}", head=f"{TURN}>>>"),
    "gemma": Family(
        tagged("<|channel>thought\n", "\n<channel|>", field=REASONING),
        "<|channel>thought\n{t}\n<channel|>{a}",
        special=("<|channel>", "<channel|>"),
    ),
    "a tag of its own": Family(
        tagged("<muse>", "</muse>\n", field="m.reasoning"), "<muse>{t}</muse>\n{a}", field="reasoning"
    ),
    "a tag of its own, opened": Family(
        tagged("<muse>\n", "\n</muse>\n", field=REASONING),
        "{t}\n</muse>\n{a}",
        plain="\n</muse>\n{a}",
        prompt="<muse>\n",
    ),
    "marks of two families": Family(
        tagged("<|think|>", "<|end|>", field=REASONING),
        "<|think|>{t}<|end|>{a}",
        special=("<|think|>", "<|end|>"),
    ),
    "before calls only": Family(
        "<think>{{ m.reasoning_content if m.tool_calls }}</think>{{ m.content }}",
        "<think>{t}</think>{a}",
        plain="<think></think>{a}",
    ),
    "if it is to think": Family(
        tagged("<hm>", "</hm>", condition="thinking is defined and thinking and loop.last and ", field=REASONING),
        "<hm>{t}</hm>{a}",
    ),
    "no marks in the template": Family("{{ m.content }}", "<think>\n{t}\n</think>\n\n{a}"),
    "no marks in the history": Family(
        "{{ m.content.split('</think>')[-1] }}", "{t}\n</think>\n\n{a}", plain="\n</think>\n\n{a}", prompt="<think>\n"
    ),
}
MARKS = ("[THINK]", "[/THINK]", "<think>", "</think>", "<seed:think>", "</thinking>", "<|inner_suffix|>", "<|end|>")
words = st.text("abcdefg 0123.,\n", min_size=1, max_size=20).map(str.strip).filter(bool)
every_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def tokenizer_of(name: str) -> Any:
    import tokenizers

    family = FAMILIES[name]
    tokenizer = make_tokenizer(family.template)
    tokenizer.add_tokens([tokenizers.AddedToken(mark, special=True, normalized=False) for mark in family.special])
    return tokenizer


@cache
def chat_of(name: str, *, appends: bool = True) -> TemplateChat:
    return TemplateChat(tokenizer_of(name), appends=appends)


def ids_of(name: str, answer: str, thought: str | None = None) -> TokenIds:
    return list(tokenizer_of(name).encode(FAMILIES[name].respond(answer, thought), add_special_tokens=False))


@every_family
@examples(15)
@given(thought=words, answer=words)
def test_each_family_is_read_by_its_own_marks(name: str, thought: str, answer: str) -> None:
    assert chat_of(name).text(ids_of(name, answer, thought)) == Answer(thought, answer)
    assert chat_of(name).text(ids_of(name, answer)) == Answer("", answer)


@every_family
def test_a_response_that_is_cut_off_in_its_thought_has_no_answer(name: str) -> None:
    ids = ids_of(name, "7 and 8", "~ Maybe 3? No.")
    for cut in range(len(ids)):
        if "~" in chat_of(name).decode(ids[:cut]):  # not in its first mark
            answer = chat_of(name).text(ids[:cut]).text
            assert "7 and 8".startswith(answer), (ids[:cut], answer)


@every_family
def test_marks_of_other_families_are_text(name: str) -> None:
    family = FAMILIES[name]
    own = f"{family.template}{family.thought}{family.prompt}"
    others = " ".join(mark for mark in MARKS if mark not in own)
    thought = f"I see {others} here"
    assert chat_of(name).text(ids_of(name, "7", thought)) == Answer(thought, "7")
    assert chat_of(name).text(ids_of(name, f"It says {others}", "Hm.")) == Answer("Hm.", f"It says {others}")
    if chat_of(name)._facts.thoughts.families[: len(TAGS)] != TAGS:  # models are told to use them
        assert chat_of(name).text(ids_of(name, f"It says {others}")) == Answer("", f"It says {others}")


@pytest.mark.parametrize("mark", ["[THINK]", "[/THINK]", "<|START_THINKING|>", "[BEGIN FINAL RESPONSE]"])
def test_a_mark_that_neither_template_nor_tokenizer_has_is_text(mark: str) -> None:
    text = f"It says {mark}: 7"
    for template, answer in ((CHATML, text), (f"{{# Thoughts have a {mark} #}}{CHATML}", "")):
        tokenizer = make_tokenizer(template)
        read = TemplateChat(tokenizer).text(encode(tokenizer, f"{text}<|im_end|>"))
        assert (read == Answer("", text)) == bool(answer)


def test_what_is_said_in_another_channel_is_no_answer() -> None:
    for said in (
        "<|channel|>commentary<|message|>7",
        "<|channel|>analysis<|message|>?<|end|><|turn|>assistant\n<|channel|>",
    ):
        ids = encode(tokenizer_of("channels"), said)
        assert chat_of("channels").text(ids).text == ""
        assert chat_of("channels").text(ids).thinking


@every_family
def test_a_chat_reads_what_it_says(name: str) -> None:
    chat = chat_of(name)
    assert chat.text(chat.say("x")) == Answer("", "x")


# ---------------------------------------------------------------------------------------------------------------------
# Histories
# ---------------------------------------------------------------------------------------------------------------------


def prompts_of(name: str, history: History) -> list[str]:
    """Return the texts that the model of this family is given in an episode in which it thinks."""
    chat, prompts = chat_of(name, appends=False), []

    def respond(request: Any) -> TokenIds:
        prompts.append(chat.decode(request.prompt_ids))
        return ids_of(name, f"a{len(prompts) - 1}", f"Maybe {len(prompts) - 1}? No.")

    episode = Episode(Task("Counts", 0), chat=chat, limits=Limits(tokens_per_turn=400), history=history)
    with InlinePool(lambda _: Counts(4)) as pool:
        [result] = run_episodes([episode], pool=pool, engine=ScriptedEngine(respond))
    assert [turn.answer for turn in result.turns] == [Answer(f"Maybe {n}? No.", f"a{n}") for n in range(4)]
    assert [message.content for message in result.messages[1::2]] == ["a0", "a1", "a2", "a3"]
    return prompts


@every_family
@pytest.mark.parametrize("history", [History(template=True), History(last=1, most=1), History(last=2, template=True)])
def test_a_history_shows_thoughts_only_where_the_template_does(name: str, history: History) -> None:
    last = prompts_of(name, history)[-1]
    assert "a2" in last
    assert ("Maybe" in last) == FAMILIES[name].keeps


@every_family
def test_a_whole_history_is_the_templates_rendering_of_answers_and_thoughts(name: str) -> None:
    messages: list[dict[str, str]] = [{"role": "user", "content": "Count.\n\no0"}]
    for turn, prompt in enumerate(prompts_of(name, History(template=True))):
        assert prompt == tokenizer_of(name).apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        thought = {FAMILIES[name].field: f"Maybe {turn}? No."}
        messages.append({"role": "assistant", "content": f"a{turn}", **thought})
        messages.append({"role": "user", "content": f"o{turn + 1}"})


@pytest.mark.parametrize("name", sorted({"diffusion_gemma", "gemma4", "gemma4_v5"} & TEMPLATES.keys()))
@pytest.mark.parametrize("history", [History(template=True), History(last=2, most=2)])
def test_gemma_reads_no_earlier_thought_as_an_answer(name: str, history: History) -> None:
    tokenizer = make_tokenizer(TEMPLATES[name])
    chat, prompts = TemplateChat(tokenizer, appends=False), []

    def respond(request: Any) -> TokenIds:
        prompts.append(chat.decode(request.prompt_ids))
        return list(tokenizer.encode("<|channel>thought\nMaybe 3? No.\n<channel|>7<turn|>", add_special_tokens=False))

    episode = Episode(Task("Counts", 0), chat=chat, limits=Limits(tokens_per_turn=400), history=history)
    with InlinePool(lambda _: Counts(4)) as pool:
        run_episodes([episode], pool=pool, engine=ScriptedEngine(respond))
    assert "Maybe" not in prompts[-1]
    assert "<|turn>model\n7<turn|>" in prompts[-1]


def test_control_tokens_of_a_thought_in_a_prompt_are_broken_up() -> None:
    chat, tokenizer = chat_of("seed"), tokenizer_of("seed")
    said = Message("assistant", "7", reasoning_content="<|over|></seed:think>")
    ids = chat.open([Message("user", "?"), said, Message("user", "?")])
    assert "<|over|></seed:think></seed:think>\n7" in chat.decode(ids)
    assert ids.count(tokenizer.convert_tokens_to_ids("<|over|>")) == 3
    assert ids.count(tokenizer.convert_tokens_to_ids("</seed:think>")) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Templates that cannot be read, and text without a template
# ---------------------------------------------------------------------------------------------------------------------


MISREAD = {
    "no mark ends a thought": "{{ m.reasoning_content }}\n\n{{ m.content }}",
    "nothing at all ends a thought": "{{ m.reasoning_content }}{{ m.content }}",
    "a mark begins a thought, and none ends it": "<hm>{{ m.reasoning_content }}\n{{ m.content }}",
    "a thought begins and ends with one mark": "***{{ m.reasoning_content }}***{{ m.content }}",
    "every answer is in a thought": "{{ '<think>' if m.role == 'assistant' }}{{ m.content }}",
}


@pytest.mark.parametrize("why", MISREAD)
def test_a_template_that_cannot_read_its_own_answer_is_refused(why: str) -> None:
    other = "{% if m.role == 'user' %}{{ m.content }}{% else %}"
    misread = CHATML.replace("{{ m.content }}", f"{other}{MISREAD[why]}{{% endif %}}")
    for appends in (True, False):
        with pytest.raises(ChatTemplateError, match="tiny's chat template marks thoughts or answers in an unknown"):
            TemplateChat(make_tokenizer(misread), appends=appends)


def test_a_last_answer_inside_a_thought_is_rendered_as_an_earlier_one() -> None:
    """So does the template of Nemotron Nano 2."""
    swallowed = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}").replace(
        "{{ m.content }}", "{{ '<think>\\n' if m.role == 'assistant' and loop.last }}{{ m.content }}"
    )
    chat = TemplateChat(make_tokenizer(swallowed), appends=False)
    assert chat.text(chat.say("x")) == Answer("", "x")


def test_a_prompt_that_opens_something_unknown_is_named_once() -> None:
    judged = CHATML.replace("assistant\n{% endif %}", "assistant\n<judge>\n{% endif %}")
    with pytest.warns(UserWarning, match="tiny's chat template begins responses with '<judge>'.*to '</judge>'"):
        chat = TemplateChat(make_tokenizer(judged))
    tokenizer = make_tokenizer(judged)
    TemplateChat(tokenizer)
    said = tokenizer.encode("Is it hard?</judge>\n<think>Hm.</think>7<|im_end|>", add_special_tokens=False)
    assert chat.text(said) == Answer("Is it hard?\nHm.", "7")


def test_a_reminder_in_the_last_user_message_is_no_part_of_the_response() -> None:
    """A warning would be an error here."""
    reminded = CHATML.replace("{{ m.content }}", "{{ m.content }}{{ ' Be brief.' if m.role == 'user' and loop.last }}")
    chat = TemplateChat(make_tokenizer(reminded), appends=False)
    assert chat.text(chat.say("x")) == Answer("", "x")
    judged = reminded.replace("assistant\n{% endif %}", "assistant\n<judge>\n{% endif %}")
    with pytest.warns(UserWarning, match="begins responses with '<judge>'"):
        TemplateChat(make_tokenizer(judged), appends=False)


@pytest.mark.parametrize("marks", KNOWN_MARKS, ids=lambda marks: marks.opening)
@examples(20)
@given(thought=words, answer=words)
def test_known_marks_are_read_without_a_template(marks: Any, thought: str, answer: str) -> None:
    text = f"{marks.opening}{thought}{marks.closing}{marks.answer}{answer}{marks.end}"
    assert split_thinking(text) == Answer(thought, answer)
    assert may_think(text)
    assert split_thinking(f"{marks.opening}{thought}") == Answer(thought, "")


@examples(200)
@given(st.lists(st.sampled_from([*(sign for marks in KNOWN_MARKS for sign in marks.signs), "a", "<", "|", "\n"])))
def test_a_response_is_quickly_known_to_have_no_thought(parts: list[str]) -> None:
    text = "".join(parts)
    assert may_think(text) or split_thinking(text) == Answer("", text.strip())


# ---------------------------------------------------------------------------------------------------------------------
# Environments
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mark", [sign for marks in KNOWN_MARKS for sign in marks.signs])
def test_the_action_is_read_from_the_whole_answer(mark: str) -> None:
    """A wrapper that looks for thoughts itself, for other policies, finds none in an answer."""
    text = f"{mark} is a mark. <action>1</action> So is {mark}"
    for thought in (None, "<action>2</action>"):
        chat = TemplateChat(make_tokenizer(FAMILIES["a tag of its own"].template))
        answer = chat.text(ids_of("a tag of its own", text, thought)).text
        assert answer == text
        env = ParseAction(Counts(2))
        env.reset(seed=0)
        assert env.step(as_response(answer, cut=False, longest=None))[-1]["action"] == "1"


def test_a_server_that_gives_the_thought_apart_has_no_other_in_its_answer() -> None:
    message = {"reasoning_content": "Hm.", "content": " </think> is a mark: 7"}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}]}
    assert read_reply(answer, None)[:2] == ("Hm.", "</think> is a mark: 7")
