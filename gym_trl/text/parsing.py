"""Actions in responses of a model, as a format marks them."""

import re
from collections.abc import Callable, Mapping

from gym_trl.errors import ConfigError
from gym_trl.text.marks import Mark, Plain, Tag
from gym_trl.text.more_marks import Boxed, JsonField, Pattern

CUT = "Your response was cut off before its action was complete, so nothing was done. Be brief."
"""Observation after a response that ``max_tokens`` cut off."""


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
        self._format, self._plain = format, format == "plain"
        self._mark = mark = _mark(format)
        self.sentence = mark.sentence + (" Write nothing else." if strict and not self._plain else "")
        """Sentence that explains the format to a model."""
        self.search = mark.search_whole if strict else mark.search
        """``search`` returns the text inside the mark with its whitespace, or ``None``, if nothing was cut off."""

    def find(self, text: str, *, cut: bool = False) -> str | None:
        """Return the action in ``text``, or ``None`` if there is none; ``cut``: ``max_tokens`` cut the text off."""
        if cut and not self._mark.is_complete(text):
            return None
        inside = self.search(text)
        action = None if inside is None else inside.strip()
        return action if action or self._plain else None

    def write(self, action: str) -> str:
        """Return the shortest response with this action, as ``strict`` requires it; ``find`` returns the action.

        Raises:
            ConfigError: the action cannot be marked: it contains the mark itself, or a pattern requires other text.
        """
        written = self._mark.write(action)
        if self.find(written) != action.strip():
            by_pattern = isinstance(self._mark, Pattern)
            raise ConfigError(
                f"the action {action!r:.80} cannot be written in the format {self._format!r}: "
                + ("give a pattern that an action alone matches" if by_pattern else "choose another format")
            )
        return written


def _mark(format: str | re.Pattern[str]) -> Mark:  # noqa: A002
    """Return the mark of a format."""
    if isinstance(format, re.Pattern):
        return Pattern(format)
    if isinstance(format, str) and format in _MARKS:
        return _MARKS[format]()
    kind, _, detail = str(format).partition(":")
    if kind == "json" and detail:
        return JsonField(detail)
    if kind == "regex" and detail:
        try:
            return Pattern(re.compile(detail))
        except re.error as error:
            raise ConfigError(f"format must have a regular expression after regex:, got {detail!r}: {error}") from error
    raise ConfigError(
        f'format must be "tag", "boxed", "json:FIELD", "plain", "regex:PATTERN" or a pattern, got {format!r}'
    )


_MARKS: Mapping[str, Callable[[], Mark]] = {"tag": Tag, "boxed": Boxed, "plain": Plain}
