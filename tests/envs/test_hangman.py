# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-any-generics, allow-incomplete-defs
import re
from collections import Counter
from math import comb
from string import ascii_uppercase

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs import words
from gym_trl.envs.hangman import Hangman, _best, _misses_for, _words
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play


def game(word, **arguments):
    env = Hangman(**arguments)
    env.reset(options={"instance": _words(env.shortest, env.longest).index(word)})
    return env


def looks(word, shown, missed):
    """Return True if a word would be shown like this after these misses."""
    known = {*shown, *missed} - {"_"}
    return "".join(letter if letter in known else "_" for letter in word) == shown and not known & set(word) & set(
        missed
    )


@pytest.mark.parametrize(
    ("difficulty", "won", "missed"),
    [
        ("easy", 1768, [878, 627, 215, 48]),
        ("medium", 4303, [1278, 1283, 886, 493, 245, 118, 39, 12, 4]),
        ("hard", 1394, [193, 376, 465, 360, 228, 117, 39, 12, 4]),
    ],
)
def test_the_solver_wins_and_misses_what_the_table_says(difficulty, won, missed):
    env = Hangman(difficulty=difficulty)
    counted = Counter(_misses_for(word) for word in _words(env.shortest, env.longest))
    assert [counted[number] for number in range(max(counted) + 1)] == missed
    assert sum(missed) == env.num_instances
    assert sum(missed[: env.misses]) == won


def test_the_solver_plays_from_the_observations_what_it_plays_when_told():
    env = Hangman()
    for instance in range(0, env.num_instances, 43):
        steps = play(env, env.solver(), options={"instance": instance})[1:]
        misses = sum(step[0] not in env._secret for step in steps)
        expected = _misses_for(env._secret)
        assert misses == min(expected, 6)
        assert steps[-1][-1]["success"] is (expected < 6)
        assert all(step[-1]["action_valid"] for step in steps)


@given(st.sampled_from(words.common()), st.sets(st.sampled_from(ascii_uppercase), max_size=12))
def test_the_solvers_letter_is_in_the_most_words_that_are_possible(word, tried):
    """Found here with plain strings over all words."""
    word = word.upper()
    shown = "".join(letter if letter in tried else "_" for letter in word)
    missed = "".join(sorted(tried - set(word)))
    if "_" in shown:
        possible = [other for other in _words(len(word), len(word)) if looks(other, shown, missed)]
        assert word in possible
        count = {letter: sum(letter in other for other in possible) for letter in set(ascii_uppercase) - tried}
        assert count[_best(shown, missed)] == max(count.values())


def test_the_optimum_is_known_only_where_the_solver_always_wins():
    assert Hangman(misses=9).optimal_success == Hangman(misses=10**9).optimal_success == 1.0
    assert Hangman(misses=8).optimal_success is None
    assert Hangman(difficulty="easy").optimal_return == 1.0
    assert Hangman(difficulty="easy", reward="efficient").optimal_return is None


def test_finding_the_last_letter_wins_the_game():
    """A peer's board was complete and the game went on until the word was said again."""
    env = game("ALLOW")
    assert env.step("a")[0] == "A _ _ _ _\nMissed: none. 6 misses left."
    assert env.step("l")[0] == "A L L _ _\nMissed: none. 6 misses left."
    assert env.step("o")[1:3] == (0.0, False)
    step = env.step("w")
    assert step[:4] == ("Correct: ALLOW.", 1.0, True, False)
    assert step[-1] == {"action_valid": True, "success": True, "admissible_actions": []}


def test_the_example_in_the_instructions_is_one_letter_and_no_word():
    """A peer swapped its examples of a letter and of a word."""
    example = re.search(r"written like (.*)\.$", Hangman().instructions)
    assert example is not None
    assert example[1] == "Q"
    assert Hangman(shortest=7, longest=7).instructions.startswith("Hangman: find a secret English word of 7 letters,")


@pytest.mark.parametrize("said", ["a", "A", " a\n", "\tA "])
def test_case_and_spaces_are_free(said):
    assert game("ALLOW").step(said)[0].startswith("A _ _ _ _")


