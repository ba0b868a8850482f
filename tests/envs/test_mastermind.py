from collections import Counter
from itertools import permutations
from math import log
from typing import Any

import pytest
from support.games import game

from gym_trl.envs.mastermind import Mastermind
from gym_trl.testing import play


def instance_of(code: str) -> int:
    """Return the number of a code in the order of the dictionary."""
    return int("".join(str(int(digit) - 1) for digit in code), 6)


@pytest.mark.parametrize(
    ("guess", "secret", "feedback"),
    [
        ("1122", "1111", "2 black, 0 white"),
        ("2211", "1122", "0 black, 4 white"),
        ("1112", "2221", "0 black, 2 white"),
        ("1213", "1124", "1 black, 2 white"),
        ("3333", "4444", "0 black, 0 white"),
    ],
)
def test_a_number_that_repeats_is_paired_once(guess: str, secret: str, feedback: str) -> None:
    env = Mastermind()
    env.reset(options={"instance": instance_of(secret)})
    assert env.step(guess)[0] == f"{' '.join(guess)}: {feedback}. 9 guesses left."


@pytest.mark.parametrize(
    ("arguments", "lengths"),
    [
        ({}, [1, 6, 62, 533, 694]),  # Knuth's 5801 guesses
        ({"pegs": 2, "colors": 4}, [1, 4, 8, 3]),
        ({"pegs": 2, "colors": 4, "repeats": False}, [1, 4, 7]),
        pytest.param({"repeats": False}, [1, 3, 53, 191, 112], marks=pytest.mark.full),
        pytest.param({"colors": 8, "repeats": False}, [1, 2, 56, 463, 931, 227], marks=pytest.mark.full),
    ],
)
def test_the_solver_needs_the_guesses_of_the_table(arguments: dict[str, Any], lengths: list[int]) -> None:
    env = game("Mastermind", **arguments, turns=len(lengths), reward="efficient")
    assert env.num_instances is not None
    played = [play(env, env.solver(), options={"instance": i})[1:] for i in range(env.num_instances)]
    counts = Counter(map(len, played))
    assert [counts[length] for length in range(1, max(counts) + 1)] == lengths
    assert {steps[-1][2] for steps in played} == {1.0}
    assert env.optimal_success == env.optimal_return == 1.0
    assert game("Mastermind", **arguments, turns=len(lengths) - 1).optimal_success is None


def test_random_codes_are_codes_of_the_game() -> None:
    policy = Mastermind(pegs=2, colors=3, repeats=False).random_policy(0)
    assert {policy("") for _ in range(200)} == {" ".join(code) for code in permutations("123", 2)}


def test_a_lost_game_does_not_tell_the_code() -> None:
    env = Mastermind(turns=1)
    env.reset(options={"instance": 1295})
    lost = ("1 1 1 1: 0 black, 0 white. 0 guesses left.", 0.0, True, False, {"action_valid": True, "success": False})
    assert env.step("1111") == lost


def test_without_repeats_a_guess_that_repeats_is_refused_with_the_reason() -> None:
    env = Mastermind(pegs=2, colors=4, repeats=False)
    env.reset(seed=0)
    assert env.step("1 1")[0] == "Not 2 different numbers from 1 to 4. 9 guesses left."


def test_the_potential_is_the_share_of_bits_that_are_known() -> None:
    env = Mastermind(reward="shaped")
    env.reset(options={"instance": instance_of("1234")})
    shown, paid, *_ = env.step("1122")
    other = Mastermind()
    left = sum((other.reset(options={"instance": i}), other.step("1122"))[1][0] == shown for i in range(1296))
    assert paid == pytest.approx(1 - log(left) / log(1296))
    assert env.step("1122")[1] == env.step("banana")[1] == 0.0  # nothing new
