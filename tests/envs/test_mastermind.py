from collections import Counter
from typing import Any

import pytest
from support.games import game

from gym_trl.testing import play


@pytest.mark.parametrize(
    ("arguments", "lengths"),
    [
        ({}, [1, 6, 62, 533, 694]),  # Knuth's 5801 guesses
        ({"difficulty": "easy"}, [1, 4, 8, 3]),
        pytest.param({"difficulty": "hard"}, [1, 19, 244, 2255, 11852, 15961, 2366, 70], marks=pytest.mark.nightly),
    ],
)
def test_the_solver_needs_the_published_guesses(arguments: dict[str, Any], lengths: list[int]) -> None:
    env = game("Mastermind", **arguments, turns=len(lengths))
    counts = Counter(len(play(env, env.solver(), options={"instance": i})) - 1 for i in range(env.num_instances))
    assert counts == dict(enumerate(lengths, 1))
    assert env.optimal_success == 1.0
    assert game("Mastermind", **arguments, turns=len(lengths) - 1).optimal_success is None


@pytest.mark.parametrize(
    ("guess", "secret", "marks"),
    [
        ("1122", "1111", "2 black, 0 white"),
        ("2211", "1122", "0 black, 4 white"),
        ("1112", "2221", "0 black, 2 white"),
        ("1213", "1124", "1 black, 2 white"),
    ],
)
def test_a_number_that_repeats_is_paired_once(guess: str, secret: str, marks: str) -> None:
    env = game("Mastermind")
    env.reset(options={"instance": int("".join(str(int(digit) - 1) for digit in secret), 6)})
    assert env.step(guess)[0] == f"{' '.join(guess)}: {marks}. 9 guesses left."
