"""The word lists are sorted, and lie beside their licence."""

import re
from pathlib import Path

from gym_trl.envs import words


def test_the_lists_are_sorted_words_and_answers_can_be_guessed() -> None:
    for listed in (words.answers(), words.guesses(), words.common()):
        assert list(listed) == sorted(set(listed))
        assert all(re.fullmatch("[a-z]{5,10}", word) for word in listed)
    assert set(words.answers()) < set(words.guesses())
    assert all(len(word) == 5 for word in words.guesses())


def test_the_copyright_notice_lies_beside_the_lists() -> None:
    notice = (Path(str(words.__file__)).parent / "COPYRIGHT").read_text()
    assert "Copyright 2000-2018 by Kevin Atkinson" in notice
    assert "this permission notice appear in" in notice
