"""Parsing of model responses into thinking and actions."""

import json
import re
from collections import deque
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

from gym_trl.errors import ConfigError
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
        more, said = self._pieces(text, inside)
        thinking += more
        # The mark of an answer is missing, and there is another one: the response was cut off before its answer.
        rest = "".join(said).strip()
        if self.answer and not framed and _TOKEN.search(rest) and (thinking or self._tokens & {*_TOKEN.findall(rest)}):
            thinking, rest = thinking or [rest], ""
        return Answer("".join(thinking).strip(), (rest.partition(self.end)[0] if self.end else rest).strip())

    @property
    def _tokens(self) -> set[str]:
        return set(_TOKEN.findall(self.answer))

    def _pieces(self, text: str, inside: bool) -> tuple[list[str], list[str]]:
        """Return the pieces of a text inside of thoughts, and outside."""
        thinking: list[str] = []
        said: list[str] = []
        marks = "|".join(re.escape(mark) for mark in (self.opening, self.closing) if mark)
        for piece in re.split(f"({marks})", text):  # every other piece is a mark
            if piece and piece == self.opening:
                inside = True
            elif piece and piece == self.closing:
                if not inside and not self.shared:  # the prompt opened it: all earlier text is thinking
                    thinking, said = [*thinking, *said], []
                inside = False
            else:
                (thinking if inside else said).append(piece)
        return thinking, said


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
    found = "|".join(f"{re.escape(head)}(?:{'|'.join(rests)})" for head, rests in by_head.items())
    return re.compile(found or "(?!)").search, owners


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


CUT = "Your response was cut off before its action was complete, so nothing was done. Be brief."
"""Observation after a response that ``max_tokens`` cut off."""

_OPEN, _CLOSE = "<action>", "</action>"
_BOXED = "\\boxed{"
# A backslash also consumes the next character, so that \{ and \} do not count as braces.
_BOXED_TOKENS = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
# Braces in strings do not count; an unclosed string extends to the end, which also keeps the scan linear.
_JSON_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
_JSON_ATTEMPTS = 16


class ActionFormat:
    r"""Format in which the action is marked in a response, with a function that extracts it.

    >>> ActionFormat("tag").find("Higher, so <action>7</action>.")
    '7'
    >>> ActionFormat("boxed").find(r"It is \boxed{7}.")
    '7'
    >>> ActionFormat("json:move").find('{"move": 7}')
    '7'
    >>> ActionFormat("regex:move ([a-h][1-8])").find("move e2, no: move e4")
    'e4'
    >>> ActionFormat("tag", strict=True).find("Higher, so <action>7</action>.") is None
    True
    >>> ActionFormat("tag").write("7"), ActionFormat("json:move").write("7")
    ('<action>7</action>', '{"move": "7"}')

    ``"tag"``: the text after the last ``<action>`` up to its ``</action>``, or to the end if a stop string or a limit
    cut the response off. ``"boxed"``: the last ``\boxed{…}`` with balanced braces. ``"json:FIELD"``: this field of the
    last JSON object that has it; a value that is not a string is written as JSON. ``"plain"``: the whole response.
    ``"regex:PATTERN"``, or a compiled pattern: the last match, or its group 1 if the pattern has groups.

    ``strict`` requires the mark to be complete and to be the whole response, except for whitespace around it. In any
    case, actions are read from the mark only, whitespace around an action is removed, and an empty action counts as
    none, except in a plain response, which the environment interprets. Time is linear in the length of the response,
    except for slow patterns.

    In a response that ``max_tokens`` cut off (``cut``), an action is valid only if its mark was complete and no later
    one had begun: the last tag is closed, no ``\boxed{`` or JSON object is open, or the match ends before the text
    does. A plain response has no mark, so if it was cut off, it has no action.

    >>> ActionFormat("tag").find("<action>42</action> because", cut=True)
    '42'
    >>> ActionFormat("tag").find("<action>4", cut=True) is None, ActionFormat("plain").find("4", cut=True) is None
    (True, True)

    Raises:
        ConfigError: an unknown format, or a pattern that does not compile.
    """

    def __init__(self, format: str | re.Pattern[str] = "tag", *, strict: bool = False) -> None:  # noqa: A002
        self.strict = strict
        self.sentence, self.search = _compile(format, strict)
        """``search`` returns the text inside the mark with its whitespace, or ``None``, if nothing was cut off."""
        self._is_complete = _completeness(format)
        self._format = format
        self._plain = format == "plain"
        if strict and not self._plain:
            self.sentence += " Write nothing else."

    def find(self, text: str, *, cut: bool = False) -> str | None:
        """Return the action in ``text``, or ``None`` if there is none; ``cut``: ``max_tokens`` cut the text off."""
        if cut and not self._is_complete(text):
            return None
        found = self.search(text)
        action = None if found is None else found.strip()
        return action if action or self._plain else None

    def write(self, action: str) -> str:
        """Return the shortest response with this action, as ``strict`` requires it; ``find`` returns the action.

        Raises:
            ConfigError: the action cannot be marked: it contains the mark itself, or a pattern requires other text.
        """
        kind, _, field = ("regex", "", "") if isinstance(self._format, re.Pattern) else self._format.partition(":")
        written = {
            "tag": f"{_OPEN}{action}{_CLOSE}",
            "boxed": f"{_BOXED}{action}}}",
            "json": json.dumps({field: action}, ensure_ascii=False),
        }.get(kind, action)
        if self.find(written) != action.strip():
            raise ConfigError(
                f"the action {action!r:.80} cannot be written in the format {self._format!r}: "
                + ("give a pattern that an action alone matches" if kind == "regex" else "choose another format")
            )
        return written


