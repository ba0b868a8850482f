"""Arguments of wrappers that tests pass by name, as a JSON spec does."""

from typing import Any


def guesses_made(env: Any) -> float:
    """Return a potential that grows with every guess."""
    return float(env.turns - env.turns_left)


def middle(low: int, high: int) -> int:
    """Return the middle of two integers."""
    return (low + high) // 2
