"""Codec of a Hugging Face tokenizer: its control tokens, and the fast path to its backend."""

import sys
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gym_trl.chat.codec import Codec
from gym_trl.types import TokenIds


class FastTokenizer:
    """Fast path to a Transformers tokenizer's Rust backend, without the Python code around it."""

    @classmethod
    def of(cls, tokenizer: Any) -> "FastTokenizer | None":
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
        """Return the ids of a text, without any that the tokenizer would add."""
        backend = self._tokenizer.backend_tokenizer
        # Truncation and padding of an earlier batch stay switched on in the backend; Transformers switches them off.
        switched = backend.truncation or backend.padding or backend.encode_special_tokens
        if switched or getattr(self._tokenizer, "split_special_tokens", False):
            return list(self._tokenizer.encode(text, add_special_tokens=False))
        # The variant that does not compute the offsets of the ids.
        ids: TokenIds = backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens included."""
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
    fast = FastTokenizer.of(tokenizer)
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
