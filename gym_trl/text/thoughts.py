"""Thoughts in a response of a model: their marks, and the answer that is left without them."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gym_trl.types import Answer


class ThoughtMarks(NamedTuple):
    """Marks of a thought, as one family of models writes it.

    >>> ThoughtMarks("[THINK]", "[/THINK]").split("[THINK]7 or <think>8?[/THINK]8")
    Answer(thinking='7 or <think>8?', text='8')
    """

    opening: str
    closing: str
    answer: str = ""
    """Mark that precedes every answer; empty if an answer has none."""
    shared: bool = False
    """``closing`` also ends other text, so alone it does not indicate a thought."""
    end: str = ""
    """Mark that follows an answer, if there is more than control tokens."""

    @property
    def signs(self) -> tuple[str, ...]:
        """Texts that show that a response was written with these marks."""
        return tuple(filter(None, (self.opening, "" if self.shared else self.closing, self.answer)))

    def split(self, text: str, *, inside: bool = False) -> Answer:
        """Split a response into thinking and answer; with ``inside`` its prompt has begun a thought."""
        thinking: list[str] = []
        framed = bool(self.answer) and self.answer in text
        if framed:
            before, _, text = text.rpartition(self.answer)
            thinking, around = self._pieces(before, inside)
            thinking = thinking or around  # around thoughts there are only marks
            inside = False
            text = text.partition(self.end)[0] if self.end else text
        more, outside = self._pieces(text, inside)
        thinking += more
        # The mark of an answer is missing, and there is another one: the response was cut off before its answer.
        rest = "".join(outside).strip()
        if self.answer and not framed and _TOKEN.search(rest) and (thinking or self._tokens & {*_TOKEN.findall(rest)}):
            thinking, rest = thinking or [rest], ""
        return Answer("".join(thinking).strip(), (rest.partition(self.end)[0] if self.end else rest).strip())

    @property
    def _tokens(self) -> set[str]:
        return set(_TOKEN.findall(self.answer))

    def _pieces(self, text: str, inside: bool) -> tuple[list[str], list[str]]:
        """Return the pieces of a text inside of thoughts, and outside."""
        thinking: list[str] = []
        outside: list[str] = []
        marks = "|".join(re.escape(mark) for mark in (self.opening, self.closing) if mark)
        for piece in re.split(f"({marks})", text):  # every other piece is a mark
            if piece and piece == self.opening:
                inside = True
            elif piece and piece == self.closing:
                if not inside and not self.shared:  # the prompt opened it: all earlier text is thinking
                    thinking, outside = [*thinking, *outside], []
                inside = False
            else:
                (thinking if inside else outside).append(piece)
        return thinking, outside


# A control token inside of a mark.
_TOKEN = re.compile(r"<\|[^|<>]+\|>")

TAGS = (
    ThoughtMarks("<think>", "</think>"),
    ThoughtMarks("<thinking>", "</thinking>"),
    ThoughtMarks("<thought>", "</thought>"),
)
"""Marks that models of any family are told to use."""

KNOWN_MARKS = (
    *TAGS,
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("<mm:think>", "</mm:think>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),
    ThoughtMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtMarks("<|channel>thought", "<channel|>"),
    ThoughtMarks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", end="[END FINAL RESPONSE]"),
    ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>final<|message|>", shared=True),
    ThoughtMarks("<|think|>", "<|end|>", "<|content|>", shared=True),
    ThoughtMarks("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"),
    ThoughtMarks("to=self<|message|>", "<|eom|>", "to=user<|message|>", shared=True),
)
"""Marks of models whose chat template does not write thoughts, or where there is none.

