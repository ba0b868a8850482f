"""Checks that a chat template continues conversations turn by turn, at any length."""

from collections.abc import Callable, Sequence

from gym_trl.chat.codec import FIRST_PLACE, PLACE
from gym_trl.types import Message

Render = Callable[[Sequence[Message]], str]

# Contents that templates are known to look for in a message, and more text than in a short one.
_ODD = (
    "Yes! 1 + 2 < 3 & 'no' or \"so\"?\n\n# A\n* http://b.c/d [e] {f} /no_think <g>h</g> tool system error ``` "
    + "i " * 99
)
_THOUGHT = "<think>\nHm.\n</think>\n\n"


class DiffersError(ValueError):
    """Difference between a template's rendering and the turn-by-turn continuation; the message describes it."""


class Continuation:
    """Text that a template writes between the messages of a conversation, as a reference for longer conversations.

    >>> def render(messages):
    ...     return "".join(f"<{message.role}>{message.content}" for message in messages) + "<assistant>"
    >>> continuation = Continuation(render, [Message("user", "?")])
    >>> continuation.check(render, 9)
    >>> continuation.check(lambda messages: render(messages[-5:]), 3)
    Traceback (most recent call last):
        ...
    gym_trl.chat.continuation.DiffersError: drops, repeats or moves a message of 7, after 3 answers

    Args:
        render: Renders messages, up to the point where the next answer begins.
        opening: First messages of the conversations. The texts of system messages are used, of all others only the
            roles.
        role: Role of the messages that follow answers.

    Raises:
        DiffersError: ``render`` drops, repeats or moves messages after the first answer, or then begins differently.
    """

    def __init__(self, render: Render, opening: Sequence[Message], role: str = "user") -> None:
        self._opening = opening
        self._role = role
        self._begun, self._once = self._pieces(render, 0), self._pieces(render, 1)
        # An answer in the prompt may lose its thinking as soon as another answer follows.
        self._kept = 1 if any(message.role == "assistant" for message in opening) else len(self._begun) - 1
        self._first = len(self._begun) - 1
        # If the first role differs, another text may follow.
        alike = opening[-1].role == role
        self._between = self._once[self._first] if alike else self._pieces(render, 2)[self._first + 2]
        self.before, self.after = self._once[-2:]
        """Text before and after the last message, if an answer precedes it."""
        self.check(render, 1)
        self.checked = 1
        """All numbers of answers up to this one have been checked."""
        self.ahead = 1
        """This number of answers has been checked, and with it any change that begins at a lower number."""

    def check(self, render: Render, answers: int) -> None:
        """Compare the rendering with this many answers, all messages with the same text, to that of one answer.

        Raises:
            DiffersError: the text between the messages differs.
        """
        pieces = self._pieces(render, answers)
        if pieces[: self._kept] != self._begun[: self._kept]:
            raise DiffersError(f"begins a conversation differently after {_count(answers)}")
        for index, piece in enumerate(pieces[self._first : -1]):
            turn, is_answer = index // 2 + 1, not index % 2
            if not is_answer and piece != self.before:
                raise DiffersError(
                    f"writes a {self._role} message differently in a longer conversation: the one after answer {turn}, "
                    f"after {_count(answers)}"
                )
            if is_answer and piece != (self._once[self._first] if turn == 1 else self._between):
                raise DiffersError(f"writes what precedes answer {turn} differently after {_count(answers)}")
        if pieces[-1] != self.after:
            raise DiffersError(
                f"writes a {self._role} message differently in a longer conversation: the text after it, "
                f"after {_count(answers)}"
            )

    def check_texts(self, render: Render) -> None:
        """Check that the texts of earlier messages, and thinking, do not change how the last message is rendered.

        Raises:
            DiffersError: they do.
        """
        for answers in (1, 2):
            for before, text in (("", _ODD), (_ODD, ""), (_THOUGHT, "")):
                pieces = self._pieces(render, answers, before, begins=text)
                if pieces[-2:] != [self.before, self.after]:
                    other = f"{before or text!r:.90}"
                    raise DiffersError(
                        f"writes a {self._role} message differently after other messages, such as {other}"
                    )
        spaced = self._pieces(render, 2, after=" \n")
        kept = spaced[-1].removesuffix(self.after)
        if spaced[-1] != kept + self.after or spaced[self._first + 2] != kept + self._between:
            raise DiffersError(f"trims a {self._role} message differently where it is the last")

    def differs_from(self, other: "Continuation") -> bool:
        """Return whether the messages after another opening are rendered differently."""
        return (self.before, self.after) != (other.before, other.after)

    def _pieces(self, render: Render, answers: int, before: str = "", after: str = "", begins: str = "") -> list[str]:
        """Return the texts around the messages, if answers begin with ``before`` and user messages with ``begins``."""
        messages, places = [], 0
        for message in (*self._opening, *[Message("assistant", ""), Message(self._role, "")] * answers):
            if message.role == "system" and message.content and not PLACE.search(message.content):
                messages.append(message)
                continue
            is_answer = message.role == "assistant"
            text = chr(FIRST_PLACE + places) + ("" if is_answer else after)
            # A system message is the same at each turn, whatever the template makes of its text.
            beginning = {"assistant": before, "system": ""}.get(message.role, begins)
            messages.append(Message(message.role, beginning + text))
            places += 1
        messages[-1] = Message(messages[-1].role, text)
        pieces = PLACE.split(render(messages))
        if [ord(place) - FIRST_PLACE for place in pieces[1::2]] != list(range(places)):
            raise DiffersError(f"drops, repeats or moves a message of {len(messages)}, after {_count(answers)}")
        return pieces[::2]


def _count(answers: int) -> str:
    return f"{answers} answer{'s' * (answers != 1)}"
