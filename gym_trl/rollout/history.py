"""Parts of a conversation that the model sees, where that is not all of it.

``HistoryContext`` begins a segment with a prompt of its own where a ``History`` leaves turns out, or where the chat
template renders the conversation anew.
"""

from collections.abc import Sequence
from typing import Any

from gym_trl.chat import Chat, ChatLike
from gym_trl.errors import ChatTemplateError, ConfigError, described, raise_interrupt
from gym_trl.options import History
from gym_trl.rollout.context import Context
from gym_trl.rollout.limits import Limits
from gym_trl.rollout.log import EpisodeLog, conversation
from gym_trl.types import Completion, Message, StopReason, TokenIds

ASK = (
    "The conversation has become too long. Write down everything that you need to go on: the goal, what you have found "
    "out, and what you planned. You will see only these notes and the latest observation."
)
"""Message that asks the model for a summary."""


def chat_for(tokenizer: Any, history: History | None, *, chat_template: str | None = None, **options: Any) -> Chat:
    """Return the chat of a tokenizer for episodes with a history.

    Raises:
        ChatTemplateError: The template does not continue turn by turn, and the history does not render it anew.
    """
    chat = Chat(tokenizer, chat_template=chat_template, **options)
    if chat.refusal and (history is None or not history.template):
        raise ChatTemplateError(chat.refusal)
    return chat


