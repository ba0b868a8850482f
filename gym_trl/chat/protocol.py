"""Interface of chats."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gym_trl.types import Answer, Message, TokenIds


@runtime_checkable
class Chat(Protocol):
    """Converter of a conversation's text to token ids, one turn at a time.

    An episode calls ``open`` once, then ``reply`` once per turn, and appends the result to the sampled ids.
    """

    @property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end the model's turn; engines stop at them and at the tokenizer's end-of-sequence id."""
        ...

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Strings that end the model's turn if no single id does; engines include them in what they return."""
        ...

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to the point where the model's response begins."""
        ...

    def reply(self, text: str, *, role: str = "user", closed: bool | str) -> TokenIds:
        """Return the ids between two sampled turns; ``closed`` is the result of ``closes`` for the first one."""
        ...

    def closes(self, ids: Sequence[int]) -> bool | str:
        """Return whether these sampled ids end the model's turn, so that ``reply`` need not; or the token that does."""
        ...

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response, split into thinking and answer."""
        ...
