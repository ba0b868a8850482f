"""Text to ids and back, in which only a template and the model write control tokens."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

from gym_trl.types import TokenIds

CUT = "\ufdd0"
"""Place in a text at which the ids of both sides are encoded apart. Unicode reserves this character and the next ones
for internal use ("noncharacters"), so no message has them."""
_UNWANTED = re.compile("[\ud800-\udfff\ufdd0-\ufdd4]")  # and surrogates, which no tokenizer encodes


class Encoder:
    """Text to ids and back, in which messages write no control tokens.

    Control tokens are the tokenizer's added tokens, but for plain words. In a message each is cut in two (``plain``),
    and ``encode`` encodes the pieces apart: all characters stay, and no control token is written.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = [token for token in tokenizer.added_tokens_decoder.values() if token.content.strip()]
        special = {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        marks = {*special, *(token.content for token in added)}
        control = special | {mark for mark in marks if not mark.strip().isalnum()}
        self.marks, self._special = _any_of(marks), _any_of(special)
        self._heads_of_control, self._heads_of_special = _heads_of(control), _heads_of(special)
        self._control_ids = {tokenizer.convert_tokens_to_ids(mark) for mark in control}
        if "unk" in str(tokenizer.unk_token) and tokenizer.unk_token not in (tokenizer.eos_token, tokenizer.bos_token):
            self._control_ids.discard(tokenizer.unk_token_id)  # SmolLM2's is <|endoftext|>, which also begins texts
        firsts = (mark for mark in (tokenizer.eos_token, *sorted(marks)) if mark and len(self._encode(mark)) == 1)
        self._before = next(firsts, "")
        self._cut = CUT if self._before and self.decode(self.encode(f"a<{CUT}|b")) == "a<|b" else " "

    def plain(self, text: str, *, own: bool = False) -> str:
        """Return a text in which each control token is cut in two, of the model's ``own`` only the special ones."""
        heads = self._heads_of_special if own else self._heads_of_control
        return heads.sub(rf"\1{self._cut}", _UNWANTED.sub("\ufffd", text))

    def inert(self, text: str) -> str:
        """Return a text that writes no control tokens, whatever a normaliser makes of its characters."""
        if not self.control(self.encode(text := self.plain(text))):
            return text
        return self._cut.join(
            next((one for one in (char, "\ufffd") if not self.control(self.encode(one))), "")
            for char in text.replace(self._cut, "")
        )

    def control(self, ids: Iterable[int]) -> TokenIds:
        """Return the control tokens among ids."""
        return [id_ for id_ in ids if id_ in self._control_ids]

    def encode(self, text: str, *, begins: bool = False, after: str = "") -> TokenIds:
        """Return the ids of a text at the beginning of a conversation or after it, there ``after`` another text."""
        first, *others = text.split(CUT)
        ids = self._encode(first) if begins else self._encode_after(first, after)
        for piece in others:
            ids += self._encode_after(piece)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the text that each id adds; a character made of several ids belongs to the last of them."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=False)
        return [stream.step(self._tokenizer.backend_tokenizer, id_) or "" for id_ in ids]

    def bare(self, text: str) -> str:
        """Return a text of the model without control tokens and surrounding space."""
        return self._special.sub("", text).strip()

    def _encode(self, text: str) -> TokenIds:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_after(self, text: str, after: str = "") -> TokenIds:
        """Return the ids of a text after a control token and perhaps a text that tokens of this one do not begin in.

        SentencePiece writes a space where a text begins, and Phi-3's end of a turn takes the line break after it.
        """
        head, ids = (self._encode(f"{self._before}{after}{end}") for end in ("", text))
        if after and ids[: len(head)] != head:
            return self._encode_after(text)
        return ids[len(head) :] if text else []


def _heads_of(marks: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the first character of each mark."""
    return re.compile(f"(?={_any_of(marks).pattern})(.)", re.DOTALL)


def _any_of(marks: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(filter(None, marks), key=len, reverse=True))) or "(?!)")
