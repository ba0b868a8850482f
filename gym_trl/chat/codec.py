"""Text to token ids and back, by the tokenizer that a chat template belongs to."""

import re
import sys
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from gym_trl.chat.continuation import FIRST_PLACE, PLACE
from gym_trl.errors import ChatTemplateError
from gym_trl.types import Message, TokenIds

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
            return "".join(map(self._decode_one, ids)) if len(ids) != 1 else ""

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
            _SPACE.sub(" ", self._harmless.sub(lambda found: found[1] or "x", message.content))
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

    def _decode_one(self, token_id: int) -> str:
        return self.decode([token_id])

    def _continue(self, before: str, text: str) -> TokenIds:
        # Sentencepiece tokenizers put a space in front of the first text that they are given.
        if not before:
            return list(self._encode(text))
        head = self._heads.get(before)
        if head is None:
            head = self._heads[before] = list(self._encode(before))
        ids = list(self._encode(before + text))
        return ids[len(head) :] if ids[: len(head)] == head else list(self._encode(text))


class _FastTokenizer:
    """Fast path to a Transformers tokenizer's Rust backend, without the Python code around it."""

    @classmethod
    def of(cls, tokenizer: Any) -> "_FastTokenizer | None":
        """Return the fast path if the tokenizer's class does not override encoding or decoding."""
        if "transformers" not in sys.modules:  # then it is no Transformers tokenizer
            return None
        from transformers import PreTrainedTokenizerFast

        plain = isinstance(tokenizer, PreTrainedTokenizerFast) and all(
            getattr(type(tokenizer), name, None) is getattr(PreTrainedTokenizerFast, name, None)
            for name in ("encode", "_encode_plus", "_batch_encode_plus", "decode", "_decode")
        )
        return cls(tokenizer) if plain else None

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def encode(self, text: str) -> Sequence[int]:
        backend = self._tokenizer.backend_tokenizer
        # Truncation and padding of an earlier batch stay switched on in the backend; Transformers switches them off.
        switched = backend.truncation or backend.padding or backend.encode_special_tokens
        if switched or getattr(self._tokenizer, "split_special_tokens", False):
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        # The variant that does not compute the offsets of the ids.
        ids: TokenIds = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.backend_tokenizer.decode(ids, skip_special_tokens=False)
        return text


def tokenizer_codec(tokenizer: Any, *, written: str = "") -> Codec:
    """Return the codec of a Hugging Face tokenizer; ``written`` contains the marks that messages are written with."""
    tokens: Mapping[int, Any] = tokenizer.added_tokens_decoder
    special = {*tokenizer.all_special_tokens, *(token.content for token in tokens.values() if token.special)}
    # Some tokenizers add runs of whitespace, which end no turn, and users add words.
    added = {token.content for token in tokens.values() if token.content.strip()}
    # A template that uses an opening token also uses the closing one.
    plain, written = {mark: mark.replace("/", "") for mark in added}, written.replace("/", "")
    control = {mark for mark in added if plain[mark] in written and not plain[mark].replace("_", "").isalnum()}
    fast = _FastTokenizer.of(tokenizer)
    return Codec(
        fast.encode if fast else lambda text: tokenizer.encode(text, add_special_tokens=False),
        fast.decode
        if fast
        else lambda ids: str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)),
        special=special,
        added=added,
        control=control,
        control_ids=_control_ids(tokenizer, special | control),
    )


def _control_ids(tokenizer: Any, marks: Collection[str]) -> set[int]:
    ids = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.content in marks}
    if hasattr(tokenizer, "all_special_ids"):
        ids.update(tokenizer.all_special_ids)
    else:  # it lists its special tokens as text only
        for encoded in (tokenizer.encode(mark, add_special_tokens=False) for mark in marks):
            ids.update(encoded if len(encoded) == 1 else ())
    unknown = getattr(tokenizer, "unk_token_id", None)
    ends = {getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id")}
    # SmolLM2's is <|endoftext|>, and 21 bytes are not in its vocabulary.
    only_unknown = unknown not in ends and "unk" in str(getattr(tokenizer, "unk_token", "")).lower()
    return ids - {unknown} if only_unknown else ids


def encodable(text: str) -> str:
    """Return ``text`` with U+FFFD in place of reserved code points and of those that no tokenizer can encode."""
    return text if text.isascii() else _UNWANTED.sub("\ufffd", text)


def either(attribute: str, *owners: Any) -> Any:
    """Return the attribute of the first owner for which it is not empty."""
    return next(filter(None, (getattr(owner, attribute, None) for owner in owners)), None)


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted((text for text in texts if text), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _breakable(texts: Collection[str]) -> re.Pattern[str]:
    """Return a pattern of the first character of each text that has more than one."""
    return re.compile(f"(?={_any_of([text for text in texts if len(text) > 1]).pattern})(.)", re.DOTALL)
