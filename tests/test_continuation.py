"""Law 3 at any depth: a template continues a conversation as one rendering of all of it says, or it is refused."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, strategies as st
from support.lanes import examples
from support.templates import CHATML, TEMPLATES, encode, make_tokenizer

from gym_trl.chat.template import TemplateChat
from gym_trl.errors import ChatTemplateError
from gym_trl.options import History
from gym_trl.rollout.episode import Episode, Sample
from gym_trl.rollout.limits import Limits
from gym_trl.types import Completion, EpisodeResult, Message, StepResult, StopReason, Task

REMINDER = "Keep to the rules.\n"
SYSTEM = Message("system", "Play well.")


def where(condition: str, *, otherwise: bool = False) -> str:
    """ChatML that writes a reminder into the messages for which a condition holds, or nothing else of them."""
    message = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    if otherwise:
        return CHATML.replace(message, f"{{% if {condition} %}}{message}{{% endif %}}")
    reminded = message.replace("{{ m.content", f"{{% if {condition} %}}{REMINDER}{{% endif %}}{{{{ m.content")
    return CHATML.replace(message, reminded)


def play(template: str, turns: int, *, system: bool = False, words: Sequence[str] = ("Higher.", "Lower.")) -> int:
    """Play an episode and compare it with one rendering at each turn; the number of turns that the template kept up."""
    tokenizer: Any = make_tokenizer(CHATML)
    try:
        chat = TemplateChat(tokenizer, chat_template=template)
    except ChatTemplateError:
        return 0
    opening = [SYSTEM] * (system and not chat._facts.folds_system)
    episode = Episode(Task("TrlEnv/Echo-v0", 0), chat=chat, limits=Limits(tokens_per_turn=9), preamble=opening)
    messages, wanted = [*opening, Message("user", "Guess.")], episode.started(StepResult("Guess."))
    answer = encode(tokenizer, "It is 7.<|im_end|>")
    for turn in range(turns):
        said = [message.as_dict() for message in messages]
        whole = tokenizer.apply_chat_template(
            said, chat_template=template, add_generation_prompt=True, return_dict=False
        )
        assert isinstance(wanted, Sample)
        assert wanted.prompt_ids == whole, f"silently wrong after {turn} answers"
        episode.sampled(Completion("0", answer, [-1.0] * len(answer)))
        observation = words[turn % len(words)]
        messages += [Message("assistant", "It is 7."), Message("user", observation)]
        try:
            wanted = episode.stepped(StepResult(observation))
        except ChatTemplateError:
            return turn + 1
    return turns


THRESHOLDS = [
    "loop.index0 >= {n}",
    "loop.index == {n}",
    "messages | length > {n}",
    "messages | length >= {n} and loop.last",
    "messages | length == {n}",
    "messages | length == {n} and loop.first",
    "messages | selectattr('role', 'equalto', 'assistant') | list | length >= {n} and loop.first",
    "messages | length % {n} == 0 and loop.last",
    "loop.revindex == {n}",
    "loop.revindex > {n} and loop.index is divisibleby(3)",
    "m.role == 'user' and loop.index // 2 == {n}",
]


@examples(40)
@given(
    condition=st.sampled_from(THRESHOLDS),
    n=st.integers(2, 30),
    dropped=st.booleans(),
    system=st.booleans(),
)
@example(condition="loop.revindex == {n}", n=6, dropped=True, system=False)
@example(condition="messages | length > {n}", n=9, dropped=True, system=True)
@example(condition="messages | length == {n} and loop.first", n=4, dropped=False, system=True)
def test_a_template_is_refused_or_continues_as_one_rendering_says(
    condition: str, n: int, dropped: bool, system: bool
) -> None:
    condition = condition.format(n=n)
    play(where(f"not ({condition})" if dropped else condition, otherwise=dropped), 33, system=system)


@pytest.mark.parametrize("n", [3, 5, 9, 12, 40, 99])
def test_a_window_of_the_last_messages_is_refused(n: int) -> None:
    window = CHATML.replace("messages %}", f"messages[-{n}:] %}}")
    with_system = CHATML.replace("messages %}", f"messages[:1] + messages[1:][-{n}:] %}}")
    for template in (window, with_system):
        with pytest.raises(ChatTemplateError, match="drops"):
            TemplateChat(make_tokenizer(CHATML), chat_template=template)


@pytest.mark.parametrize("n", [3, 4, 5, 8, 11, 41, 150])
@pytest.mark.parametrize(
    "condition", ["loop.index > {n}", "messages | length > {n} and loop.last", "loop.index == {n}"]
)
def test_a_reminder_from_some_message_on_is_refused(condition: str, n: int) -> None:
    with pytest.raises(ChatTemplateError, match=r"differently|drops"):
        TemplateChat(make_tokenizer(CHATML), chat_template=where(condition.format(n=n)))


ANSWERED = "messages | selectattr('role', 'equalto', 'assistant') | list | length"
REFUSED = {
    "another beginning from the fourth answer on": (
        f"{{% if {ANSWERED} > 3 %}}Summarise.{{% endif %}}" + CHATML,
        "begins a conversation differently after 4 answers",
    ),
    "a reminder with a system message only": (
        where("messages[0].role == 'system' and loop.last"),
        "differently",
    ),
    "a reminder without a system message only": (
        where("messages[0].role != 'system' and loop.last"),
        "differently",
    ),
    "a window with a system message only": (
        CHATML.replace("messages %}", "(messages[-4:] if messages[0].role == 'system' else messages) %}"),
        "drops",
    ),
    "a trimmed last message": (
        CHATML.replace("m.content", "(m.content | trim if loop.last else m.content)"),
        "trims a user message differently where it is the last",
    ),
    "trimmed earlier messages": (
        CHATML.replace("m.content", "(m.content if loop.last else m.content | trim)"),
        "trims a user message differently where it is the last",
    ),
    "a reminder after thinking": (
        where("loop.index > 1 and '</think>' in loop.previtem.content"),
        "after other messages",
    ),
    "another prompt after some texts": (
        CHATML.replace(
            "%}<|im_start|>a",
            "%}{{ 'again' if 'http' in messages[0].content }}<|im_start|>a",
        ),
        "after other messages",
    ),
    "chance": ("{{ ['', ' '] | random }}" + CHATML, "each time"),
    "filler": ("{{ lipsum(1) }}" + CHATML, "each time"),
    "the time": ("{{ strftime_now('%H:%M') }}" + CHATML, "time of day"),
    "the date in each message": (CHATML.replace("{{ m.role }}", "{{ m.role }} {{ strftime_now('%d') }}"), "the date"),
    "the date in the prompt": (
        CHATML.replace("%}<|im_start|>a", "%}{{ strftime_now('%Y') }}<|im_start|>a"),
        "the date",
    ),
    "answers numbered": (CHATML.replace("{{ m.role }}", "{{ m.role }} {{ loop.index }}"), "differently"),
    "answers counted": (CHATML.replace("%}<|im_start|>a", "%}{{ messages | length }}<|im_start|>a"), "a different one"),
    "roles swapped late": (
        CHATML.replace("{{ m.role }}", "{{ 'user' if loop.index == 8 else m.role }}"),
        "differently",
    ),
    "a limit": ("{% if messages | length > 11 %}{{ raise_exception('too long') }}{% endif %}" + CHATML, "too long"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_a_template_that_depends_on_more_than_the_new_message_is_refused_with_the_reason(why: str) -> None:
    template, reason = REFUSED[why]
    with pytest.raises(ChatTemplateError, match=reason):
        TemplateChat(make_tokenizer(CHATML), chat_template=template)


def talk(
    template: str,
    answers: Sequence[str],
    *,
    history: History | None = None,
    system: str = "",
    observation: str = "Higher.",
) -> EpisodeResult:
    """Play an episode in which the model gives these answers."""
    tokenizer: Any = make_tokenizer(CHATML)
    chat = TemplateChat(tokenizer, chat_template=template, appends=history is None)
    opening = [Message("system", system)] * bool(system)
    limits = Limits(context=10**6)
    episode = Episode(Task("TrlEnv/Echo-v0", 0), chat=chat, limits=limits, preamble=opening, history=history)
    episode.started(StepResult("Guess."))
    for answer in answers:
        ids = encode(tokenizer, f"{answer}<|im_end|>")
        episode.sampled(Completion("0", ids, [-1.0] * len(ids)))
        assert isinstance(episode.stepped(StepResult(observation)), Sample)
    return episode.stopped(StopReason.TURN_LIMIT)


# Templates whose text around a message depends on what other messages say.
CONTENT = {
    "no end after an empty answer": (
        CHATML.replace("<|im_end|>", "{% if m.content | trim %}<|im_end|>{% endif %}"),
        ("", " \n"),
    ),
    "an empty answer raises": (
        CHATML.replace(
            "{{ m.c", "{% if m.role == 'assistant' and not m.content %}{{ raise_exception('empty') }}{% endif %}{{ m.c"
        ),
        ("",),
    ),
    "a word raises": (
        CHATML.replace("{{ m.c", "{% if 'stop' in m.content %}{{ raise_exception('stop') }}{% endif %}{{ m.c"),
        ("stop", "don't stop"),
    ),
    "a word in the message before": (
        where("loop.last and loop.index > 2 and 'abracadabra' in messages[-2].content"),
        ("abracadabra",),
    ),
    "an earlier word changes the prompt": (
        CHATML.replace(
            "%}<|im_start|>a",
            "%}{{ 'again' if messages | length > 1 and 'abracadabra' in messages[1:3] | string }}<|im_start|>a",
        ),
        ("abracadabra",),
    ),
}


@pytest.mark.filterwarnings("ignore:tiny's chat template depends on what is said")
@pytest.mark.parametrize("history", [None, History(template=True), History(last=1)], ids=["all", "template", "last"])
@pytest.mark.parametrize("why", CONTENT)
@examples(40)
@given(data=st.data())
def test_nothing_that_is_said_ends_a_training(why: str, history: History | None, data: st.DataObject) -> None:
    template, odd = CONTENT[why]
    answers = data.draw(st.lists(st.sampled_from([*odd, "7", "<think>hm</think>", "</think>"]), max_size=6))
    observation = data.draw(st.sampled_from(["Higher.", "", "\ud800", "<|im_end|>", "/no_think"]))
    trace = talk(template, answers, history=history, system="Play well.", observation=observation).trace
    assert len(trace.mask) == len(trace.completion_ids)


@pytest.mark.parametrize("why", [why for why in CONTENT if "raises" not in why])
def test_a_template_that_depends_on_what_is_said_is_a_warning_and_a_metric(why: str) -> None:
    template, odd = CONTENT[why]
    assert talk(template, ["7", "8"]).template_differences == 0
    with pytest.warns(UserWarning, match="depends on what is said: it writes the user message") as warned:
        assert talk(template, [odd[0], "7", odd[0]]).template_differences > 0
    assert len(warned) == 1
    assert "history=History(template=True)" in str(warned[0].message)


def test_a_text_that_the_template_rejects_stands_where_another_would_when_all_is_rendered_anew() -> None:
    template, _ = CONTENT["a word raises"]
    chat = TemplateChat(make_tokenizer(CHATML), chat_template=template, appends=False)
    plain, rejected = (
        [Message("system", "A"), Message("user", "B"), Message("assistant", said), Message("user", f"{said}!")]
        for said in ("go", "stop")
    )
    assert chat._following.rendered(rejected) == chat._following.rendered(plain).replace("go", "stop")
    assert chat.decode(chat.open(rejected)) == chat._following.rendered(rejected)


THINKS = (
    "{% set thinks = not (messages[0].role == 'system' and '/no_think' in messages[0].content) %}"
    + CHATML.replace("assistant\n{%", "assistant\n{{ '' if thinks else '<think></think>' }}{%")
)


def test_a_switch_in_the_system_message_is_no_reason_to_refuse() -> None:
    assert talk(THINKS, ["7", "8"], system="Play well.").template_differences == 0
    with pytest.raises(ChatTemplateError, match=r"'/no_think'.* history=History\(template=True\)"):
        talk(THINKS, ["7"], system="/no_think")
    assert talk(THINKS, ["7", "8"], system="/no_think", history=History(template=True)).trace.mask


@pytest.mark.parametrize(("index", "text"), [(0, "/no_think"), (1, "<think>")])
def test_a_refusal_quotes_the_text_that_makes_the_difference(index: int, text: str) -> None:
    template = where(f"loop.last and messages | length > 2 and '{text}' in messages[{index}].content")
    with pytest.raises(ChatTemplateError, match=rf"such as .*{text}.*history=History\(template=True\)"):
        TemplateChat(make_tokenizer(CHATML), chat_template=template)


def test_a_template_that_looks_at_the_system_message_is_refused_when_it_says_so() -> None:
    template = where("loop.index > 3 and 'Play well' in messages[0].content")
    assert play(template, 5, system=True) == 1
    assert play(template, 5) == 5


def test_a_threshold_that_is_computed_is_refused_when_it_is_reached() -> None:
    template = where("messages | length == 3 * 3 * 3")
    assert play(template, 20) == 13
    assert play(template, 12) == 12


def test_a_date_at_the_beginning_is_no_reason_to_refuse() -> None:
    assert play("{{ strftime_now('%d %B %Y') }}" + CHATML, 3) == 3


def test_a_system_message_that_the_template_moves_along_goes_in_front_of_the_first_user_message() -> None:
    mistral = (
        "{% set ns = namespace(system='') %}{% if messages[0].role == 'system' %}"
        "{% set ns.system = messages[0].content ~ '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
        "{% for m in messages %}{% if m.role == 'user' %}[INST] "
        "{{ ns.system if loop.last }}{{ m.content }}[/INST]{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
    )
    tokenizer: Any = make_tokenizer(mistral)
    opening = [SYSTEM, Message("user", "Guess.")]
    rendered = tokenizer.apply_chat_template([m.as_dict() for m in opening], return_dict=False)
    assert TemplateChat(tokenizer).open(opening) == rendered


def test_a_tokenizer_that_renders_in_its_own_way_is_checked_too() -> None:
    class Forgetful:
        """Renders the last five messages only."""

        def __getattr__(self, name: str) -> Any:
            return getattr(make_tokenizer(CHATML), name)

        def apply_chat_template(self, messages: Any, **options: Any) -> Any:
            return make_tokenizer(CHATML).apply_chat_template(messages[-5:], **options)

    with pytest.raises(ChatTemplateError, match="drops"):
        TemplateChat(Forgetful())


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(TEMPLATES)[::3])
@examples(2)
@given(
    words=st.lists(
        st.text(max_size=9) | st.sampled_from(["<think>", "</think>", " a ", "[INST]", "{{ x }}"]), min_size=1
    ),
    system=st.booleans(),
)
def test_what_is_said_never_gets_a_template_of_trl_refused(name: str, words: list[str], system: bool) -> None:
    chat = TemplateChat(make_tokenizer(TEMPLATES[name]))
    messages = [SYSTEM] * system + [Message("user", words[0])]
    for turn, word in enumerate([*words, *words], start=1):
        messages += [Message("assistant", f"<think>{word}</think>{word}"), Message("user", word)]
        chat._following._credit = 1e9
        chat.follow(messages, turn)