In this order: DeepSeek, Qwen, GLM, Nemotron and most others; models that are told to; EXAONE Deep; Seed-OSS;
MiniMax-M3; Ministral and Magistral; Cohere's Command-A; Apertus; Gemma 4; Apriel; gpt-oss; Solar; Kimi-K3; Muse.
"""


class AnswerText(str):
    """Answer of a response from which the thinking has been removed, with a text in it that looks like a mark.

    >>> split_thinking(AnswerText("A <think> is a mark"))
    Answer(thinking='', text='A <think> is a mark')
    """

    __slots__ = ()

    @classmethod
    def of(cls, answer: str) -> str:
        """Return an answer as environments are given it, so that no wrapper looks for thoughts in it again."""
        return cls(answer) if may_think(answer) else answer


def split_thinking(text: str, families: tuple[ThoughtMarks, ...] = KNOWN_MARKS) -> Answer:
    """Split a response into thinking and answer, also if its start is in the prompt or its end is missing.

    The marks that occur first are those of the response; marks of other ``families`` are part of its text.

    >>> split_thinking("<think>7 or 8?</think>8")
    Answer(thinking='7 or 8?', text='8')
    >>> split_thinking("7 or 8?</think>8")
    Answer(thinking='7 or 8?', text='8')
    >>> split_thinking("<think>it could be 7")
    Answer(thinking='it could be 7', text='')
    >>> split_thinking("<action>7</action><think>was it 7?</think>")
    Answer(thinking='was it 7?', text='<action>7</action>')
    >>> split_thinking("to=self<|message|>7 or 8?<|eom|>8")
    Answer(thinking='7 or 8?', text='8')
    """
    if isinstance(text, AnswerText):
        return Answer("", text.strip())
    find, owners = _signs_of(families)
    sign = find(text)
    return Answer("", text.strip()) if sign is None else owners[sign[0]].split(text)


@lru_cache(maxsize=64)
def _signs_of(
    families: tuple[ThoughtMarks, ...],
) -> tuple[Callable[[str], re.Match[str] | None], dict[str, ThoughtMarks]]:
    """Return a function that finds the first sign of a family, and the families by their signs."""
    owners = {sign: marks for marks in reversed(families) for sign in marks.signs}
    by_head: dict[str, list[str]] = {}
    for sign in sorted(owners, key=len, reverse=True):
        by_head.setdefault(sign[:2], []).append(re.escape(sign[2:]))
    # Marks that begin alike are compared at one place in the text together: it is searched in every turn.
    signs = "|".join(f"{re.escape(head)}(?:{'|'.join(rests)})" for head, rests in by_head.items())
    return re.compile(signs or "(?!)").search, owners


def may_think(text: str) -> bool:
    """Return whether a response may have a mark of ``KNOWN_MARKS``: each of them contains one of these texts.

    >>> may_think("<think>7?"), may_think("<action>7</action>")
    (True, False)
    """
    # In every turn, also of long responses: not as a loop or a pattern.
    return (
        "|" in text
        or "think>" in text
        or "thinking>" in text
        or "thought>" in text
        or "THINK]" in text
        or "[BEGIN FINAL" in text
        or "reasoning steps:" in text
    )


def answer_of(text: str) -> str:
    """Return the answer in a response, as ``split_thinking`` does, and faster where there is no thinking.

    >>> answer_of("<think>7 or 8?</think> 8 ")
    '8'
    """
    return split_thinking(text).text if may_think(text) else text.strip()


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Marks of one template's thoughts and answers.

    >>> thoughts = Thoughts((ThoughtMarks("[THINK]", "[/THINK]"),))
    >>> thoughts.split("[THINK]</think>?[/THINK]7")
    Answer(thinking='</think>?', text='7')
    """

    families: tuple[ThoughtMarks, ...] = KNOWN_MARKS
    """Marks that are looked for: the template's own, or those that its model may use."""
    inside: bool = False
    """The generation prompt has begun a thought, with the first of ``families``."""
    field: str = "reasoning_content"
    """Field of an assistant message from which the template takes a thought."""
    before: str = ""
    """Text before an answer without a thought, after the generation prompt."""
    opening: str = ""
    """Text before a thought, after the generation prompt."""
    between: str | None = None
    """Text between a thought and its answer; ``None`` if the template does not write thoughts."""
    prefix: str = ""
    """Text at the beginning of a response that is no part of its answer, such as the name of a channel."""
    end: str = ""
    """Control token that begins the text after an answer, if words follow it."""

    def split(self, text: str) -> Answer:
        """Split the text of a response, control tokens included, into thinking and answer."""
        own, *others = self.families
        if self.inside or (own.answer and not others):
            thinking, answer = own.split(text, inside=self.inside)
            if others:
                more, answer = split_thinking(answer, tuple(others))
                thinking = f"{thinking}\n{more}".strip()
        else:
            thinking, answer = split_thinking(text, self.families)
        if self.prefix and f"{answer}\n".startswith(self.prefix):
            answer = answer[len(self.prefix) :].lstrip()
        return Answer(thinking, answer.partition(self.end)[0].rstrip() if self.end else answer)
