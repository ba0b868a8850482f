"""Base class of chats, and the part of one that an engine needs."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from gym_trl.errors import ConfigError
from gym_trl.types import Answer, Message, TokenIds


class StopCriteria:
    """Part of a ``Chat`` that an engine needs; by itself, that of a conversation without a chat.

    >>> StopCriteria().stop_ids, StopCriteria().stop_strings
    (frozenset(), ())
    """

    stop_ids: frozenset[int] = frozenset()
    """Ids that end the model's turn; engines stop at them and at the tokenizer's end-of-sequence id."""
    stop_strings: tuple[str, ...] = ()
    """Strings that end the model's turn if no single id does; engines include them in what they return."""


class Chat(StopCriteria, ABC):
    """Converter of a conversation's text to token ids, one turn at a time; a chat of your own inherits from it.

    An episode calls ``open`` once, then ``reply`` once per turn, and appends the result to the sampled ids.
    """

    @abstractmethod
    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to the point where the model's response begins."""

    @abstractmethod
    def reply(self, text: str, *, role: str = "user", closed: bool | str) -> TokenIds:
        """Return the ids between two sampled turns; ``closed`` is the result of ``closes`` for the first one."""

    @abstractmethod
    def closes(self, ids: Sequence[int]) -> bool | str:
        """Return whether these sampled ids end the model's turn, so that ``reply`` need not; or the token that does."""

    @abstractmethod
    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response, split into thinking and answer."""

    def follow(self, messages: Sequence[Message], answers: int) -> bool:
        """Return whether a rendering of the whole conversation is the text that ``open`` and ``reply`` wrote for it.

        Called after each reply with the conversation, which ends with a user message, and the number of the model's
        answers in it. The default is True, for chats without another rendering to compare with.
        """
        return True

    def renders(self, messages: Sequence[Message], ids: TokenIds) -> bool:
        """Return whether a rendering of the whole conversation is the text of ``ids`` (``History(template=True)``).

        Raises:
            ConfigError: The chat has no chat template.
        """
        raise ConfigError(f"history.template needs a chat template, and {type(self).__name__} has none: leave one out")
