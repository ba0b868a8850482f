"""Parts of a conversation that the model sees, where that is not all of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias

from gym_trl.chat.protocol import Chat
from gym_trl.errors import ConfigError, check_counts
from gym_trl.registration import did_you_mean
from gym_trl.types import Answer, Message, TokenIds

WriteSummary: TypeAlias = Callable[[Sequence[Message]], str]

ASK = (
    "The conversation has become too long. Write down everything that you need to go on: the goal, what you have found "
    "out, and what you planned. You will see only these notes and the latest observation."
)
"""Message that asks the model for a summary."""


@dataclass(frozen=True, kw_only=True)
class History:
    """Part of an episode's conversation that the model sees.

    >>> History(last=8)  # with more than 16 turns the history is cut to the last 8
    History(last=8, most=16, summary=None, ask=None, template=False)
    >>> History(summary="model")  # when the context is full, the model writes what it needs to go on
    History(last=0, most=None, summary='model', ask=None, template=False)
    >>> History(most=4)
    Traceback (most recent call last):
        ...
    gym_trl.errors.ConfigError: most=4 needs last=..., the number of turns that are kept

    Without it a conversation only grows, and an episode ends with ``context_overflow`` when the context is full. With
    it the oldest turns are left out, or replaced by a summary, when there are more than ``most`` of them or when the
    next turn has no room. The episode goes on in a new segment: the system prompt, the instructions, the summary, the
    last observation that was answered outside of it, and the turns that are kept. Each sampled token is trained in the
    segment in which it was sampled, after exactly the ids that the model saw there.

    Every segment is a row of the trainer, and computes its prompt anew. ``most`` larger than ``last`` therefore makes
    episodes cheaper to sample and to train: with the default, a segment is ``last`` turns longer than its prompt.

    Args:
        last: Number of turns that are kept, fewer if they have no room. Default: 0 with ``summary``; without it, all.
        most: Largest number of turns that is not cut. Default: twice ``last``; if that is 0, as many as have room.
        summary: What replaces the turns that are left out: a text that the model writes (``"model"``), which is sampled
            and trained like a response, or that a function makes of their messages, and of the summary before them.
            Default: a line with their number.
        ask: Message that asks the model for a summary.
        template: Render the whole conversation anew with the chat template before every turn, as inference servers do:
            a template that drops earlier thinking (Qwen3, DeepSeek) then drops it here. A segment ends where the
            rendered text no longer continues what the model saw; if it always does, there is only one.

    Raises:
        ConfigError: An argument is out of range, or nothing would ever change.
    """

    last: int | None = None
    most: int | None = None
    summary: Literal["model"] | WriteSummary | None = None
    ask: str | None = None
    template: bool = False

    def __post_init__(self) -> None:
        cuts = self.last is not None or self.summary is not None
        if self.last is None and self.most is not None:
            raise ConfigError(f"most={self.most} needs last=..., the number of turns that are kept")
        if not cuts and not self.template:
            raise ConfigError("History() changes nothing: give last=..., summary=... or template=True")
        if not (self.summary is None or self.summary == "model" or callable(self.summary)):
            raise ConfigError(f'summary must be "model" or a function of messages, got {self.summary!r}')
        if self.ask is not None and (self.summary != "model" or not self.ask.strip()):
            raise ConfigError(f'ask is the message before summary="model", got ask={self.ask!r}')
        if not isinstance(self.template, bool):
            raise ConfigError(f"template must be True or False, got {self.template!r}")
        if not cuts:
            return
        last = 0 if self.last is None else self.last
        check_counts(0, last=last)
        object.__setattr__(self, "last", last)
        if self.most is None:
            object.__setattr__(self, "most", 2 * last or None)
        else:
            check_counts(max(1, last), most=self.most)

    @classmethod
    def read(cls, given: "History | Mapping[str, Any] | str") -> "History":
        """Return a history from its arguments, as a mapping or in words.

        >>> History.read("last=8,summary=model") == History.read({"last": 8, "summary": "model"})
        True
        >>> History.read("template").template
        True
        >>> History.read("lst=8")
        Traceback (most recent call last):
            ...
        gym_trl.errors.ConfigError: History has no argument 'lst'; did you mean 'last'?

        Raises:
            ConfigError: There is no such argument, or its value is invalid.
        """
        if isinstance(given, History):
            return given
        if isinstance(given, str):
            pairs = [part.strip().partition("=") for part in given.split(",")]
            given = {name: _value(name, said if equals else None) for name, equals, said in pairs}
        if not isinstance(given, Mapping):
            raise ConfigError(f'history must be a History, or words such as "last=8", got {given!r}')
        known = [one.name for one in fields(cls)]
        for name in given:
            if name not in known:
                raise ConfigError(f"History has no argument {name!r}{did_you_mean(name, known)}")
        return cls(**given)

    def needed(self, turn: int, ask: int) -> int:
        """Return the number of tokens for which a segment keeps room: a turn, and a request for a summary after it."""
        return turn + (turn + ask if self.summary == "model" else 0)

    @property
    def cuts(self) -> bool:
        """True if turns are left out."""
        return self.last is not None


HistoryOption: TypeAlias = Annotated[
    History | Mapping[str, Any] | str, 'a History, its arguments, or these in words such as "last=8"'
]
"""Value of the option ``history``."""


def read_history(given: HistoryOption | None) -> History | None:
    """Return a history as ``History.read`` does; ``None`` for the whole conversation."""
    return None if given is None else History.read(given)


def appends(history: History | None) -> bool:
    """Return True if a conversation is only appended to, without rendering it anew; see ``TemplateChat``."""
    return history is None or not history.template


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


def _value(name: str, said: str | None) -> Any:
    """Return the value of an argument in words; one without a value is switched on."""
    if said is None:
        return "model" if name == "summary" else True
    return int(said) if said.lstrip("-").isdecimal() else {"true": True, "false": False}.get(said.lower(), said)


def _turns(count: int) -> str:
    return f"{count} earlier turn{'s' * (count != 1)}"
