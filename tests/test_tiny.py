"""The tiny tokenizer, in memory and read back from beside its model."""

import string

import pytest
from hypothesis import given, strategies as st

from gym_trl.testing import save_tiny, tiny_tokenizer

VISIBLE = "\n" + "".join(char for char in string.printable if char.isprintable())
TOKENIZER = tiny_tokenizer()


@pytest.fixture(scope="module")
def read_back(tmp_path_factory):
    from transformers import AutoTokenizer

    folder = tmp_path_factory.mktemp("tiny")
    save_tiny(folder)
    return AutoTokenizer.from_pretrained(folder)


@given(st.text(VISIBLE).filter(lambda text: "<|" not in text))  # the beginning of marks
def test_every_character_is_a_token_and_comes_back(text):
    ids = TOKENIZER.encode(text)
    assert len(ids) == len(text)
    assert TOKENIZER.decode(ids) == text


def test_a_byte_that_has_no_token_is_unknown():
    assert TOKENIZER.encode("é") == [TOKENIZER.unk_token_id] * 2


def test_transformers_reads_beside_the_model_what_was_written(read_back):
    message = [{"role": "user", "content": f"Two  spaces, don't, 1234\n\n{VISIBLE}"}]
    options = {"add_generation_prompt": True, "return_dict": False}
    assert read_back.apply_chat_template(message, **options) == TOKENIZER.apply_chat_template(message, **options)
    assert [read_back.decode([id_]) for id_ in range(len(TOKENIZER))] == [
        TOKENIZER.decode([id_]) for id_ in range(len(TOKENIZER))
    ]
    assert read_back.eos_token_id == TOKENIZER.eos_token_id
