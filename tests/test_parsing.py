import json
import pickle
import re
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.text.parsing import ActionFormat

FORMATS: list[Any] = ["tag", "boxed", "json:move", "plain", r"regex:move (\w+)", re.compile("[a-h][1-8]")]
any_text = st.text(st.characters(codec=None, exclude_categories=()))
# Text made of the marks themselves finds the corners that random text does not.
marked_text = st.lists(
    st.sampled_from(["<action>", "</action>", "\\boxed{", "{", "}", '"move"', ":", '"', "\\", "7", " ", "\ud800"])
).map("".join)


@pytest.mark.parametrize(
    ("text", "lenient", "strict"),
    [
        ("<action>7</action>", "7", "7"),
        ("\n <action> go north\n</action> ", "go north", "go north"),
        ("I say <action>7</action>.", "7", None),
        ("<action>7</action><action>8</action>", "8", None),
        ("<action>7</action> no, <action>8", "8", None),
        ("<action>7", "7", None),
        ("<action><action>7</action></action>", "7", None),
        ("7</action>", None, None),
        ("<Action>7</Action>", None, None),
        ("<action></action>", None, None),
        ("<action>", None, None),
        ("7", None, None),
        ("", None, None),
    ],
)
def test_tags(text: str, lenient: str | None, strict: str | None) -> None:
    assert ActionFormat("tag").find(text) == lenient
    assert ActionFormat("tag", strict=True).find(text) == strict


@pytest.mark.parametrize(
    ("text", "lenient", "strict"),
    [
        (r"\boxed{7}", "7", "7"),
        (r"So $\boxed{7}$.", "7", None),
        (r"\boxed{7} \boxed{8}", "8", None),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{\{7\}}", r"\{7\}", r"\{7\}"),
        (r"\boxed{\boxed{7}}", "7", r"\boxed{7}"),
        (r"\boxed{7} and \boxed{", "7", None),
        (r"\boxed{7", None, None),
        (r"{ \boxed{7}", "7", None),
        (r"\boxed{}", None, None),
        ("boxed{7}", None, None),
        ("", None, None),
    ],
)
def test_boxes(text: str, lenient: str | None, strict: str | None) -> None:
    assert ActionFormat("boxed").find(text) == lenient
    assert ActionFormat("boxed", strict=True).find(text) == strict


@pytest.mark.parametrize(
    ("text", "lenient", "strict"),
    [
        ('{"move": "e4"}', "e4", "e4"),
        ('{"move": 7}', "7", "7"),
        ('{"move": [1, true]}', "[1, true]", "[1, true]"),
        ('```json\n{"move": "e4"}\n```', "e4", None),
        ('I\'d say "hi: {"move": "e4"} or {"move": "d4"}', "d4", None),
        ('{"move": "e4"} {"other": 1}', "e4", None),
        ('{"move": "e4", "why": {"move": "d4"}}', "e4", "e4"),
        ('{"move": "{curly} and \\"quoted\\""}', '{curly} and "quoted"', '{curly} and "quoted"'),
        ('in set {a} I take {"move": "e4"}', "e4", None),
        ('{ and {"move": "e4"}', "e4", None),
        ('{"move": null}', None, None),
        ('{"move": ""}', None, None),
        ('{"move": "e4"', None, None),
        ('["move"]', None, None),
        ('{"Move": "e4"}', None, None),
        ("", None, None),
    ],
)
def test_json(text: str, lenient: str | None, strict: str | None) -> None:
    assert ActionFormat("json:move").find(text) == lenient
    assert ActionFormat("json:move", strict=True).find(text) == strict


@pytest.mark.parametrize(
    ("text", "pattern", "lenient", "strict"),
    [
        ("move e2, no: move e4", "regex:move ([a-h][1-8])", "e4", None),
        (" move e4 ", "regex:move ([a-h][1-8])", "e4", "e4"),
        ("e2 e4", re.compile("[a-h][1-8]"), "e4", None),
        ("E4", re.compile("[a-h][1-8]", re.IGNORECASE), "E4", "E4"),
        ("nothing", "regex:move (.)", None, None),
        ("b", "regex:(a)|b", None, None),
    ],
)
def test_patterns(text: str, pattern: Any, lenient: str | None, strict: str | None) -> None:
    assert ActionFormat(pattern).find(text) == lenient
    assert ActionFormat(pattern, strict=True).find(text) == strict


