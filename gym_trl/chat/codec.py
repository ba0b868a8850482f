"""Text to token ids and back, in which messages write no control tokens."""

import re
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

from gym_trl.errors import ChatTemplateError
from gym_trl.types import Message, TokenIds

# Private-use code points mark the positions of texts in a rendering.
FIRST_PLACE = 0xF0000
PLACE = re.compile("([\U000f0000-\U000ffffd])")
# Unicode reserves these code points for internal use ("noncharacters"), so `Codec.plain` can remove them from messages
# and they are free as marks here.
_BREAK = "\ufdd0"
# Whitespace other than line breaks, such as U+001D, of which some vocabularies have no token but the unknown one.
_SPACE = re.compile(r"[^\S\n]")
_UNWANTED = re.compile("[\ud800-\udfff\ufdd0-\ufdd3]")


class _Written(NamedTuple):
    """Control tokens that a template writes around harmless texts."""

    head: TokenIds
    """All ids up to the last control token before the first text."""
    tail: TokenIds
    """All ids from the first control token after the last text."""
    control: TokenIds
    """All control tokens in their order."""

    def around(self, ids: TokenIds, control_ids: frozenset[int], *, alone: bool) -> bool:
        """Return whether ``ids`` contain the same control tokens; ``alone`` means that they surround a single text."""
        head, tail, control = self
        start, stop = len(head), len(ids) - len(tail)
        if start > stop or ids[:start] != head or ids[stop:] != tail:
            return False
        if alone:
            return control_ids.isdisjoint(ids[start:stop])
        return list(filter(control_ids.__contains__, ids)) == control