def _compile(how: str | re.Pattern[str], strict: bool) -> tuple[str, Callable[[str], str | None]]:
    """Return the sentence that explains a format, and the function that extracts the action."""
    if isinstance(how, re.Pattern):
        return _compile_pattern(how, strict)
    if how == "tag":
        return f"Put your action between {_OPEN} and {_CLOSE}.", _find_whole_tag if strict else _find_tag
    if how == "boxed":
        return f"Put your action in {_BOXED}...}}.", _find_whole_box if strict else _find_box
    if how == "plain":
        return "Answer with your action alone.", str
    kind, _, detail = str(how).partition(":")
    if kind == "json" and detail:
        sentence = f"Give your action as a JSON object: {{{json.dumps(detail)}: ...}}."
        return sentence, partial(_find_whole_json if strict else _find_json, detail)
    if kind == "regex" and detail:
        try:
            return _compile_pattern(re.compile(detail), strict)
        except re.error as error:
            raise ConfigError(f"format must have a regular expression after regex:, got {detail!r}: {error}") from error
    raise ConfigError(
        f'format must be "tag", "boxed", "json:FIELD", "plain", "regex:PATTERN" or a pattern, got {how!r}'
    )


def _compile_pattern(pattern: re.Pattern[str], strict: bool) -> tuple[str, Callable[[str], str | None]]:
    sentence = f"Write your action so that it matches the regular expression {pattern.pattern}"
    return sentence, partial(_find_whole_match if strict else _find_match, pattern)


def _find_tag(text: str) -> str | None:
    _, opened, rest = text.rpartition(_OPEN)
    return rest.partition(_CLOSE)[0] if opened else None


def _find_whole_tag(text: str) -> str | None:
    text = text.strip()
    inside = text.removeprefix(_OPEN).removesuffix(_CLOSE)
    whole = len(inside) == len(text) - len(_OPEN) - len(_CLOSE)
    return inside if whole and _OPEN not in inside and _CLOSE not in inside else None


def _completeness(how: str | re.Pattern[str]) -> Callable[[str], bool]:
    """Return a function that checks that the mark in a cut text is complete, so that more text could not change it."""
    if isinstance(how, re.Pattern):
        return partial(_match_is_complete, how)
    kind, _, detail = how.partition(":")
    if kind == "regex":
        return partial(_match_is_complete, re.compile(detail))
    complete = {"tag": _tag_is_complete, "boxed": _boxes_are_complete, "json": _objects_are_complete}
    return complete.get(kind, _never)


def _tag_is_complete(text: str) -> bool:
    return _CLOSE in text.rpartition(_OPEN)[2]


def _boxes_are_complete(text: str) -> bool:
    return all(start < 0 for start in _boxes(text)[1])


def _objects_are_complete(text: str) -> bool:
    return not _objects(text)[1]


def _never(text: str) -> bool:
    return False


def _match_is_complete(pattern: re.Pattern[str], text: str) -> bool:
    last = deque(pattern.finditer(text), maxlen=1)
    return bool(last) and last[0].end() < len(text)


def _boxes(text: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Return the spans of the insides of balanced boxes, in the order in which they close, and the braces left open.

    The latter are given as the start of the inside for each box, and -1 for any other brace.
    """
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    for token in _BOXED_TOKENS.finditer(text):
        if token[0] == _BOXED:
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(-1)
        elif token[0] == "}" and opened and (start := opened.pop()) >= 0:
            spans.append((start, token.start()))
    return spans, opened


def _find_box(text: str) -> str | None:
    before, opened, rest = text.rpartition(_BOXED)
    inside, closed, _ = rest.partition("}")
    if not opened:
        return None
    if closed and "{" not in inside and "\\" not in inside and not (before and before[-1] == "\\"):
        return inside  # the usual case, without braces to balance
    start, stop = max(_boxes(text)[0], default=(0, 0))
    return text[start:stop]


def _find_whole_box(text: str) -> str | None:
    text = text.strip()
    whole = (len(_BOXED), len(text) - 1)
    return text[slice(*whole)] if text.startswith(_BOXED) and whole in _boxes(text)[0] else None


def _find_json(field: str, text: str) -> str | None:
    found = (_find_whole_json(field, text[start:stop]) for start, stop in reversed(_objects(text)[0]))
    return next((value for value in found if value is not None), None)


def _objects(text: str) -> tuple[deque[tuple[int, int]], list[int]]:
    """Return the spans of the last JSON candidates, in the order in which they close, and the starts of open ones."""
    # An enclosing object closes after the ones inside it, so a reversed search finds it first. Their number is limited,
    # because trying each candidate in garbage would take quadratic time.
    spans: deque[tuple[int, int]] = deque(maxlen=_JSON_ATTEMPTS)
    opened: list[int] = []
    position = 0
    while token := _next_json_token(text, position, inside=bool(opened)):
        position = token.end()
        if token[0] == "{":
            opened.append(token.start())
        elif token[0] == "}" and opened:
            spans.append((opened.pop(), position))
    return spans, opened


def _next_json_token(text: str, position: int, *, inside: bool) -> re.Match[str] | None:
    """Return the next brace, or the next string if inside an object; quotes outside objects are ignored."""
    if not inside and (position := text.find("{", position)) < 0:
        return None
    return _JSON_TOKENS.search(text, position)


def _find_whole_json(field: str, text: str) -> str | None:
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get(field) is None:
        return None
    return value[field] if isinstance(value[field], str) else json.dumps(value[field])


def _find_match(pattern: re.Pattern[str], text: str) -> str | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0][min(1, pattern.groups)] if last else None


def _find_whole_match(pattern: re.Pattern[str], text: str) -> str | None:
    match = pattern.fullmatch(text.strip())
    return match[min(1, pattern.groups)] if match else None
