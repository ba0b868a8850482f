"""Chat whose messages stand between fixed delimiters."""

from collections.abc import Callable, Sequence
from typing import Any

from gym_trl.chat.codec import Codec
from gym_trl.chat.protocol import Chat
from gym_trl.chat.tokenizer_codec import tokenizer_codec
from gym_trl.errors import ChatTemplateError
from gym_trl.text.thoughts import split_thinking
from gym_trl.types import Answer, Message, TokenIds


class DelimiterChat(Chat):
    r"""Chat with hand-written markers, for tokenizers without a chat template.

    >>> chat = DelimiterChat(lambda text: text.encode(), lambda ids: bytes(ids).decode(), assistant=("Model: ", "\n"))
    >>> bytes(chat.open([Message("user", "2 + 2?")]))
    b'User: 2 + 2?\nModel: '
    >>> chat.text([*b"4\n"])
    Answer(thinking='', text='4')
    >>> bytes(chat.reply("Right.", closed=chat.closes([*b"4\n"])))
    b'User: Right.\nModel: '

    Each role has a marker before and after its messages; the model's turn ends with the second marker of ``assistant``.
    If that is always a single id, ``stop_ids`` has it; otherwise give ``stop_strings`` to the engine. Unlike control
    tokens, these markers are plain text, so messages can contain them.

    Args:
        encode: Converts text to ids without adding any, or is a Hugging Face tokenizer.
        decode: Converts ids to text, control tokens included. Not needed with a tokenizer.
        bos: Text at the start of every conversation.
        system: Markers before and after a system message.
        user: Markers before and after a message of the environment.
        assistant: Markers before and after a message of the model.
        roles: Markers before and after messages of other roles, such as ``tool=("Tool: ", "\n")``.

    Raises:
        ChatTemplateError: the second marker of ``assistant`` is empty, so nothing ends the model's turn.
    """

    def __init__(
        self,
        encode: Any,
        decode: Callable[[Any], str] | None = None,
        *,
        bos: str = "",
        system: tuple[str, str] = ("", "\n\n"),
        user: tuple[str, str] = ("User: ", "\n"),
        assistant: tuple[str, str] = ("Assistant: ", "\n"),
        **roles: tuple[str, str],
    ) -> None:
        self._bos, self._head, self._end = bos, *assistant
        self._marks = {"system": system, "user": user, "assistant": assistant, **roles}
        written = "".join([bos, *(mark for pair in self._marks.values() for mark in pair)])
        self._codec = tokenizer_codec(encode, written=written) if decode is None else Codec(encode, decode)
        if not self._end:
            raise ChatTemplateError("DelimiterChat needs an end of turn, the second marker in assistant=(..., ...)")
        end_ids = self._codec.encode(self._end, after="x")
        self.stop_ids: frozenset[int] = frozenset(end_ids if len(end_ids) == 1 else ())
        self.stop_strings: tuple[str, ...] = () if self._stands_alone(end_ids) else (self._end,)

    def open(self, messages: Sequence[Message]) -> TokenIds:
        """Return the ids that start an episode, up to and including the marker before the model's turn."""
        marks = [self._marks_of(message.role) for message in messages]

        def render(texts: Sequence[str]) -> str:
            messages_text = "".join(before + text + after for (before, after), text in zip(marks, texts, strict=True))
            return self._bos + messages_text + self._head

        return self._codec.write(render, messages, key=tuple(message.role for message in messages))

    def reply(self, text: str, *, role: str = "user", closed: bool | str) -> TokenIds:
        """Return the ids between two sampled turns: the first one's end unless ``closed``, the message, the marker.

        Raises:
            ChatTemplateError: there are no markers for this ``role``.
        """
        before, after = self._marks_of(role)
        before = before if closed else self._end + before
        return self._codec.write(
            lambda texts: before + texts[0] + after + self._head,
            [Message(role, text)],
            after=self._end if closed else "x",
            key=(role, closed),
        )

    def closes(self, ids: Sequence[int]) -> bool:
        """Return whether these sampled ids end with the end of turn, also if it is merged into their last id."""
        # Each id decodes to at least one byte, so this many ids are enough to hold the end.
        return self._codec.decode(ids[-len(self._end.encode()) :]).endswith(self._end)

    def text(self, ids: TokenIds) -> Answer:
        """Return the text of a response without the end of turn, split into thinking and answer."""
        thinking, answer = split_thinking(self._codec.decode(ids).removesuffix(self._end))
        return Answer(self._codec.strip(thinking), self._codec.strip(answer))

    def _marks_of(self, role: str) -> tuple[str, str]:
        if role not in self._marks:
            raise ChatTemplateError(f"DelimiterChat has no markers for the role {role!r}; pass {role}=('...', '...')")
        return self._marks[role]

    def _stands_alone(self, end_ids: TokenIds) -> bool:
        """Return whether the end is one id after any text; some tokenizers merge a full stop with a line end."""
        return len(end_ids) == 1 and all(self._codec.encode(mark + self._end)[-1:] == end_ids for mark in "a1.!?)]>\"'")
