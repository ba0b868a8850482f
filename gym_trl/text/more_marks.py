r"""Marks of an action in a response beside the tag: ``\boxed{...}``, a field of a JSON object, a regular expression."""

import json
import re
from collections import deque
from typing import Any

from gym_trl.text.marks import Mark

# A backslash also consumes the next character, so that \{ and \} do not count as braces.
_BOXED_TOKENS = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
# Braces in strings do not count; an unclosed string extends to the end, which also keeps the scan linear.
_JSON_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
_JSON_ATTEMPTS = 16


class Boxed(Mark):
    r"""Action in the last ``\boxed{...}`` with balanced braces.

    >>> Boxed().search(r"It is \boxed{7}.")
    '7'
    """

    _OPEN = "\\boxed{"
    sentence = f"Put your action in {_OPEN}...}}."

    def search(self, text: str) -> str | None:
        """Return the inside of the last box."""
        before, opened, rest = text.rpartition(self._OPEN)
        inside, closed, _ = rest.partition("}")
        if not opened:
            return None
        if closed and "{" not in inside and "\\" not in inside and not (before and before[-1] == "\\"):
            return inside  # the usual case, without braces to balance
        start, stop = max(boxes(text)[0], default=(0, 0))
        return text[start:stop]

    def search_whole(self, text: str) -> str | None:
        """Return the inside of the box that is the whole response."""
        text = text.strip()
        whole = (len(self._OPEN), len(text) - 1)
        return text[slice(*whole)] if text.startswith(self._OPEN) and whole in boxes(text)[0] else None

    def is_complete(self, text: str) -> bool:
        """Return whether no box is open."""
        return all(start < 0 for start in boxes(text)[1])

    def write(self, action: str) -> str:
        """Return the action in a box."""
        return f"{self._OPEN}{action}}}"


class JsonField(Mark):
    """Action in a field of the last JSON object that has it; a value that is not a string is written as JSON.

    >>> JsonField("move").search('{"move": 7}')
    '7'
    """

    def __init__(self, field: str) -> None:
        self._field = field
        self.sentence = f"Give your action as a JSON object: {{{json.dumps(field)}: ...}}."

    def search(self, text: str) -> str | None:
        """Return the field of the last object that has it."""
        values = (self.search_whole(text[start:stop]) for start, stop in reversed(_objects(text)[0]))
        return next((value for value in values if value is not None), None)

    def search_whole(self, text: str) -> str | None:
        """Return the field of the object that is the whole response."""
        try:
            fields: Any = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(fields, dict) or (value := fields.get(self._field)) is None:
            return None
        return value if isinstance(value, str) else json.dumps(value)

    def is_complete(self, text: str) -> bool:
        """Return whether no object is open."""
        return not _objects(text)[1]

    def write(self, action: str) -> str:
        """Return an object with the action."""
        return json.dumps({self._field: action}, ensure_ascii=False)


class Pattern(Mark):
    """Action in the last match of a regular expression, or in its group 1 if it has groups.

    >>> Pattern(re.compile("move ([a-h][1-8])")).search("move e2, no: move e4")
    'e4'
    """

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern, self._group = pattern, min(1, pattern.groups)
        self.sentence = f"Write your action so that it matches the regular expression {pattern.pattern}"

    def search(self, text: str) -> str | None:
        """Return the last match."""
        match = self._last(text)
        return match[self._group] if match else None

    def search_whole(self, text: str) -> str | None:
        """Return the match that is the whole response."""
        match = self._pattern.fullmatch(text.strip())
        return match[self._group] if match else None

    def is_complete(self, text: str) -> bool:
        """Return whether the last match ends before the text does."""
        match = self._last(text)
        return match is not None and match.end() < len(text)

    def write(self, action: str) -> str:
        """Return the action."""
        return action

    def _last(self, text: str) -> re.Match[str] | None:
        return next(iter(deque(self._pattern.finditer(text), maxlen=1)), None)


def boxes(text: str) -> tuple[list[tuple[int, int]], list[int]]:
    r"""Return the spans of the insides of balanced boxes, in the order in which they close, and the braces left open.

    The latter are given as the start of the inside for each box, and -1 for any other brace.

    >>> boxes(r"\boxed{7} {\boxed{8")
    ([(7, 8)], [-1, 18])
    """
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    for token in _BOXED_TOKENS.finditer(text):
        if token[0] == "\\boxed{":
            opened.append(token.end())
        elif token[0] == "{":
            opened.append(-1)
        elif token[0] == "}" and opened and (start := opened.pop()) >= 0:
            spans.append((start, token.start()))
    return spans, opened


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
