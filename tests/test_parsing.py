"""Law 19: an action is read from its mark, whole or not at all."""

import pickle
import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.text.parsing import ActionFormat

FORMATS: list[Any] = ["tag", "boxed", "json:move", "plain", r"regex:move (\w+)", re.compile("[a-h][1-8]")]
any_text = st.text(st.characters(codec=None, exclude_categories=()))
# Text made of the marks themselves finds the corners that random text does not.
MARKS = ["<action>", "</action>", "\\boxed{", "{", "}", '"move"', ":", '"', "\\", "7", " ", "\ud800", "move "]
marked_text = st.lists(st.sampled_from(MARKS)).map("".join)


@pytest.mark.parametrize(
    ("how", "text", "action", "cut"),
    [  # the action in a text, and in the same text cut off by max_tokens
        ("tag", "\n <action> go north\n</action> ", "go north", "go north"),
        ("tag", "<action>7</action><action>8</action>", "8", "8"),
        ("tag", "<action>7</action> no, <action>8", "8", None),
        ("tag", "<action>7</action> no, <acti", "7", "7"),
        ("tag", "<action><action>7</action></action>", "7", "7"),
        *(("tag", text, None, None) for text in ("7</action>", "<Action>7</Action>", "<action> </action>", "7", "")),
        ("boxed", r"So $\boxed{7}$.", "7", "7"),
        ("boxed", r"\boxed{7} \boxed{8}", "8", "8"),
        ("boxed", r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
        ("boxed", r"\boxed{\{7\}}", r"\{7\}", r"\{7\}"),
        ("boxed", r"\boxed{\boxed{7}}", "7", "7"),
        ("boxed", r"\boxed{7} and \boxed{", "7", None),
        ("boxed", r"{ \boxed{7}", "7", "7"),
        ("boxed", r"\\boxed{7} }", None, None),
        *(("boxed", text, None, None) for text in (r"\boxed{7", r"\boxed{}", "boxed{7}", "")),
        ("json:move", '{"move": 7}', "7", "7"),
        ("json:move", '{"move": [1, true]}', "[1, true]", "[1, true]"),
        ("json:move", '```json\n{"move": "e4"}\n```', "e4", "e4"),
        ("json:move", 'I\'d say "hi: {"move": "e4"} or {"move": "d4"}', "d4", "d4"),
        ("json:move", '{"move": "e4"} {"other": 1}', "e4", "e4"),
        ("json:move", '{"move": "e4"} {"oth', "e4", None),
        ("json:move", '{"move": "e4", "why": {"move": "d4"}}', "e4", "e4"),
        ("json:move", '{"move": "{curly} and \\"quoted\\""}', '{curly} and "quoted"', '{curly} and "quoted"'),
        ("json:move", 'in set {a} I take {"move": "e4"}', "e4", "e4"),
        ("json:move", '{ and {"move": "e4"}', "e4", None),
        *(("json:move", text, None, None) for text in ('{"move": null}', '{"move": ""}', '{"move": "e4"', '["move"]')),
        ("regex:move ([a-h][1-8])", "move e2, no: move e4", "e4", None),
        ("regex:move ([a-h][1-8])", "move e2, no: move e4.", "e4", "e4"),
        (re.compile("[a-h][1-8]", re.IGNORECASE), "E2 E4 ", "E4", "E4"),
        ("regex:(a)|b", "b.", None, None),
        ("plain", " go north\n", "go north", None),
        ("plain", "\n", "", None),
    ],
)
def test_actions_in_texts(how: Any, text: str, action: str | None, cut: str | None) -> None:
    assert (ActionFormat(how).find(text), ActionFormat(how).find(text, cut=True)) == (action, cut)


@pytest.mark.parametrize("how", FORMATS)
@given(text=any_text | marked_text, more=any_text | marked_text)
def test_what_is_read_from_a_text_that_was_cut_off_is_its_action(how: Any, text: str, more: str) -> None:
    shape = ActionFormat(how)
    action, cut = shape.find(text), shape.find(text, cut=True)
    assert cut in (action, None)
    assert action is None or ((action or how == "plain") and action == action.strip())
    # More text cannot have changed the action that was whole, unless it marks another one.
    if cut is not None and not any(mark.strip() in more for mark in MARKS[:8]) and isinstance(how, str):
        assert shape.find(text + " " + more.replace("move", "")) == cut


@pytest.mark.parametrize("how", FORMATS)
@given(action=any_text | marked_text, before=st.text("ab \n"))
def test_a_written_action_is_found_or_refused(how: Any, action: str, before: str) -> None:
    shape = ActionFormat(how)
    try:
        written = shape.write(action)
    except ConfigError:
        assert how not in ("plain", "json:move") or not action.strip()
        return
    assert shape.find(written) == action.strip()
    if how in ("tag", "boxed", "json:move"):
        assert shape.find(f"{before}{written}{before}") == action.strip()
        for stop in range(len(written)):
            assert shape.find(written[:stop], cut=True) is None


GARBAGE = [
    *MARKS[:5],
    "\\boxed{}",
    "\\",
    "{}",
    '"',
    '{"',
    '"\\',
    '{"move":',
    '{"move":{},',
    '{"a":[',
    '{"a":{"b":"}',
    "7",
]


@pytest.mark.slow
@pytest.mark.parametrize("how", FORMATS[:4])
@pytest.mark.parametrize("piece", GARBAGE)
def test_a_megabyte_of_garbage_is_read_in_linear_time(piece: str, how: str) -> None:
    for text in (piece * (1_000_000 // len(piece)), '{"move":"' + piece * (1_000_000 // len(piece)) + "}" * 1_000):
        ActionFormat(how).find(text)  # quadratic time would be hours


@pytest.mark.parametrize("how", FORMATS)
def test_a_format_pickles(how: Any) -> None:
    again = pickle.loads(pickle.dumps(ActionFormat(how)))
    assert again.find('<action>7</action> \\boxed{7} {"move": 7} move 7 e4') is not None


@pytest.mark.parametrize("how", ["", "tags", "tag:", "json", "json:", "regex:", "regex:(", "xml:action", None, 3])
def test_a_format_that_does_not_exist_is_refused(how: Any) -> None:
    with pytest.raises(ConfigError):
        ActionFormat(how)
