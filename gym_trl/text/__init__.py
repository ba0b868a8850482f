"""Conversion of spaces, actions and responses to and from text; and counts in words."""

from functools import cache


def counted(number: int, thing: str) -> str:
    """Return a number and the noun that it counts.

    >>> counted(1, "turn"), counted(2, "turn"), counted(3, "try"), counted(0, "guess")
    ('1 turn', '2 turns', '3 tries', '0 guesses')
    """
    return f"1 {thing}" if number == 1 else f"{number} {_plural(thing)}"


@cache
def _plural(thing: str) -> str:
    if thing.endswith("y"):
        return f"{thing[:-1]}ies"
    return f"{thing}es" if thing.endswith("s") else f"{thing}s"
