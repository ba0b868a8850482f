import re
from collections import Counter
from hashlib import sha256
from math import log
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs import wordle, words
from gym_trl.envs.wordle import Wordle, _mark, _mark_all, _number, _table, _taken
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


class Search:
    """The fewest guesses for all words together, of strategies that weigh ``width`` words in each position."""

    def __init__(self, width):
        self.width, self.table, self.known = width, _table(), {}
        number = {word: index for index, word in enumerate(words.answers())}
        self.answer = np.array([number.get(word, -1) for word in words.guesses()])

    def total(self, possible):
        if len(possible) <= 2:
            return 2 * len(possible) - 1
        if possible not in self.known:
            self.known[possible] = min(self.total_after(guess, possible) for guess in self.worth_weighing(possible))
        return self.known[possible]

    def worth_weighing(self, possible):
        numbers = self.table[:, possible] + (np.arange(len(self.table)) * 243)[:, None]
        sizes = np.bincount(numbers.ravel(), minlength=len(self.table) * 243).reshape(-1, 243)
        parts = 2 * np.count_nonzero(sizes, axis=1) + np.isin(self.answer, possible)
        return np.lexsort((np.arange(len(self.table)), (sizes**2).sum(1), -parts))[: self.width]

    def total_after(self, guess, possible):
        left: dict[int, list[int]] = {}
        for answer in possible:
            left.setdefault(self.table[guess, answer].item(), []).append(answer)
        if len(left) == 1:
            return 10**9  # it tells nothing
        return len(possible) + sum(self.total(tuple(part)) for number, part in left.items() if number != 242)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_weighing_ten_words_in_every_position_takes_6614_guesses():
    """Minutes: the best that is known for these lists."""
    assert Search(10).total_after(words.guesses().index("trace"), tuple(range(1965))) == 6614


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_of_the_openings_that_tell_most_answers_apart_none_is_better_than_trace():
    """Minutes; with one word weighed it is the solver's strategy, written without the solver."""
    search = Search(1)
    apart = [len(np.unique(row)) for row in search.table]
    openings = sorted(range(len(apart)), key=lambda guess: -apart[guess])[:30]
    totals = {words.guesses()[guess]: search.total_after(guess, tuple(range(1965))) for guess in openings}
    assert min(totals.values()) == totals["trace"] == 6626


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


def test_where_words_are_shown_and_guesses_must_fit_the_list_has_what_fits():
    env = Wordle(choices=20, strict=True)
    _, info = env.reset(seed=3)
    while info["admissible_actions"]:
        allowed = info["admissible_actions"]
        assert all(env._fits(word.lower()) is (word in allowed) for word in (shown.upper() for shown in env._shown))
        info = env.step(allowed[0])[-1]


def test_the_instructions_say_what_cannot_be_guessed():
    def cannot(**arguments):
        return re.findall("A guess that (.*?),? costs no guess", Wordle(**arguments).instructions)

    assert cannot() == ["is not in the list of words"]
    assert cannot(strict=True) == ["is not in the list of words, or does not fit everything that you were told"]
    assert cannot(choices=10) == ["is not one of the words that are shown"]


def test_a_lost_game_is_terminated_and_does_not_tell_the_word():
    env = Wordle(guesses=1)
    env.reset(options={"instance": 0})
    lost = ("C R A N E\nY X G X X\n0 guesses left.", 0.0, True, False, {"action_valid": True, "success": False})
    assert env.step("crane") == lost


def test_the_potential_is_the_share_of_bits_that_are_known():
    env = Wordle(reward="shaped")
    env.reset(options={"instance": 0})
    left = sum(_mark("llama", word) == "XXGXY" for word in words.answers())
    assert env.step("llama")[1] == pytest.approx(1 - log(left) / log(1965))
    assert env.step("llama")[1] == env.step("qwert")[1] == 0.0
    shown = Wordle(reward="shaped", choices=10)
    shown.reset(seed=0)
    left = sum(_mark(shown._shown[0], word) == _mark(shown._shown[0], shown._secret) for word in shown._shown)
    assert shown.step(shown._shown[0])[1] == pytest.approx(1 - log(left) / log(10))


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
