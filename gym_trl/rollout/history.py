"""Parts of a conversation that the model sees, where that is not all of it."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gym_trl.chat.protocol import Chat
from gym_trl.options import History
from gym_trl.types import Answer, Message, TokenIds

ASK = (
    "The conversation has become too long. Write down everything that you need to go on: the goal, what you have found "
    "out, and what you planned. You will see only these notes and the latest observation."
)
"""Message that asks the model for a summary."""


def appends(history: History | None) -> bool:
    """Return True if a conversation is only appended to, without rendering it anew; see ``TemplateChat``."""
    return history is None or not history.template


def needed(history: History, turn: int, ask: int) -> int:
    """Return the number of tokens for which a segment keeps room: a turn, and a request for a summary after it.

    >>> needed(History(last=8), 24, 10), needed(History(summary="model"), 24, 10)
    (24, 58)
    """
    return turn + (turn + ask if history.summary == "model" else 0)


class Exchange(NamedTuple):
    """Response of the model, split into thinking and answer, and the observation that followed it."""

    answer: Answer
    observation: str


class Shown:
    r"""Part of one episode's conversation that the model sees now.

    >>> from gym_trl.testing import ByteChat
    >>> chat = ByteChat()
    >>> shown = Shown(History(last=1), chat, [Message("system", "Be brief.")], "Guess 1 to 9.", "Start.")
    >>> for response, observation in (("5", "Higher."), ("8", "Lower."), ("6", "Higher.")):
    ...     shown.add(Answer("", response), observation)
    >>> shown.is_long
    True
    >>> shown.cut()  # to as many turns as the history keeps
    >>> for message in shown.messages():
    ...     print(f"{message.role}: {message.content!r}")
    system: 'Be brief.'
    user: 'Guess 1 to 9.\n\n[2 earlier turns are left out.]\n\nLower.'
    assistant: '6'
    user: 'Higher.'
    """

    def __init__(
        self, history: History, chat: Chat, preamble: Sequence[Message], instructions: str, observation: str
    ) -> None:
        self.history = history
        self._chat = chat
        self._preamble = preamble
        self._instructions = instructions
        self._first = observation
        """Observation before the first turn that is shown."""
        self._turns: list[Exchange] = []
        self.left_out = 0
        """Number of turns that are not shown."""
        self.summary = ""
        self._opening = 0  # number of shown turns in the prompt of the segment

    @property
    def is_long(self) -> bool:
        """True if there are more turns than the history may have."""
        return self.history.most is not None and len(self._turns) > self.history.most

    @property
    def count(self) -> int:
        """Number of turns that are shown."""
        return len(self._turns)

    @property
    def answers(self) -> int:
        """Number of responses after the prompt of the segment."""
        return len(self._turns) - self._opening

    def add(self, answer: Answer, observation: str) -> None:
        """Add a turn."""
        self._turns.append(Exchange(answer, observation))

    def messages(self, keep: int | None = None) -> list[Message]:
        """Return the conversation that the model sees, or would see if it were cut to ``keep`` turns."""
        gone = 0 if keep is None else len(self._turns) - keep
        count, first = self.left_out + gone, self._turns[gone - 1].observation if gone else self._first
        note = self.summary and f"Notes of the {_turns(count)} before:\n{self.summary}"
        if count and not note:
            note = f"[{_turns(count)} {'is' if count == 1 else 'are'} left out.]"
        return conversation(self._preamble, [self._instructions, note, first], self._turns[gone:])

    def cut(self, summary: str = "", *, keep: int | None = None) -> None:
        """Leave out the turns before the last ``keep``, and show ``summary`` in their place."""
        count = len(self._turns) - (self.most_kept if keep is None else keep)
        if count:
            self._first = self._turns[count - 1].observation
            del self._turns[:count]
            self.left_out += count
        self.summary = summary
        self._opening = len(self._turns)

    @property
    def most_kept(self) -> int:
        """Number of turns that a cut keeps, if they have room."""
        return min(self.history.last or 0, len(self._turns))

    def dropped(self, keep: int) -> list[Message]:
        """Return what a summary replaces: the messages before the ``keep`` last turns, with the summary so far."""
        gone = self._turns[: len(self._turns) - keep]
        before = [Message("user", self.summary)] if self.summary else []
        return [*before, *conversation([], [self._first], gone)]

    def continues(self, messages: Sequence[Message], seen: TokenIds) -> bool:
        """Return whether the chat template renders ``messages`` to the text of the ids ``seen``."""
        chat: Any = self._chat
        text, rendered = chat.decode(seen), chat.rendered(messages)
        return bool(rendered == text or chat.decode(chat.encode(rendered)) == text)


def conversation(preamble: Sequence[Message], texts: Sequence[str], turns: Sequence[Exchange] = ()) -> list[Message]:
    """Return ``preamble`` with ``texts`` in its last user message, or in a new one, and then the turns."""
    messages = list(preamble)
    begun = messages.pop().content if messages and messages[-1].role == "user" else ""
    messages.append(Message("user", "\n\n".join(text for text in (begun, *texts) if text)))
    for answer, observation in turns:
        messages += [answer.as_message(), Message("user", observation)]
    return messages


def _turns(count: int) -> str:
    return f"{count} earlier turn{'s' * (count != 1)}"
