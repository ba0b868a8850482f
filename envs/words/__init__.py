"""Word lists shared by games; ``COPYRIGHT`` has their licence, and how they were selected."""

from functools import cache
from importlib.resources import files


def answers() -> tuple[str, ...]:
    """Return the words of five letters that most people know, in alphabetical order.

    >>> len(answers()), answers()[0]
    (1965, 'aback')
    """
    return _read("answers.txt")


def guesses() -> tuple[str, ...]:
    """Return the words of five letters that can be guessed, all ``answers`` included, in alphabetical order.

    >>> len(guesses()), set(answers()) <= set(guesses())
    (6329, True)
    """
    return _read("guesses.txt")


def common() -> tuple[str, ...]:
    """Return common words of 5 to 10 letters, in alphabetical order.

    >>> len(common()), common()[0]
    (4358, 'aardvark')
    """
    return _read("common.txt")


@cache
def _read(name: str) -> tuple[str, ...]:
    return tuple((files(__package__) / name).read_text("ascii").split())
