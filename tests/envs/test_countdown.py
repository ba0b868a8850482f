from collections.abc import Sequence
from fractions import Fraction
from itertools import combinations_with_replacement

import pytest

from gym_trl.envs.countdown import Countdown


def dealt(hand: Sequence[int], target: int, difficulty: str = "medium") -> Countdown:
    """Return a game that was not dealt by chance."""
    env = Countdown(difficulty)
    env.reset(seed=0)
    env.hand, env.target = [Fraction(number) for number in hand], target
    return env


@pytest.mark.parametrize(("highest", "solvable", "hands"), [(13, 1362, 1820), (10, 566, 715)])
def test_24_is_made_of_the_published_number_of_hands(highest: int, solvable: int, hands: int) -> None:
    """A hand is solved if the solver wins it, by the game's own rules."""
    every = list(combinations_with_replacement(range(1, highest + 1), 4))
    assert len(every) == hands
    won = 0
    for hand in every:
        env = dealt(hand, 24)
        won += [env.step(env.solve())[-1]["success"] for _ in range(3)][-1]
    assert won == solvable


def test_the_famous_round_is_won() -> None:
    env = dealt([3, 6, 25, 50, 75, 100], 952, "hard")
    assert any(env.step(env.solve())[-1]["success"] for _ in range(5))
