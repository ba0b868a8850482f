import re
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs import wordle, words
from gym_trl.envs.wordle import Wordle, _mark, _mark_all, _number, _taken
from gym_trl.envs.words import make_lists
from gym_trl.testing import play

any_word = st.text("abc", min_size=5, max_size=5)


def lengths(shown, secrets, *, strict=False):
    """Return the number of words that take 1, 2, 3... guesses."""
    taken = Counter(_taken(choices, strict, secret) for choices, secret in zip(shown, secrets, strict=True))
    return [taken[number] for number in range(1, max(taken) + 1)]


def mean(histogram):
    return sum(number * count for number, count in enumerate(histogram, 1)) / sum(histogram)


@pytest.mark.full
def test_the_solver_finds_all_answers_in_five_guesses_and_3_372_in_the_mean():
    histogram = lengths([()] * 1965, words.answers())
    assert histogram == [1, 80, 1107, 741, 36]
    assert mean(histogram) == 6626 / 1965
    assert Wordle(guesses=5).optimal_success == Wordle(guesses=5, reward="efficient").optimal_return == 1.0
    assert Wordle(guesses=4).optimal_success is None
    assert Wordle(guesses=1).optimal_success == 1 / 1965


def test_strict_guesses_take_3_456_in_the_mean_and_lose_three_words():
    histogram = lengths([()] * 1965, words.answers(), strict=True)
    assert histogram == [1, 130, 970, 726, 116, 19, 2, 1]
    assert mean(histogram) == pytest.approx(3.4560, abs=5e-5)


def test_one_of_ten_words_takes_the_solver_at_most_three_guesses():
    env = Wordle(difficulty="easy")
    shown = [wordle._group(index, 10) for index in range(env.num_instances)]
    histogram = lengths(shown, words.answers()[:1960])
    assert histogram == [196, 1646, 118]
    assert env.optimal_success == 1.0
    assert Wordle(choices=10, guesses=2).optimal_success is None
    assert Wordle(choices=100, guesses=100, turns=100).optimal_success == 1.0


@pytest.mark.parametrize("arguments", [{}, {"strict": True}, {"choices": 10}, {"choices": 7, "strict": True}])
def test_the_solver_plays_from_the_observations_what_it_plays_when_told(arguments):
    env = Wordle(guesses=8, reward="efficient", **arguments)
    for instance in range(0, env.num_instances, 97):
        steps = play(env, env.solver(), options={"instance": instance})[1:]
        assert steps[-1][0].lower() == words.answers()[instance]
        assert steps[-1][2] == 1.0
        assert len(steps) == env._fewest_actions()
        assert all(step[-1]["action_valid"] for step in steps)


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("speed", "abide", "X X Y X Y"),  # one e too many
        ("speed", "erase", "Y X Y Y X"),
        ("speed", "steal", "G X G X X"),
        ("speed", "crepe", "X Y G Y X"),
        ("allay", "label", "Y Y Y X X"),
        ("allay", "alloy", "G G G X G"),
        ("eerie", "there", "Y X Y X G"),  # the last takes its e first
        ("geese", "eerie", "X G Y X G"),
        ("mamma", "maxim", "G G Y X X"),
        ("daddy", "added", "Y Y G Y X"),
        ("robot", "floor", "Y Y X G X"),
        ("aback", "abbey", "G G X X X"),
        ("llama", "aback", "X X G X Y"),
    ],
)
def test_letters_that_repeat_are_marked_as_often_as_the_word_has_them(guess, secret, marks):
    """A peer marked every copy of a letter."""
    env = Wordle()
    env.reset(seed=0)
    env._secret = secret
    assert env.step(guess)[0] == f"{' '.join(guess.upper())}\n{marks}\n5 guesses left."


@given(st.lists(any_word, min_size=1, max_size=4), st.lists(any_word, min_size=1, max_size=4))
def test_the_table_has_the_marks_of_the_game(guesses, secrets):
    table = _mark_all(wordle._letters(guesses), wordle._letters(secrets))
    assert table.tolist() == [[_number(_mark(guess, secret)) for secret in secrets] for guess in guesses]


def test_what_is_not_in_the_list_costs_a_turn_but_no_guess():
    env = Wordle(guesses=2, turns=3)
    env.reset(options={"instance": 0})
    assert env.step("zzzzz") == (
        "Not a word of the list. 2 guesses and 2 turns left.",
        0.0,
        False,
        False,
        {"action_valid": False, "success": False},
    )
    assert env.step("crane")[0].endswith("\n1 guess left.")
    assert env.step("aback")[1:3] == (1.0, True)


def test_a_strict_game_refuses_what_does_not_fit_and_says_no_more():
    env = Wordle(strict=True)
    env.reset(options={"instance": 0})
    env.step("llama")
    assert env.step("crane")[0] == "Does not fit what you were told. 5 guesses and 10 turns left."
    assert env.step("aback")[1] == 1.0


def test_only_words_that_are_shown_can_be_guessed_and_the_secret_is_one_of_them():
    env = Wordle(difficulty="easy")
    for instance in range(env.num_instances):
        observation, info = env.reset(options={"instance": instance})
        shown = observation.removeprefix("One of ").partition(".")[0].split()
        assert info["admissible_actions"] == shown == sorted(set(shown))
        assert len(shown) == 10
        assert env._secret.upper() in shown
    assert env.step("crane" if "CRANE" not in shown else "slate")[-1]["action_valid"] is False


def test_a_lost_game_is_terminated_and_does_not_tell_the_word():
    env = Wordle(guesses=1)
    env.reset(options={"instance": 0})
    lost = ("C R A N E\nY X G X X\n0 guesses left.", 0.0, True, False, {"action_valid": True, "success": False})
    assert env.step("crane") == lost


def test_the_lists_are_sorted_words_and_answers_can_be_guessed():
    for listed in (words.answers(), words.guesses(), words.common()):
        assert list(listed) == sorted(set(listed))
        assert all(re.fullmatch("[a-z]{5,10}", word) for word in listed)
    assert set(words.answers()) < set(words.guesses())
    assert all(len(word) == 5 for word in words.guesses())
    lists = {"answers.txt": words.answers(), "guesses.txt": words.guesses(), "common.txt": words.common()}
    assert {name: len(listed) for name, listed in lists.items()} == make_lists.COUNTS


def test_the_lists_have_no_word_that_is_unfit_and_no_plain_plural():
    every = {*words.answers(), *words.guesses(), *words.common()}
    assert not [word for word in every if sha256(word.encode()).hexdigest()[:8] in make_lists._UNFIT]
    assert not {"words", "cared", "using", "wider"} & set(words.answers())
    assert {"glass", "breed", "thing", "other"} <= set(words.answers())


def test_the_copyright_notice_lies_beside_the_lists():
    notice = (Path(str(words.__file__)).parent / "COPYRIGHT").read_text()
    assert "Copyright 2000-2018 by Kevin Atkinson" in notice
    assert "this permission notice appear in" in notice


@pytest.mark.skipif(not Path(make_lists.SOURCE).exists(), reason="SCOWL is not installed: apt-get install scowl")
def test_the_lists_are_made_from_scowl_again():
    made = make_lists.make_lists(Path(make_lists.SOURCE))
    assert made == {
        "answers.txt": list(words.answers()),
        "guesses.txt": list(words.guesses()),
        "common.txt": list(words.common()),
    }
