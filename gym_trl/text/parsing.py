"""Actions in responses of a model, as a format marks them."""

import json
import re
from collections import deque

from gym_trl.errors import ConfigError

CUT = "Your response was cut off before its action was complete, so nothing was done. Be brief."
"""Observation after a response that ``max_tokens`` cut off."""

_OPEN, _CLOSE = "<action>", "</action>"
# A backslash also consumes the next character, so that \{ and \} do not count as braces.
_BRACES = re.compile(r"\\boxed\{|\\.|[{}]", re.DOTALL)
# Braces in strings do not count; an unclosed string extends to the end, which also keeps the scan linear.
_JSON_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*+(?:"|\\?\Z)|[{}]', re.DOTALL)
_MOST_OBJECTS = 16


class ActionFormat:
    r"""Format in which the action is marked in a response.

    >>> ActionFormat("tag").find("Higher, so <action>7</action>."), ActionFormat("boxed").find(r"It is \boxed{7}.")
    ('7', '7')
    >>> ActionFormat("json:move").find('{"move": 7}'), ActionFormat("regex:move ([a-h][1-8])").find("move e2, move e4")
    ('7', 'e4')
    >>> ActionFormat("tag").write("7"), ActionFormat("json:move").write("7")
    ('<action>7</action>', '{"move": "7"}')

    ``"tag"``: the text after the last ``<action>`` up to its ``</action>``, or to the end if a stop string cut the
    response off. ``"boxed"``: the last ``\boxed{…}`` with balanced braces. ``"json:FIELD"``: this field of the last
    JSON object that has it; a value that is not a string is written as JSON. ``"plain"``: the whole response.
    ``"open"``: the same, also of a response that was cut off.
    ``"regex:PATTERN"``, or a compiled pattern: the last match, or its group 1 if the pattern has groups.

    Whitespace around an action is removed, and an empty action counts as none, except in a plain response, which the
    environment interprets. Time is linear in the length of the response, except for slow patterns.

    Raises:
        ConfigError: An unknown format, or a pattern that does not compile.
    """

    def __init__(self, format: str | re.Pattern[str] = "tag") -> None:  # noqa: A002
        self._format = format
        self._kind, _, detail = ("regex", "", format.pattern) if isinstance(format, re.Pattern) else _split(format)
        self._field = detail
        self.sentence = {
            "tag": f"Put your action between {_OPEN} and {_CLOSE}.",
            "boxed": r"Put your action in \boxed{...}.",
            "json": f"Give your action as a JSON object: {{{json.dumps(detail)}: ...}}.",
            "plain": "Answer with your action alone.",
            "open": "Answer with your action alone.",
            "regex": f"Write your action so that it matches the regular expression {detail}",
        }[self._kind]
        """Sentence that explains the format to a model."""
        if self._kind == "regex":
            try:
                self._pattern = re.compile(format if isinstance(format, re.Pattern) else detail)
            except re.error as error:
                raise ConfigError(f"format needs a regular expression after regex:, got {detail!r}: {error}") from error

    def find(self, text: str, *, cut: bool = False) -> str | None:
        r"""Return the action in ``text``, or ``None`` if there is none; ``cut``: ``max_tokens`` cut the text off.

        Half an action is no action: in a text that was cut off, the mark must be complete and no later one begun. The
        last tag is closed, no ``\boxed{`` or JSON object is open, or the match ends before the text does. A plain
        response has no mark, so if it was cut off, it has no action.

        >>> tag = ActionFormat("tag")
        >>> tag.find("<action>42</action> because", cut=True), tag.find("<action>4", cut=True), tag.find("<action>4")
        ('42', None, '4')
        """
        if self._kind in ("plain", "open"):
            return None if cut and self._kind == "plain" else text.strip()
        if self._kind == "tag":
            _, opened, rest = text.rpartition(_OPEN)
            inside, closed, _ = rest.partition(_CLOSE)
            action, complete = inside if opened else "", bool(closed)
        elif self._kind == "boxed":
            action, complete = _in_box(text)
        elif self._kind == "json":
            action, complete = _in_json(text, self._field)
        else:
            last = next(iter(deque(self._pattern.finditer(text), maxlen=1)), None)
            action = (last[min(1, self._pattern.groups)] or "") if last else ""
            complete = last is not None and last.end() < len(text)
        return None if cut and not complete else action.strip() or None

    def write(self, action: str) -> str:
        """Return the shortest response with this action; ``find`` returns the action.

        Raises:
            ConfigError: The action cannot be marked: it contains the mark itself, or a pattern requires other text.
        """
        written = {
            "tag": f"{_OPEN}{action}{_CLOSE}",
            "boxed": f"\\boxed{{{action}}}",
            "json": json.dumps({self._field: action}, ensure_ascii=False),
        }.get(self._kind, action)
        if self.find(written) != action.strip():
            raise ConfigError(
                f"the action {action!r:.80} cannot be written in the format {self._format!r}: "
                "choose another format, or a pattern that an action alone matches"
            )
        return written


def _split(form: object) -> tuple[str, str, str]:
    """Return the kind of a format, the colon, and what follows it."""
    kind, colon, detail = str(form).partition(":")
    if form in ("tag", "boxed", "plain", "open") or (kind in ("json", "regex") and detail):
        return kind, colon, detail
    raise ConfigError(
        f'format must be "tag", "boxed", "json:FIELD", "plain", "open", "regex:PATTERN" or a pattern, got {form!r}'
    )


def _in_box(text: str) -> tuple[str, bool]:
    r"""Return the inside of the last balanced box, and whether no box is open.

    >>> _in_box(r"\boxed{7} {\boxed{8"), _in_box(r"{\boxed{7}")
    (('7', False), ('7', True))
    """
    spans: list[tuple[int, int]] = []
    opened: list[int] = []
    first = text.find("\\boxed{")  # the usual response has none, or one at its end
    while first > 0 and text[first - 1] == "\\":
        first -= 1
    for token in _BRACES.finditer(text, first) if first >= 0 else ():
        if token[0] in ("{", "\\boxed{"):
            opened.append(token.end() if len(token[0]) > 1 else -1)
        elif token[0] == "}" and opened and (start := opened.pop()) >= 0:
            spans.append((start, token.start()))
    start, stop = max(spans, default=(0, 0))
    return text[start:stop], all(start < 0 for start in opened)


def _in_json(text: str, field: str) -> tuple[str, bool]:
    """Return the field of the last object that has it, and whether no object is open.

    >>> _in_json('{"move": 7} {"move": 8', "move"), _in_json('{"move": "{", "why": {"move": 8}}', "move")
    (('7', False), ('{', True))
    """
    # An object closes after the ones inside it, so a reversed search finds it first. Their number is limited, because
    # trying each candidate in garbage would take quadratic time.
    spans: deque[tuple[int, int]] = deque(maxlen=_MOST_OBJECTS)
    opened: list[int] = []
    position = text.find("{")
    while position >= 0 and (token := _JSON_TOKENS.search(text, position)):
        position = token.end()
        if token[0] == "{":
            opened.append(token.start())
        elif token[0] == "}":
            spans.append((opened.pop(), position))
        if not opened:  # quotes outside of objects are no strings
            position = text.find("{", position)
    for start, stop in reversed(spans):
        try:
            value = json.loads(text[start:stop]).get(field)
        except (ValueError, RecursionError):
            continue
        if value is not None:
            return value if isinstance(value, str) else json.dumps(value), not opened
    return "", not opened
