import re
from hashlib import sha256
from pathlib import Path

import pytest

from gym_trl.envs import words
from gym_trl.envs.words import make_lists


def test_the_lists_are_sorted_words_and_answers_can_be_guessed() -> None:
    lists = {"answers.txt": words.answers(), "guesses.txt": words.guesses(), "common.txt": words.common()}
    for listed in lists.values():
        assert list(listed) == sorted(set(listed))
        assert all(re.fullmatch("[a-z]{5,10}", word) for word in listed)
    assert set(words.answers()) < set(words.guesses())
    assert all(len(word) == 5 for word in words.guesses())
    assert {name: len(listed) for name, listed in lists.items()} == make_lists.COUNTS


def test_the_lists_have_no_word_that_is_unfit_and_no_plain_plural() -> None:
    every = {*words.answers(), *words.guesses(), *words.common()}
    assert not [word for word in every if sha256(word.encode()).hexdigest()[:8] in make_lists._UNFIT]
    assert not {"words", "cared", "using", "wider"} & set(words.answers())
    assert {"glass", "breed", "thing", "other"} <= set(words.answers())


def test_the_copyright_notice_lies_beside_the_lists() -> None:
    notice = (Path(str(words.__file__)).parent / "COPYRIGHT").read_text()
    assert "Copyright 2000-2018 by Kevin Atkinson" in notice
    assert "this permission notice appear in" in notice


@pytest.mark.skipif(not Path(make_lists.SOURCE).exists(), reason="SCOWL is not installed: apt-get install scowl")
def test_the_lists_are_made_from_scowl_again() -> None:
    made = make_lists.make_lists(Path(make_lists.SOURCE))
    assert made == {
        "answers.txt": list(words.answers()),
        "guesses.txt": list(words.guesses()),
        "common.txt": list(words.common()),
    }
