"""Frames of chat templates: what they say is what rendering says, for all of TRL's templates."""

from functools import cache
from pathlib import Path

import pytest
import trl
from hypothesis import given, strategies as st
from support.lanes import examples
from transformers.utils.chat_template_utils import _compile_jinja_template

from gym_trl.chat.rendering import find_frame
from gym_trl.chat.template import TemplateChat
from gym_trl.testing import tiny_tokenizer

TEMPLATES = {path.stem: path for path in Path(trl.__file__).parent.glob("chat_templates/*.jinja")}
FRAMED = {"qwen3", "qwen2_5", "qwen3_instruct_2507", "llama3", "phi3", "deepseekv3"}
VARIABLES = {"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None}
ODD = [
    "",
    " ",
    "\n",
    "<tool_response>x</tool_response>",
    "<tool_response>",
    "</think>",
    "<think>\n",
    " a ",
    "[INST]",
    "{{ x }}",
]
TEXTS = st.text() | st.lists(st.sampled_from([*ODD, "Higher.", "a"])).map("".join)


def talk(text):
    return [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": text},
    ]


def render(template, text):
    return _compile_jinja_template(template).render(messages=talk(text), **VARIABLES)


@cache
def framed(name):
    """Return a template and its frame, which takes a while to find; some have none."""
    template = TEMPLATES[name].read_text(encoding="utf-8")
    return template, find_frame(template, talk, VARIABLES)


def test_the_most_common_templates_have_a_frame():
    assert all(framed(name)[1] for name in FRAMED)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
@examples(40)
@given(text=TEXTS)
def test_a_frame_says_what_rendering_says_or_nothing(name, text):
    template, frame = framed(name)
    said = frame and frame.around(text)
    assert said is None or said == render(template, text)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_ordinary_texts_need_no_rendering(name):
    _, frame = framed(name)
    assert frame is None or frame.around("Higher. 3 tries left.") is not None


LOOP = "{% for message in messages %}{{ message.role }}: ESCAPE\n{% endfor %}"


@pytest.mark.parametrize(
    "expression",
    [
        "message.content | upper",
        "message.content | tojson",
        "message.content | title",
        "message.content | length",
        "message.content[1:]",
        "message.content * 2",
        "'%s' % message.content",
        "'{}'.format(message.content)",
        "[message.content, 'x'] | join",
        "'x'.join([message.content])",
        "('x' ~ message.content) | trim",
        "message.content.split('x') | last",
        "message.content + (' !' if message.content in 'axb' else '')",
        "message.content + (' !' if message.content is in 'axb' else '')",
        "message.content + (' !' if 'x' in message | tojson else '')",
        "message.content + (' !' if ('<' + message.content).startswith('<x') else '')",
        "message.content + strftime_now('%Y')",
        "message.content + (' !' if message.content | trim == message.content else '')",
        "message.content + (' !' if message.content < 'n' else '')",
    ],
)
def test_what_cannot_be_vouched_for_has_no_frame(expression):
    assert find_frame(LOOP.replace("ESCAPE", "{{ " + expression + " }}"), talk, VARIABLES) is None


@pytest.mark.parametrize(
    ("condition", "like", "unlike"),
    [
        ("message.content.startswith('<')", "a", "<a"),
        ("'x' in message.content", "a", "axa"),
        ("message.content", "a", ""),
        ("message.content == 'stop'", "a", "stop"),
        ("message.content in ['stop', 'end']", "a", "end"),
        ("message.content.strip() is string", "a", " a"),
    ],
)
def test_a_text_that_would_be_told_something_else_is_rendered(condition, like, unlike):
    template = LOOP.replace("ESCAPE", "{{ message.content }}{% if " + condition + " %}!{% endif %}")
    frame = find_frame(template, talk, VARIABLES)
    assert frame is not None
    assert frame.around(like) == render(template, like)
    assert frame.around(unlike) is None


@pytest.mark.parametrize("hidden", ["{% macro say(x) %}{{ x }}{% endmacro %}", "{% set y %}{{ messages }}{% endset %}"])
def test_texts_that_pass_through_what_forgets_them_have_no_frame(hidden):
    assert find_frame(hidden + LOOP.replace("ESCAPE", "{{ message.content }}"), talk, VARIABLES) is None


@examples(40)
@given(text=TEXTS, closed=st.booleans())
def test_a_reply_is_the_same_with_and_without_a_frame(text, closed):
    framed, rendered = TemplateChat(tiny_tokenizer()), TemplateChat(tiny_tokenizer())
    rendered._text._frames["user"] = None
    assert framed.reply(text, closed=closed) == rendered.reply(text, closed=closed)
    assert framed._text._frames["user"] is not None


def test_a_template_that_raises_has_no_frame():
    assert find_frame("{{ raise_exception('no') }}", talk, VARIABLES) is None