class Codec:
    """Converter of text to ids and back that can keep messages from writing control tokens.

    Args:
        encode: Text to ids.
        decode: Ids to text.
        special: Tokens that are removed from a model's response.
        added: Tokens that a template may end a turn with.
        control: Tokens that messages must not write: ``special`` and the tokens that a template marks messages with.
        control_ids: Ids of ``control``, and of control tokens without a text.
    """

    def __init__(
        self,
        encode: Callable[[str], Sequence[int]],
        decode: Callable[[Any], str],
        *,
        special: Collection[str] = (),
        added: Collection[str] = (),
        control: Collection[str] = (),
        control_ids: Collection[int] = (),
    ) -> None:
        self._encode, self._decode = encode, decode
        self._special = _any_of(special)
        self._breakable_special = _breakable(special)
        self._control = _any_of({*special, *control})
        self._breakable = _breakable({*special, *control})
        self._harmless = re.compile(f"({_any_of({*control} - {*special}).pattern})|\\S")
        self._control_ids = frozenset(control_ids)
        self.added = _any_of({*special, *added})
        self._heads: dict[str, TokenIds] = {}
        self._written: dict[Hashable, _Written] = {}

    def write(
        self,
        render: Callable[[Sequence[str]], str],
        messages: Sequence[Message],
        *,
        after: str = "",
        key: Hashable = None,
    ) -> TokenIds:
        """Return the ids of ``render`` applied to the messages' texts, without control tokens from these texts.

        Args:
            render: Returns the template's text around the given texts, one for each message.
            messages: Messages to write.
            after: Text that precedes the ids.
            key: Identifies renderings with the same control tokens around all harmless texts.
        """
        try:
            written = self._written.get(key)
            if written is None:
                written = self._find_written(render, messages, after)
                if key is not None:
                    self._written[key] = written
            texts = [self._plain(message) for message in messages]
            ids = self.encode(render(texts), after=after)
            if written.around(ids, self._control_ids, alone=len(messages) == 1):
                return ids
            # The template may write different control tokens around an empty or a long text.
            masked = [_SPACE.sub(" ", self._harmless.sub("x", message.content)) for message in messages]
            if self._controls(ids) == self._controls(self.encode(render(masked), after=after)):
                return ids
        except ChatTemplateError:  # the template rejects this text, not this kind of message
            pass
        pieces = PLACE.split(render([chr(FIRST_PLACE + index) for index in range(len(messages))]))
        for index in range(1, len(pieces), 2):
            pieces[index] = self._inert(encodable(messages[ord(pieces[index]) - FIRST_PLACE].content), after)
        return self.encode(_BREAK.join(pieces), after=after)

    def plain(self, text: str) -> str:
        """Return a message that is safe to render: no reserved code points, and its control tokens broken up."""
        text = encodable(text)
        return self._breakable.sub(rf"\1{_BREAK}", text) if self._control.search(text) else text

    def encode(self, text: str, *, after: str = "") -> TokenIds:
        """Return the ids of ``text`` in the position after ``after``."""
        first, *others = text.split(_BREAK)
        ids = self._continue(after, first)
        for piece in others:
            ids += self._continue(after, piece)
        return ids

    def id(self, mark: str) -> int:
        """Return the id of an added token."""
        return self._encode(mark)[-1]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ``ids``, control tokens included; unknown ids are left out."""
        try:
            return self._decode(ids)
        except Exception:  # each tokenizer has its own error for an unknown id
            return "".join(self.decode([id_]) for id_ in ids) if len(ids) != 1 else ""

    def strip(self, text: str) -> str:
        """Return ``text`` without special tokens and surrounding whitespace."""
        return self._special.sub("", text).strip() if text else ""

    def _plain(self, message: Message) -> str:
        if message.role != "assistant":
            return self.plain(message.content)
        return self._breakable_special.sub(rf"\1{_BREAK}", encodable(message.content))

    def _find_written(
        self, render: Callable[[Sequence[str]], str], messages: Sequence[Message], after: str
    ) -> _Written:
        # An assistant message of the prompt keeps its marks: a template that drops thinking finds it by them.
        places = [
            _SPACE.sub(" ", self._harmless.sub(lambda mark: mark[1] or "x", message.content))
            if message.role == "assistant"
            else chr(FIRST_PLACE + index)
            for index, message in enumerate(messages)
        ]
        pieces = PLACE.split(render(places))[::2]
        first, last = (self.encode(piece, after=after) for piece in (pieces[0], pieces[-1]))
        head = max((index for index, id_ in enumerate(first) if id_ in self._control_ids), default=-1) + 1
        tail = next((index for index, id_ in enumerate(last) if id_ in self._control_ids), len(last))
        return _Written(
            # Without text between them, the head contains all ids.
            first[:head],
            last[tail:] if len(pieces) > 1 else [],
            self._controls(self.encode(_BREAK.join(pieces), after=after)),
        )

    def _controls(self, ids: TokenIds) -> TokenIds:
        return list(filter(self._control_ids.__contains__, ids))

    def _inert(self, text: str, after: str) -> str:
        """Return a text broken up until its ids contain no control token; a character that is one is replaced."""
        if self._control_ids.isdisjoint(self.encode(text, after=after)):
            return text
        if len(text) == 1:
            return self._inert("\ufffd", after) if text < "\ufffd" else ""
        middle = len(text) // 2
        return f"{self._inert(text[:middle], after)}{_BREAK}{self._inert(text[middle:], after)}"

    def _continue(self, before: str, text: str) -> TokenIds:
        # Sentencepiece tokenizers put a space in front of the first text that they are given.
        if not before:
            return list(self._encode(text))
        head = self._heads.get(before)
        if head is None:
            head = self._heads[before] = list(self._encode(before))
        ids = list(self._encode(before + text))
        return ids[len(head) :] if ids[: len(head)] == head else list(self._encode(text))


def encodable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of reserved code points and of those that no tokenizer can encode."""
    return text if text.isascii() else _UNWANTED.sub("\ufffd", text)


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _breakable(texts: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of the first character of each text that has more than one."""
    return re.compile(f"(?={_any_of([text for text in texts if len(text) > 1]).pattern})(.)", re.DOTALL)
