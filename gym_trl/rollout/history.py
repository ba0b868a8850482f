"""Parts of a conversation that the model sees, where that is not all of it.

``HistoryContext`` begins a segment with a prompt of its own where a ``History`` leaves turns out, or where the chat
template renders the conversation anew.
"""

from collections.abc import Sequence
from typing import NamedTuple

from gym_trl.chat.protocol import Chat
from gym_trl.errors import ConfigError, described, raise_interrupt
from gym_trl.options import History
from gym_trl.rollout.context import Context
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.log import EpisodeLog, conversation
from gym_trl.types import Answer, Completion, Message, StopReason, TokenIds

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

    >>> shown = Shown(History(last=1), [Message("system", "Be brief.")], "Guess 1 to 9.", "Start.")
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

    def __init__(self, history: History, preamble: Sequence[Message], instructions: str, observation: str) -> None:
        self.history = history
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
        return shown(self._preamble, [self._instructions, note, first], self._turns[gone:])

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
        return [*before, *shown([], [self._first], gone)]


class HistoryContext(Context):
    """Context of one episode with a history that is cut, summarised or rendered anew.

    Args:
        log: Log of the episode before its reset.
        chat: Converts messages to ids.
        limits: Limits of a segment.
        history: Part of the conversation that is shown.

    Raises:
        ConfigError: A segment never has room for a turn.
    """

    def __init__(self, log: EpisodeLog, chat: Chat, limits: Limits, history: History) -> None:
        super().__init__(log, chat)
        self._history, self._limits = history, limits
        self._preamble = tuple(log.messages)
        self._shown: Shown
        self._prompt: TokenIds | None = None  # of the segment that the next turn begins
        ask = self._chat.reply(history.ask or ASK, closed=False) if history.summary == "model" else []
        turn, most = limits.tokens_per_turn or 1, limits.tokens
        self._room = needed(history, turn, len(ask))  # tokens of a turn, and of a summary after it
        if history.cuts and most is not None and self._room > most:
            asks = f", a summary of as many and {len(ask)} that ask for it" if ask else ""
            raise ConfigError(
                f"max_completion_length must be at least {self._room} with this history, got {most}: a segment needs "
                f"room for a turn of max_tokens_per_turn={turn}{asks}"
            )

    def open(self) -> None:
        """Begin with the messages of the log, after the reset."""
        super().open()
        reset = self._log.last
        self._shown = Shown(self._history, self._preamble, reset.instructions, reset.observation)

    def commit(self, completion: Completion) -> bool:
        """Append what was sampled after ``ids``, and return True if it is the response of a turn."""
        shown = self._shown
        if self._prompt is not None:
            turn = len(self._log.turns)
            self.transcript.restart(self._prompt, turn=turn, left_out=shown.left_out, summary=shown.summary)
            self._prompt = None
        super().commit(completion)
        if not self.asking:
            return True
        self.asking = False
        self._shorten(self._chat.text(completion.ids).text)
        return False

    def reply(self) -> None:
        """Add the observation of the last step, and cut the history where it is too long."""
        self._take_images()
        shown, observation = self._shown, self._log.last.observation
        shown.add(self._log.turns[-1].answer, observation)
        self._append(self.messages, observation)
        if not shown.is_long and (not self._history.cuts or self._has_room(self.lengths)):
            return
        if self._history.summary != "model":
            self._shorten()
            return
        self.asking, self._prompt = True, None
        ask = self._history.ask or ASK
        self._append([*self.messages[:-1], Message("user", ask)], ask)

    @property
    def messages(self) -> list[Message]:
        """Conversation that the model is shown."""
        return self._shown.messages()

    @property
    def ids(self) -> TokenIds:
        """Prompt of the next request."""
        return super().ids if self._prompt is None else self._prompt

    @property
    def seen(self) -> int:
        """Number of the first of ``ids`` that the request before and its completion had."""
        return super().seen if self._prompt is None else 0

    @property
    def lengths(self) -> tuple[int, int]:
        """Number of ids before the next turn, in the segment's completion and in all of the segment."""
        return super().lengths if self._prompt is None else (0, len(self._prompt))

    def _take_images(self) -> None:
        super()._take_images()
        if self._images:
            raise ConfigError("images cannot be combined with a history yet: leave out history or images")

    def _append(self, messages: Sequence[Message], text: str) -> None:
        """Continue the segment with ``text``, the last of ``messages``, or begin another one with all of them."""
        self._delta = self._chat.reply(text, closed=self._closed)
        if not self._history.template:
            self.differences += not self._chat.follow(messages, self._shown.answers)
        elif not self._chat.renders(messages, self.transcript.prompt(self._delta)):
            self._restart(messages)

    def _restart(self, messages: Sequence[Message]) -> None:
        self._prompt, self._delta = self._chat.open(messages), []

    def _has_room(self, used: tuple[int, int]) -> bool:
        """Return whether the limits leave room for a turn, and for a summary after it, after so many ids."""
        most = self._limits.tokens, self._limits.context
        return all(limit is None or count + self._room <= limit for limit, count in zip(most, used, strict=True))

    def _shorten(self, summary: str = "") -> None:
        """Begin a segment with ``summary`` in place of the turns left out; stop the log if there is no room for it."""
        shown, keep = self._shown, self._kept()
        if callable(self._history.summary):
            try:
                summary = self._history.summary(shown.dropped(keep))
            except BaseException as error:
                raise_interrupt(error)
                self._log.stop(StopReason.ENV_ERROR, f"history.summary raised {described(error)}")
                return
            if not isinstance(summary, str):
                self._log.stop(StopReason.ENV_ERROR, f"history.summary must return a text, got {summary!r:.100}")
                return
        shown.cut(summary, keep=keep)
        self._restart(self.messages)
        if self._has_room(self.lengths):
            return
        what = f"a summary of {len(summary)} characters" if summary else "no summary"
        self._log.stop(
            StopReason.CONTEXT_OVERFLOW,
            f"the instructions, {what} and the last observation need {self.lengths[1]} tokens, which with "
            f"max_tokens_per_turn={self._limits.tokens_per_turn} leaves no room in a segment: history cannot be "
            f"shortened further (max_completion_length={self._limits.tokens}, context={self._limits.context})",
        )

    def _kept(self) -> int:
        """Return the number of turns to keep: as many as have room beside a summary, so that more turns follow.

        A history that is cut for lack of room keeps at most half of its turns, or it would be cut at every turn.
        """
        shown = self._shown
        keep = shown.most_kept if shown.is_long else min(shown.most_kept, shown.count // 2)
        reserve = (self._limits.tokens_per_turn or 1) if self._history.summary else 0
        while keep and not self._has_room((0, len(self._chat.open(shown.messages(keep))) + reserve)):
            keep -= 1
        return keep


def _turns(count: int) -> str:
    return f"{count} earlier turn{'s' * (count != 1)}"


def shown(preamble: Sequence[Message], texts: Sequence[str], turns: Sequence[Exchange]) -> list[Message]:
    """Return ``preamble`` with ``texts`` in its last user message, or in a new one, and then the turns."""
    messages = conversation(preamble, texts)
    for answer, observation in turns:
        messages += [answer.as_message(), Message("user", observation)]
    return messages
