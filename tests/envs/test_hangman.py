from collections import Counter
from math import comb

import pytest
from support.games import game, success

from gym_trl.envs import words
from gym_trl.envs.hangman import Hangman
from gym_trl.envs.text_env import Difficulty
from gym_trl.testing import play

FIVES = [word for word in words.common() if len(word) == 5]


def allow(**arguments: object) -> Hangman:
    """Return a game whose word is ALLOW."""
    env = Hangman(shortest=5, longest=5, **arguments)
    env.reset(options={"instance": FIVES.index("allow")})
    return env


@pytest.mark.full
@pytest.mark.parametrize(
    ("difficulty", "won", "missed"),
    [
        ("easy", 1768, [878, 627, 215, 48]),
        ("medium", 4303, [1278, 1283, 886, 493, 245, 118, 39, 12, 4]),
        ("hard", 1394, [193, 376, 465, 360, 228, 117, 39, 12, 4]),
    ],
)
def test_the_solver_misses_as_often_as_the_table_says(difficulty: Difficulty, won: int, missed: list[int]) -> None:
    env, misses = Hangman(difficulty=difficulty, misses=26), Counter[int]()
    for instance in range(env.num_instances):
        steps = play(env, env.solver(), options={"instance": instance})[1:]
        assert all(step[-1]["action_valid"] for step in steps)
        word = steps[-1][1].removeprefix("Correct: ")
        misses[sum(step[0] not in word for step in steps)] += 1
    assert [misses[count] for count in range(max(misses) + 1)] == missed
    assert sum(missed[: Hangman(difficulty=difficulty).misses]) == won


def test_the_optimum_is_declared_where_the_solver_always_wins() -> None:
    assert Hangman(misses=9).optimal_success == Hangman(misses=10**9).optimal_success == 1.0
    assert Hangman(misses=8).optimal_success is None
    assert Hangman(difficulty="easy", reward="efficient").optimal_return is None


def test_the_last_letter_wins_the_game() -> None:
    env = allow()
    assert env.step("a")[0] == "A _ _ _ _\nMissed: none. 6 misses left."
    assert env.step("l")[0] == "A L L _ _\nMissed: none. 6 misses left."
    assert env.step("o")[1:3] == (0.0, False)
    assert env.step("w")[:4] == ("Correct: ALLOW.", 1.0, True, False)


def test_a_letter_counts_once_and_is_a_miss_after_that() -> None:
    env = allow()
    env.step("a")
    env.step("z")
    assert not any(env.step(again)[-1]["action_valid"] for again in "aAz")
    assert env.step("z") == (
        "Not a new letter.\nA _ _ _ _\nMissed: Z. 1 miss left.",
        0.0,
        False,
        False,
        {"action_valid": False, "success": False, "admissible_actions": [*"BCDEFGHIJKLMNOPQRSTUVWXY"]},
    )


def test_a_lost_game_does_not_tell_the_word() -> None:
    step = allow(misses=1).step("z")
    assert step[:4] == ("_ _ _ _ _\nMissed: Z. 0 misses left.", 0.0, True, False)


def test_random_letters_win_their_exact_share() -> None:
    """The different letters of a word must come before the last miss, in a random order of all 26."""
    env = game("Hangman", difficulty="easy")
    sizes = [len(set(word)) for word in words.common() if 8 <= len(word) <= 10]
    exact = sum(comb(size + 11, size) / comb(26, size) for size in sizes) / len(sizes)
    assert exact == pytest.approx(0.0509, abs=5e-5)
    assert success(env, env.random_policy, 600) == pytest.approx(exact, abs=0.04)


def test_other_rewards_pay_new_letters_and_shown_places() -> None:
    efficient, shaped = allow(reward="efficient"), allow(reward="shaped")
    assert [efficient.step(letter)[1] for letter in "ALZOW"] == [0.0, 0.0, 0.0, 0.0, 0.8]
    assert [shaped.step(letter)[1] for letter in "ALZOW"] == pytest.approx([0.2, 0.4, 0.0, 0.2, 0.2])
