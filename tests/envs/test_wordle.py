from collections import Counter

import pytest
from hypothesis import given, strategies as st
from support.games import game

from gym_trl.envs.wordle import _mark, _mark_all
from gym_trl.testing import play

any_word = st.text("abc", min_size=5, max_size=5)


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("speed", "abide", "XXYXY"),  # one e too many
        ("allay", "alloy", "GGGXG"),
        ("eerie", "there", "YXYXG"),  # the last takes its e first
        ("mamma", "maxim", "GGYXX"),
        ("daddy", "added", "YYGYX"),
    ],
)
def test_letters_that_repeat_are_marked_as_often_as_the_word_has_them(guess: str, secret: str, marks: str) -> None:
    assert _mark(guess, secret) == marks


@given(st.lists(any_word, min_size=1, max_size=4), st.lists(any_word, min_size=1, max_size=4))
def test_the_table_has_the_marks_of_the_game(guesses: list[str], secrets: list[str]) -> None:
    marks = [["".join("XYG"[number // 3**i % 3] for i in range(5)) for number in row.tolist()]
             for row in _mark_all(tuple(guesses), tuple(secrets))]  # fmt: skip
    assert marks == [[_mark(guess, secret) for secret in secrets] for guess in guesses]


@pytest.mark.full
@pytest.mark.parametrize(("difficulty", "lengths"), [("easy", [196, 1646, 118]), ("medium", [1, 80, 1107, 741, 36])])
def test_the_solver_needs_the_published_guesses(difficulty: str, lengths: list[int]) -> None:
    """6626/1965 = 3.3720 in the mean of medium."""
    env = game("Wordle", difficulty=difficulty)
    games = [play(env, env.solver(), options={"instance": i}) for i in range(env.num_instances)]
    assert Counter(len(steps) - 1 for steps in games) == dict(enumerate(lengths, 1))
    assert all(steps[-1][-1]["success"] for steps in games)
