"""Search for the marks that a chat template writes around thoughts and answers."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from gym_trl.errors import ChatTemplateError
from gym_trl.text.thoughts import KNOWN_MARKS, TAGS, ThoughtMarks, Thoughts, split_thinking
from gym_trl.types import Answer

ASKED, ANSWER, THOUGHT = "\ufdd1", "\ufdd2", "\ufdd3"

Write = Callable[..., str]
"""Function from the fields of an assistant message to the template's text after the user message before it; with
``later`` another user message and the generation prompt follow. Further arguments are passed to the template."""

_FIELDS = ("reasoning_content", "thinking", "reasoning")
_CALL = {"type": "function", "id": "call00000", "function": {"name": "f", "arguments": {}}}
# What a mark may be split into: a control token, a tag, or a character.
_TAG = r"</?[^<>\s]+>|\[/?[^\[\]\s]+\]"


def find_thoughts(
    write: Write, prompt: str, generated: str, token: re.Pattern[str], source: str
) -> tuple[Thoughts, str]:
    """Return how a template marks thoughts, and the end of its prompt if that begins a thought of an unknown kind.

    The marks are read from an assistant message with a thought and an answer. Of a template that writes no thoughts
    they are those of ``KNOWN_MARKS`` that its generation prompt begins, or else the tags that models are told to use
    and the marks that are in the template or are tokens.

    Args:
        write: Writes an assistant message.
        prompt: Text after a user message's content, up to the point where the response begins.
        generated: End of it that the template adds for the response, or all of it if that is not known.
        token: Finds control tokens.
        source: The template.
    """
    shown = {later: write({"content": ANSWER}, later=later) for later in (True, False)}
    plain, _, after = shown[True].partition(ANSWER)
    own = _own_marks(write, prompt, plain, after.partition(ASKED)[0], token)
    if own is None:
        families, inside, unknown = _known_marks(prompt, generated, plain, token, source)
        field, before_thought, between = _FIELDS[0], "", None
    else:
        marks, field, before_thought, between, inside = own
        families, unknown = (marks._replace(answer=""),), ""
    written = _after(prompt, plain)
    reading = Thoughts(families, inside)
    closing = families[0].closing
    header = reading.split(written).text if written else (between or "").partition(closing or "x")[2].strip()
    last, _, final = shown[False].partition(ANSWER)
    end = token.match(final.lstrip())
    ending = end[0] if end and token.sub("", final).strip() else ""
    prefix = ""
    if token.search(header):
        families = tuple(marks._replace(answer=header, end=marks.end or ending) for marks in families)
    elif header and written:
        prefix = f"{header}\n"
    thoughts = Thoughts(
        families,
        inside,
        field,
        opening="" if inside else before_thought,
        between=between,
        prefix=prefix,
        end=ending,
    )
    heads = [text.removeprefix(prompt) for text in (last, plain) if text.startswith(prompt)]
    if not plain.startswith(prompt):  # some write a last answer without a thought as if it were one
        heads.append((between or f"\n{closing}\n\n") if inside else header)
    readable = (head for head in heads if thoughts.split(f"{head}x").text == "x")
    return replace(thoughts, before=next(readable, heads[-1])), unknown


def check_thoughts(thoughts: Thoughts, ended: str, strip: Callable[[str], str]) -> str:
    """Return what is misread of a template's own response ``x``, with and without a thought; empty if nothing is.

    Text without brackets that the template itself writes before an answer are no mark.

    Args:
        thoughts: Marks of the template.
        ended: Text after an answer.
        strip: Removes control tokens from a text.
    """
    responses = {f"{thoughts.before}x": ""}
    if thoughts.between is not None:
        responses[f"{thoughts.opening}t{thoughts.between}x"] = "t"
    for response, thinking in responses.items():
        answer = Answer(*map(strip, thoughts.split(f"{response}{ended}")))
        if not set("<>[]|") & set(words := strip(thoughts.before).strip()):
            answer = Answer(answer.thinking, answer.text.removeprefix(words).lstrip())
        if answer != Answer(thinking, "x"):
            thought = f" after the thought {thinking!r}" if thinking else ""
            return f"its own response {response!r}, the answer 'x'{thought}, is read as {answer.text!r}"
    return ""


def _own_marks(
    write: Write, prompt: str, plain: str, after: str, token: re.Pattern[str]
) -> tuple[ThoughtMarks, str, str, str, bool] | None:
    """Return the marks with which a template writes thoughts, the field that it takes them from, and the texts around.

    The last is true if the generation prompt has begun a thought.
    """
    for field, text, calls in sorted(_written(write), key=lambda one: not _between(one[1]).strip()):
        before, between = text.partition(THOUGHT)[0], _between(text)
        family = next(
            (marks for marks in KNOWN_MARKS if between.lstrip().startswith(marks.closing) and marks.opening in before),
            None,
        )
        if family is not None:
            marks = family
        else:
            closed = between.strip()
            framed = _after(prompt, plain).strip()
            closing = closed.removesuffix(framed).strip() if framed else ""
            closing = closing if closing != closed and closing else _first_mark(closed, token)
            opening = _opening(before, prompt, plain, between, token)
            marks = ThoughtMarks(opening.strip(), closing, shared=closing in after)
        if calls:  # the answer may follow the call
            between = between[: between.index(marks.closing) + len(marks.closing)]
        if marks.opening:
            begun, _, tail = prompt.rpartition(marks.opening)
            inside = bool(begun) and marks.closing not in tail
        elif prompt.startswith(before) and prompt[len(before) :].strip():  # it begins a thought in words
            marks, inside = marks._replace(opening=prompt[len(before) :].strip()), True
        else:
            inside = prompt == before and not plain.startswith(prompt)
        opening = before.removeprefix(prompt) if before.startswith(prompt) else marks.opening
        return marks, field, opening, between, inside
    return None


def _after(prompt: str, text: str) -> str:
    """Return the rest of a text that begins with the prompt; empty for others."""
    return text.removeprefix(prompt) if text.startswith(prompt) else ""


def _between(text: str) -> str:
    return text.partition(THOUGHT)[2].partition(ANSWER)[0]


def _known_marks(
    prompt: str, generated: str, plain: str, token: re.Pattern[str], source: str
) -> tuple[tuple[ThoughtMarks, ...], bool, str]:
    """Return the marks to look for, whether the prompt has begun a thought, and how, if that is unknown."""
    begun = ((prompt.rfind(marks.opening), marks) for marks in KNOWN_MARKS)
    place, marks = max(begun, key=lambda pair: pair[0])
    if place >= 0 and marks.closing not in prompt[place:]:
        return (marks,), True, ""
    # Marks of other families that neither the template nor the tokenizer has are text.
    usual = tuple(
        marks
        for marks in KNOWN_MARKS
        if marks in TAGS or token.search(marks.opening) or any(sign in source for sign in marks.signs)
    )
    end = prompt[max(_shared(prompt, plain, token), len(prompt) - len(generated)) :]
    if end.strip() in plain:
        return usual, False, ""
    # The history drops the end of the prompt, so it belongs to the response.
    words = token.sub("", split_thinking(end).text).strip()
    tag = re.search(r"<([^<>/\s|]+)>\s*\Z|\[([^\[\]/\s|]+)\]\s*\Z", end)
    if tag is None or not words:
        return usual, False, words
    opening = tag[0].strip()
    return (ThoughtMarks(opening, f"{opening[0]}/{opening[1:]}"), *usual), True, opening


def _written(write: Write) -> Sequence[tuple[str, str, bool]]:
    """Return the texts of an assistant message with a thought and an answer.

    With each are the field that has the thought, and whether the message also has a call.
    """
    messages: list[tuple[str, Mapping[str, Any]]] = [
        *((field, {"content": ANSWER, field: THOUGHT}) for field in _FIELDS),
        ("", {"content": [{"type": "thinking", "thinking": THOUGHT}, {"type": "text", "text": ANSWER}]}),
        ("", {"content": {"blocks": [{"type": "thoughts", "text": THOUGHT}, {"type": "response", "text": ANSWER}]}}),
        # Some write a thought only before a call, or only if the model is to think.
        *((field, {"content": ANSWER, field: THOUGHT, "tool_calls": [_CALL]}) for field in _FIELDS),
    ]
    texts = []
    for options in ({}, {"enable_thinking": True, "thinking": True}):
        for field, fields in messages:
            try:
                text = write(fields, later=False, **options)
            except ChatTemplateError:  # it has no such field
                continue
            if [mark for mark in text if mark in (THOUGHT, ANSWER)] == [THOUGHT, ANSWER] and not re.search(
                r"[\"']type[\"']", text
            ):
                texts.append((field or _FIELDS[0], text, "tool_calls" in fields))
        if texts:
            break
    return texts


def _first_mark(text: str, token: re.Pattern[str]) -> str:
    """Return a text up to the end of its first control token, or all of it."""
    end = token.search(text)
    return text[: end.end()] if end else text


def _opening(before: str, prompt: str, plain: str, between: str, token: re.Pattern[str]) -> str:
    """Return the end of ``before`` that opens a thought: what is not in front of an answer without one."""
    opening = before[min(_shared(before, other, token) for other in (prompt, plain)) :]
    if opening.strip() or not plain.rstrip().endswith(between.strip()):
        return opening
    # Every answer follows a thought, which is empty here.
    marks = re.findall(rf"{token.pattern}|{_TAG}", before.rstrip())
    return str(marks[-1]) if marks and before.rstrip().endswith(marks[-1]) else ""


def _shared(text: str, other: str, token: re.Pattern[str]) -> int:
    """Return the length of the beginning that two texts have in common, in whole marks."""
    cut = re.compile(rf"{token.pattern}|{_TAG}|.", re.DOTALL)
    pairs = zip(cut.findall(text), cut.findall(other), strict=False)
    return sum(len(mark) for mark, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