class HistoryContext(Context):
    r"""Context of one episode with a history that is cut, summarised or rendered anew.

    >>> from gym_trl.testing import ByteChat
    >>> from gym_trl.types import StepResult, Task
    >>> chat, log = ByteChat(), EpisodeLog(Task("Guess", seed=1), preamble=[Message("system", "Be brief.")])
    >>> context = HistoryContext(log, chat, Limits(tokens_per_turn=9), History(last=1))
    >>> log.begin(StepResult("Start.", instructions="Guess 1 to 9."))
    >>> context.open()
    >>> for response, observation in (("5", "Higher."), ("8", "Lower."), ("6", "Higher.")):
    ...     _ = context.commit(Completion("0", chat.say(response), [-0.1] * 2))
    ...     log.answer(response)
    ...     log.step(StepResult(observation))
    ...     context.reply()
    >>> for message in context.messages:
    ...     print(f"{message.role}: {message.content!r}")
    system: 'Be brief.'
    user: 'Guess 1 to 9.\n\n[2 earlier turns are left out.]\n\nLower.'
    assistant: '6'
    user: 'Higher.'

    Args:
        log: Log of the episode before its reset.
        chat: Converts messages to ids.
        limits: Limits of a segment.
        history: Part of the conversation that is shown.

    Raises:
        ConfigError: A segment never has room for a turn.
    """

    def __init__(self, log: EpisodeLog, chat: ChatLike, limits: Limits, history: History) -> None:
        super().__init__(log, chat)
        self._history, self._limits = history, limits
        self._preamble = tuple(log.messages)
        self._instructions = ""
        self._left_out = 0  # number of turns that are not shown
        self._summary = ""  # of these
        self._prompt: TokenIds | None = None  # of the segment that the next turn begins
        ask = self._chat.reply(history.ask or ASK, closed=False) if history.summary == "model" else []
        turn, most = limits.tokens_per_turn or 1, limits.tokens
        self._room = turn + (turn + len(ask) if history.summary == "model" else 0)  # for a turn, and a summary after it
        if history.cuts and most is not None and self._room > most:
            asks = f", a summary of as many and {len(ask)} that ask for it" if ask else ""
            raise ConfigError(
                f"max_completion_length must be at least {self._room} with this history, got {most}: a segment needs "
                f"room for a turn of max_tokens_per_turn={turn}{asks}"
            )

    def open(self) -> None:
        """Begin with the messages of the log, after the reset."""
        super().open()
        self._instructions = self._log.last.instructions

    def commit(self, completion: Completion) -> bool:
        """Append what was sampled after ``ids``, and return True if it is the response of a turn."""
        if self._prompt is not None:
            turn = len(self._log.turns)
            self.transcript.restart(self._prompt, turn=turn, left_out=self._left_out, summary=self._summary)
            self._prompt = None
        super().commit(completion)
        if not self.asking:
            return True
        self.asking = False
        self._shorten(self._chat.text(completion.ids).text)
        return False

    def reply(self) -> None:
        """Add the observation of the last step, and cut the history where it is too long."""
        self._append(self.messages, self._log.last.observation)
        if not self._is_long and (not self._history.cuts or self._has_room(self.lengths)):
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
        return self._without(self._left_out)

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

    def _append(self, messages: Sequence[Message], text: str) -> None:
        """Continue the segment with ``text``, the last of ``messages``, or begin another one with all of them."""
        if not self._history.template:
            self._delta = self._chat.reply(text, closed=self.closed)
            return
        before, prompt = self.transcript.prompt([]), self._chat.open(messages)
        if prompt[: len(before)] == before:
            self._delta = prompt[len(before) :]
        else:
            self._restart(messages)

    def _restart(self, messages: Sequence[Message]) -> None:
        self._prompt, self._delta = self._chat.open(messages), []

    def _has_room(self, used: tuple[int, int]) -> bool:
        """Return whether the limits leave room for a turn, and for a summary after it, after so many ids."""
        most = self._limits.tokens, self._limits.context
        return all(limit is None or count + self._room <= limit for limit, count in zip(most, used, strict=True))

    @property
    def _is_long(self) -> bool:
        """True if more turns are shown than the history may have."""
        return self._history.most is not None and len(self._log.turns) - self._left_out > self._history.most

    def _shorten(self, summary: str = "") -> None:
        """Begin a segment with ``summary`` in place of the turns left out; stop the log if there is no room for it."""
        count = self._number_to_leave_out()
        if callable(self._history.summary):
            try:
                summary = self._history.summary(self._replaced(count))
            except BaseException as error:
                raise_interrupt(error)
                self._log.stop(StopReason.ENV_ERROR, f"history.summary raised {described(error)}")
                return
            if not isinstance(summary, str):
                self._log.stop(StopReason.ENV_ERROR, f"history.summary must return a text, got {summary!r:.100}")
                return
        self._left_out, self._summary = count, summary
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

    def _number_to_leave_out(self) -> int:
        """Return the number of turns to leave out: the others have room beside a summary, so that more turns follow.

        A history that is cut for lack of room keeps at most half of its turns, or it would be cut at every turn.
        """
        played = len(self._log.turns)
        shown = played - self._left_out
        keep = min(self._history.last or 0, shown if self._is_long else shown // 2)
        reserve = (self._limits.tokens_per_turn or 1) if self._history.summary else 0
        while keep and not self._has_room((0, len(self._chat.open(self._without(played - keep))) + reserve)):
            keep -= 1
        return played - keep

    def _without(self, count: int) -> list[Message]:
        """Return the conversation without the first ``count`` turns, with a note in their place."""
        note = self._summary and f"Notes of the {_turns(count)} before:\n{self._summary}"
        if count and not note:
            note = f"[{_turns(count)} {'is' if count == 1 else 'are'} left out.]"
        texts = self._instructions, note, self._observation(count)
        return conversation(self._preamble, texts) + self._exchanges(count, len(self._log.turns))

    def _replaced(self, count: int) -> list[Message]:
        """Return what a summary replaces: the shown messages of the first ``count`` turns, with the summary so far."""
        before = [Message("user", self._summary)] if self._summary else []
        return [*before, Message("user", self._observation(self._left_out)), *self._exchanges(self._left_out, count)]

    def _observation(self, turn: int) -> str:
        """Return the observation before a turn, which may be the next one."""
        turns = self._log.turns
        return turns[turn].observation if turn < len(turns) else self._log.last.observation

    def _exchanges(self, start: int, stop: int) -> list[Message]:
        """Return the responses of some turns, each with the observation that followed it."""
        messages = self._log.messages
        first = len(messages) - 2 * len(self._log.turns)
        return messages[first + 2 * start : first + 2 * stop]


def _turns(count: int) -> str:
    return f"{count} earlier turn{'s' * (count != 1)}"
