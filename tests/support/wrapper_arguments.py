"""Arguments of wrappers that tests pass by name, as a JSON spec does."""

from random import Random
from typing import Any

import gymnasium as gym


def guesses_made(env: Any) -> float:
    """Return a potential that grows with every guess."""
    return float(env.turns - env._turns_left)


def middle(low: int, high: int) -> int:
    """Return the middle of two integers."""
    return (low + high) // 2


class Guesser:
    """Opponent that guesses at random, from its seed."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)

    def __call__(self, observation: str) -> str:
        return str(self.rng.randint(0, 50))


class Rewrites(gym.Wrapper[Any, Any, Any, Any]):
    """Wrapper that declares that its observations repeat or hide earlier ones."""

    append_only = False
