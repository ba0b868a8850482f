"""Thoughts in a response of a model: the marks of each family of models, and the answer that is left without them."""

import re
from typing import NamedTuple

from gym_trl.types import Answer


class ThoughtMarks(NamedTuple):
    """Marks of a thought, as one family of models writes it."""

    opening: str
    closing: str
    answer: str = ""
    """Mark that precedes every answer; empty if an answer has none."""
    end: str = ""
    """Mark that follows an answer, if there is more than control tokens."""

    def split(self, text: str) -> Answer:
        """Split a response into thinking and answer."""
        thinking, answer = [""], ""
        if not self.answer:
            thinking, answer = self._pieces(text)
        elif self.answer in text:
            before, _, answer = text.rpartition(self.answer)
            inside, outside = self._pieces(before)
            thinking = inside or [outside]
        else:  # it was cut off before its answer
            thinking = [text.replace(self.opening, "").replace(self.closing, "")]
        return Answer("".join(thinking).strip(), (answer.partition(self.end)[0] if self.end else answer).strip())

    def _pieces(self, text: str) -> tuple[list[str], str]:
        """Return the pieces of a text inside of thoughts, and all that is outside of them."""
        pieces = re.split(f"({re.escape(self.opening)}|{re.escape(self.closing)})", text)
        inside, outside, thinks = list[str](), "", False
        for piece in pieces:
            if piece == self.opening:
                thinks = True
            elif piece == self.closing:
                if not thinks and not self.answer:  # the prompt has opened it: all before is a thought
                    inside, outside = [*inside, outside], ""
                thinks = False
            elif thinks:
                inside.append(piece)
            else:
                outside += piece
        return inside, outside


THOUGHTS = (
    ThoughtMarks("<think>", "</think>"),  # DeepSeek, Qwen, GLM, Nemotron and most others
    ThoughtMarks("<thinking>", "</thinking>"),  # models that are told to
    ThoughtMarks("<thought>", "</thought>"),  # EXAONE Deep
    ThoughtMarks("<seed:think>", "</seed:think>"),  # Seed-OSS
    ThoughtMarks("<mm:think>", "</mm:think>"),  # MiniMax-M3
    ThoughtMarks("<think:opensource>", "</think:opensource>"),  # Hunyuan 3
    ThoughtMarks("[THINK]", "[/THINK]"),  # Ministral, Magistral
    ThoughtMarks("<|START_THINKING|>", "<|END_THINKING|>"),  # Command-A
    ThoughtMarks("<|inner_prefix|>", "<|inner_suffix|>"),  # Apertus
    ThoughtMarks("<|thought_start|>", "<|thought_end|>"),  # MiniCPM
    ThoughtMarks("<|channel>thought", "<channel|>"),  # Gemma 4
    ThoughtMarks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", end="[END FINAL RESPONSE]"),  # Apriel
    ThoughtMarks("<|channel|>analysis<|message|>", "<|end|>", "<|channel|>final<|message|>"),  # gpt-oss
    ThoughtMarks("<|channel|>commentary<|message|>", "<|end|>", "<|channel|>final<|message|>"),
    ThoughtMarks("<|think|>", "<|end|>", "<|content|>"),  # Solar
    ThoughtMarks(
        "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>", "<|close|>response<|sep|>"
    ),  # Kimi-K3
    ThoughtMarks("to=self<|message|>", "<|eom|>", "to=user<|message|>"),  # Muse
)
"""Marks by family of models."""

_OWNERS = {sign: marks for marks in THOUGHTS for sign in (marks.opening, marks.answer or marks.closing)}
_SIGN = re.compile("|".join(map(re.escape, sorted(_OWNERS, key=len, reverse=True))))


class AnswerText(str):
    """Answer from which the thought has been removed: what looks like a mark in it is text.

    >>> split_thinking(AnswerText("A <think> is a mark"))
    Answer(thinking='', text='A <think> is a mark')
    """

    __slots__ = ()


def split_thinking(text: str, opened: str = "") -> Answer:
    """Split a response into thinking and answer; the family of models is the one whose mark comes first.

    >>> split_thinking("<think>7 or 8?</think>8")
    Answer(thinking='7 or 8?', text='8')
    >>> split_thinking("7 or 8?</think>8")
    Answer(thinking='7 or 8?', text='8')
    >>> split_thinking("<think>it could be 7")
    Answer(thinking='it could be 7', text='')
    >>> split_thinking("<action>7</action><think>was it 7?</think>")
    Answer(thinking='was it 7?', text='<action>7</action>')
    >>> split_thinking("<|channel|>analysis<|message|>7 or 8?<|end|><|channel|>final<|message|>8")
    Answer(thinking='7 or 8?', text='8')

    Args:
        text: Response, control tokens included.
        opened: Mark with which the prompt has opened a thought.
    """
    sign = None if isinstance(text, AnswerText) else _SIGN.search(opened + text)
    return Answer("", text.strip()) if sign is None else _OWNERS[sign[0]].split(opened + text)
