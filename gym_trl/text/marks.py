"""Marks of an action in a response: a tag, or none."""

from abc import ABC, abstractmethod


class Mark(ABC):
    """Kind of mark, by which actions are found in responses and written."""

    sentence: str
    """Sentence that explains the mark to a model."""

    @abstractmethod
    def search(self, text: str) -> str | None:
        """Return the text inside of the last mark, with its whitespace; ``None`` if there is no mark."""

    @abstractmethod
    def search_whole(self, text: str) -> str | None:
        """Return the same where the mark is complete and the whole response, but for whitespace around it."""

    @abstractmethod
    def is_complete(self, text: str) -> bool:
        """Return whether a mark in a text that was cut off is complete, so that more text could not change it."""

    @abstractmethod
    def write(self, action: str) -> str:
        """Return an action in its mark."""


class Tag(Mark):
    """Action between ``<action>`` and ``</action>``, or to the end of the response.

    >>> Tag().search("Higher, so <action>7</action>."), Tag().search("So <action>7")
    ('7', '7')
    """

    _OPEN, _CLOSE = "<action>", "</action>"
    sentence = f"Put your action between {_OPEN} and {_CLOSE}."

    def search(self, text: str) -> str | None:
        """Return the text after the last ``<action>``."""
        _, opened, rest = text.rpartition(self._OPEN)
        return rest.partition(self._CLOSE)[0] if opened else None

    def search_whole(self, text: str) -> str | None:
        """Return the text between the tags if they are the response's only ones, at its beginning and end."""
        text = text.strip()
        inside = text.removeprefix(self._OPEN).removesuffix(self._CLOSE)
        whole = len(inside) == len(text) - len(self._OPEN) - len(self._CLOSE)
        return inside if whole and self._OPEN not in inside and self._CLOSE not in inside else None

    def is_complete(self, text: str) -> bool:
        """Return whether the last tag is closed."""
        return self._CLOSE in text.rpartition(self._OPEN)[2]

    def write(self, action: str) -> str:
        """Return the action between the tags."""
        return f"{self._OPEN}{action}{self._CLOSE}"


class Plain(Mark):
    """Whole response, without a mark; a response that was cut off has no action.

    >>> Plain().search("7"), Plain().is_complete("7")
    ('7', False)
    """

    sentence = "Answer with your action alone."

    def search(self, text: str) -> str:
        """Return the response."""
        return text

    def search_whole(self, text: str) -> str:
        """Return the response."""
        return text

    def is_complete(self, text: str) -> bool:
        """Return False: more text could change the action."""
        return False

    def write(self, action: str) -> str:
        """Return the action."""
        return action
