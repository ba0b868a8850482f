"""Checks that conversations which are played go on as their chat template renders them."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from gym_trl.chat.codec import FIRST_PLACE, PLACE, encodable
from gym_trl.chat.continuation import Continuation, DiffersError
from gym_trl.chat.template_facts import TemplateChecks
from gym_trl.chat.template_text import TemplateText, fold_system
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Message

# Up to _EACH_LENGTH answers every number is checked when a conversation reaches it, then ahead.
_EACH_LENGTH = 32
# Openings with different system messages are checked separately as long as fewer than this many are known.
_KINDS = 16
# Credit for comparing whole conversations, in messages: this much at first, and this much more for each turn.
_FIRST_CREDIT, _CREDIT = 24.0, 0.05


class Following:
    """Checks of conversations as they become longer than any so far.

    Args:
        text: The template.
        checks: Its facts, to which conversations with other beginnings are added.
        plain: Function that breaks up control tokens in a message's text.
    """

    def __init__(self, text: TemplateText, checks: TemplateChecks, plain: Callable[[str], str]) -> None:
        self._text, self._checks, self._plain = text, checks, plain
        self._credit, self._warned = _FIRST_CREDIT, False

    def follow(self, messages: Sequence[Message], answers: int) -> bool:
        """Return whether the template renders a conversation to the text that ``open`` and ``reply`` wrote for it.

        Each number of answers is checked once, with placeholder texts. The actual texts are checked for the first
        conversations, and later as often as the cost stays small; the first difference is a warning.

        Args:
            messages: The whole conversation, which ends with a user message.
            answers: Number of the model's answers in it, each followed by a user message.

        Raises:
            ChatTemplateError: the texts differ whatever is said; the message names the difference and the number of
                answers.
        """
        self._credit += _CREDIT
        facts = self._checks.facts
        spoken = fold_system(messages) if facts.folds_system else messages
        first, begun = spoken[0], len(spoken) - 2 * answers
        # Few templates depend on the text of a system message, and every row of a dataset may have its own.
        system = first.content if first.role == "system" and len(facts.continuations) < _KINDS else ""
        kind = (system, first.role, *[message.role for message in spoken[1:begun]]) if begun > 1 else ("", first.role)
        try:
            continuation = facts.continuations.get(kind)
            if continuation is None:
                continuation = facts.continuations[kind] = self._checks.continuation(spoken[:begun], deep=False)
            if continuation.checked < answers <= _EACH_LENGTH:
                continuation.check(self._text.render_all, answers)
                continuation.checked = answers
            elif answers > max(continuation.ahead, _EACH_LENGTH):
                continuation.check(self._text.render_all, answers)
                continuation.check(self._text.render_all, 2 * answers)
                continuation.ahead = 2 * answers
        except DiffersError as error:
            raise self._text.refusal(str(error)) from None
        if self._credit < len(spoken):
            return True
        self._credit -= len(spoken)
        try:
            self._compare(continuation, spoken, answers)
        except DiffersError as error:
            if not self._warned:
                self._warned = True
                message = (
                    f"{self._text.name}'s chat template depends on what is said: it {error}. The model is shown what "
                    "it writes after other texts; env/template_differences counts such turns, and "
                    "history=History(template=True) shows the whole conversation as the template writes it"
                )
                warnings.warn(message, stacklevel=3)
            return False
        return True

    def _compare(self, continuation: Continuation, spoken: Sequence[Message], answers: int) -> None:
        """Check that one rendering of the conversation contains all messages in order, as the model received them."""
        plain = self._plain
        texts = [
            replace(message, content=plain(message.content), reasoning_content=plain(message.reasoning_content))
            for message in spoken
        ]
        try:
            rendered, *framed = (
                self._text.render(*texts),
                *(self._text.after_answer(message) for message in texts[-2 * answers + 1 :: 2]),
            )
        except ChatTemplateError:  # the template rejects one of these texts; see ``Codec.write``
            return
        if not rendered.endswith(framed[-1]):
            raise DiffersError(
                f"writes the user message after answer {answers} differently after the present conversation"
            )
        position = 0
        for turn, tail in enumerate(framed[:-1], start=1):
            position = rendered.find(text := tail.removesuffix(continuation.after), position)
            if position < 0:
                raise DiffersError(f"writes the user message after answer {turn} differently after {answers} answers")
            position += len(text)

    def rendered(self, messages: Sequence[Message]) -> str:
        """Return the template's text of a conversation, up to the point where the next response begins.

        Texts that the template rejects stand where other texts would, as in ``open``.
        """
        spoken = [
            replace(message, content=encodable(message.content), reasoning_content=encodable(message.reasoning_content))
            for message in (fold_system(messages) if self._checks.facts.folds_system else messages)
        ]
        try:
            return self._text.render(*spoken)
        except ChatTemplateError:
            places = [replace(message, content=chr(FIRST_PLACE + index)) for index, message in enumerate(spoken)]
            return PLACE.sub(lambda place: spoken[ord(place[1]) - FIRST_PLACE].content, self._text.render(*places))