@pytest.mark.parametrize(("text", "action"), [(" go north\n", "go north"), ("\n", ""), ("", "")])
def test_plain(text: str, action: str | None) -> None:
    assert ActionFormat("plain").find(text) == ActionFormat("plain", strict=True).find(text) == action


@pytest.mark.parametrize("how", FORMATS)
@given(text=any_text | marked_text)
def test_any_text_gives_an_action_without_whitespace_around_it_or_none(how: Any, text: str) -> None:
    for strict in (False, True):
        action = ActionFormat(how, strict=strict).find(text)
        assert action is None or ((action or how == "plain") and action == action.strip())


@given(before=any_text, action=any_text, after=any_text)
def test_what_is_marked_is_what_is_found(before: str, action: str, after: str) -> None:
    expected = action.strip() or None
    assert ActionFormat("tag").find(f"{before}<action>{action}</action>{after}") == expected
    assert ActionFormat("tag", strict=True).find(f"<action>{action}</action>") == expected
    written = json.dumps({"move": action})
    assert ActionFormat("json:move", strict=True).find(written) == _through_json(action)


@pytest.mark.parametrize("how", FORMATS)
@given(action=any_text | marked_text, strict=st.booleans())
def test_a_written_action_is_found_or_refused(how: Any, action: str, strict: bool) -> None:
    shape = ActionFormat(how, strict=strict)
    try:
        written = shape.write(action)
    except ConfigError:
        return
    assert ActionFormat(how, strict=True).find(written) == action.strip()


@pytest.mark.parametrize(
    ("how", "response"),
    [
        ("tag", "<action>7</action>"),
        ("boxed", r"\boxed{7}"),
        ("json:move", '{"move": "7"}'),
        ("plain", "7"),
        (r"regex:\d", "7"),
    ],
)
def test_an_action_is_written_in_every_format(how: str, response: str) -> None:
    assert ActionFormat(how).write("7") == response


@pytest.mark.parametrize(
    ("how", "action"), [("tag", "a</action>b"), ("boxed", "}"), ("tag", ""), ("regex:move (.)", "7")]
)
def test_an_action_that_its_mark_would_hide_is_refused(how: str, action: str) -> None:
    with pytest.raises(ConfigError, match="cannot be written in the format"):
        ActionFormat(how).write(action)


def _through_json(action: str) -> str | None:
    return str(json.loads(json.dumps(action))).strip() or None


GARBAGE = [
    "<action>",
    "</action>",
    "\\boxed{",
    "\\boxed{}",
    "\\",
    "{",
    "}",
    "{}",
    '"',
    '{"',
    '"\\',
    '{"move":',
    '{"move":{},',
    '{"a":[',
    "{\\",
    '{"a":{"b":"}',
    " ",
    "\n",
    "\x00",
    "\ud800",
    "7",
]


@pytest.mark.full
@pytest.mark.parametrize("how", FORMATS[:4])
@pytest.mark.parametrize("piece", GARBAGE)
@pytest.mark.parametrize("strict", [False, True])
def test_a_megabyte_of_garbage_is_read_in_linear_time(piece: str, how: str, strict: bool) -> None:
    action_format = ActionFormat(how, strict=strict)
    for text in (piece * (1_000_000 // len(piece)), '{"move":"' + piece * (1_000_000 // len(piece)) + "}" * 1_000):
        start = time.perf_counter()
        action_format.find(text)
        # Seconds where quadratic time would be hours; a busy machine is no reason to fail.
        assert time.perf_counter() - start < 10


@pytest.mark.parametrize("how", FORMATS)
@pytest.mark.parametrize("strict", [False, True])
def test_a_format_pickles_and_explains_itself(how: Any, strict: bool) -> None:
    action_format = ActionFormat(how, strict=strict)
    again = pickle.loads(pickle.dumps(action_format))
    text = '<action>7</action> \\boxed{7} {"move": 7} move 7 e4'
    assert again.find(text) == action_format.find(text)
    assert action_format.sentence == again.sentence
    assert action_format.sentence[0].isupper()


@pytest.mark.parametrize("how", ["", "tags", "json", "json:", "regex:", "regex:(", "xml:action", None])
def test_a_format_that_does_not_exist_is_refused(how: Any) -> None:
    with pytest.raises(ConfigError):
        ActionFormat(how)
