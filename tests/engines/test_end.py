"""The end of a response is found in the end of its text, at the id at which the whole text would show it."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from gym_trl.engines.sampler import End

WORDS = ["a", "b", "end", "the", "n't", ".", ",", "é", "€", "日", "本", "🙂", " ", "  ", "</s", ">", "\n"]


def byte_level() -> Any:
    """Byte-level BPE, some of whose merges end within a character."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    coded = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    merges, known = [], sorted(letters)
    for word in [*WORDS, "本a", "日本", " the", "x🙂"]:
        pieces = list(coded.pre_tokenize_str(word)[0][0])
        while len(pieces) > 1:
            first, second, *rest = pieces
            if first + second not in known:
                known.append(first + second)
                merges.append((first, second))
            pieces = [first + second, *rest]
    tokenizer = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(known)}, merges))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Any:
    """Vocabulary of SentencePiece: words that begin with a space, and bytes for all others."""
    known = [*(f"<0x{byte:02X}>" for byte in range(256)), *(word.replace(" ", "▁") for word in WORDS), "▁the", "▁a"]
    tokenizer = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(known)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def word_pieces() -> Any:
    """Words and their continuations, between which spaces are written and taken out again."""
    known = [*(word for word in WORDS if word.strip()), *(f"##{word}" for word in WORDS if word.strip()), "[UNK]"]
    tokenizer = Tokenizer(models.WordPiece({token: id_ for id_, token in enumerate(known)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return tokenizer


MADE = {"bytes": cache(byte_level), "fallback": cache(byte_fallback), "pieces": cache(word_pieces)}


@examples(300)
@given(st.data(), st.sampled_from(sorted(MADE)), st.randoms(use_true_random=False))
def test_a_stop_string_ends_a_response_where_its_whole_text_shows_it(data, kind, chance):
    tokenizer = MADE[kind]()
    size, length = tokenizer.get_vocab_size(), data.draw(st.integers(1, 160))
    some = [chance.randrange(size) for _ in range(chance.choice([3, 12, size]))]
    ids = [chance.choice(some) for _ in range(length)]
    text = tokenizer.decode(ids)
    places = [chance.randrange(len(text) + 1) for _ in range(2)]
    stops = [text[place : place + chance.randint(1, 6)] or "x" for place in places]
    end, shown = End([], stops, tokenizer.decode), None
    for number in range(1, length + 1):
        shown = any(stop in tokenizer.decode(ids[:number]) for stop in stops)
        assert end.reached(ids[:number]) == shown
        if shown:
            break


def test_a_token_of_a_long_response_decodes_only_the_end_of_its_text():
    decoded = []

    def decode(ids):
        decoded.append(len(ids))
        return "".join(chr(97 + id_ % 26) for id_ in ids)

    end = End([], ["END"], decode)
    for number in (1_000, 2_000, 4_000):
        assert not end.reached(list(range(number)))
    assert max(decoded) < 100


@pytest.mark.parametrize("hidden", [40, 400])
def test_ids_without_text_do_not_hide_a_stop_string(hidden):
    def decode(ids):
        return "".join(chr(id_) for id_ in ids if id_)

    ids = [*b"Here it comes: E", *[0] * hidden, ord("N"), *[0] * hidden, ord("D")]
    end = End([], ["END"], decode)
    assert [end.reached(ids[:number]) for number in range(1, len(ids) + 1)] == [False] * (len(ids) - 1) + [True]