@pytest.mark.parametrize("said", ["", "?", "1", "AB", "ALLOW", "a b", "\u0131", "\u017f", "\uff21", "A" * 10**6])
def test_what_is_no_letter_is_a_miss_and_shows_nothing(said):
    env = game("ALLOW")
    step = env.step(said)
    assert step[0].endswith(".\n_ _ _ _ _\nMissed: none. 5 misses left.")
    assert step[1:4] == (0.0, False, False)
    assert step[-1]["action_valid"] is False
    assert step[-1]["admissible_actions"] == list(ascii_uppercase)


def test_a_letter_counts_once_and_is_a_miss_after_that():
    env = game("ALLOW")
    env.step("a")
    env.step("z")
    for again in "aAz":
        assert env.step(again)[-1]["action_valid"] is False
    assert env.step("z") == (
        "Not a new letter.\nA _ _ _ _\nMissed: Z. 1 miss left.",
        0.0,
        False,
        False,
        {"action_valid": False, "success": False, "admissible_actions": [*"BCDEFGHIJKLMNOPQRSTUVWXY"]},
    )


def test_a_lost_game_is_terminated_and_does_not_tell_the_word():
    env = game("ALLOW", misses=1)
    step = env.step("z")
    assert step[:4] == ("_ _ _ _ _\nMissed: Z. 0 misses left.", 0.0, True, False)
    assert step[-1]["success"] is False


def test_the_list_of_actions_is_the_callers_to_change():
    env = game("ALLOW")
    env.step("z")[-1]["admissible_actions"].clear()
    assert env.step("a")[-1]["admissible_actions"][0] == "B"


def test_words_have_the_lengths_that_were_asked_for():
    assert {len(word) for word in _words(5, 10)} == {5, 6, 7, 8, 9, 10}
    assert Hangman(shortest=7, longest=8).num_instances == sum(len(word) in (7, 8) for word in words.common())


def win_rate(env, make_policy, episodes):
    return sum(play(env, make_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(episodes)) / episodes


def test_random_letters_win_little_and_constant_ones_nothing():
    """A word's n different letters must come before the last miss, in a random order of all 26."""
    for difficulty, share in zip(Hangman.presets, (0.0509, 0.0027, 0.0011), strict=True):
        env = Hangman(difficulty=difficulty)
        sizes = [len(set(word)) for word in _words(env.shortest, env.longest)]
        exact = sum(comb(size + env.misses - 1, size) / comb(26, size) for size in sizes) / len(sizes)
        assert share == pytest.approx(exact, abs=5e-5)
        assert win_rate(env, env.random_policy, 1_000) == pytest.approx(exact, abs=0.04)
    easy = Hangman(difficulty="easy")
    for said in ("E", "?", ""):
        assert win_rate(easy, lambda _, said=said: lambda _: said, 200) == 0.0


def test_random_letters_are_new_ones():
    env = Hangman(misses=26)
    for seed in range(20):
        steps = play(env, env.random_policy(seed), seed=seed)[1:]
        assert steps[-1][-1]["success"]
        assert len({step[0] for step in steps}) == len(steps) <= 26


def test_efficient_pays_different_letters_by_turns_and_shaped_the_share_of_places():
    efficient = game("ALLOW", reward="efficient")
    rewards = [efficient.step(letter)[1] for letter in "ALZOW"]
    assert rewards == [0.0, 0.0, 0.0, 0.0, 0.8]
    shaped = game("ALLOW", reward="shaped")
    rewards = [shaped.step(letter)[1] for letter in "ALZOW"]
    assert rewards == pytest.approx([0.2, 0.4, 0.0, 0.2, 1.0 - 0.8])


@pytest.mark.parametrize("arguments", [{"shortest": 10}, {"misses": 1}, {"misses": 40}, {"reward": "shaped"}])
def test_variants_keep_every_promise(arguments):
    check_text_env(lambda: Hangman(**arguments), episodes=10)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"misses": 0}, "misses must be at least 1, got 0"),
        ({"misses": "6"}, "misses must be an integer, got '6'"),
        ({"shortest": 4}, "shortest must be at least 5, got 4"),
        ({"longest": 11}, "longest must be at most 10, got 11"),
        ({"shortest": 7, "longest": 6}, "shortest=7 and longest=6"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, error):
    with pytest.raises(ConfigError, match=error):
        Hangman(**arguments)
