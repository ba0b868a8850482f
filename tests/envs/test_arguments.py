"""Arguments that no game can be made of are refused by name."""

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
from support.games import IDS, game, game_class

from gym_trl.errors import ConfigError

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("2048", {"target": 24}, "target must be a power of two from 8 to 65536, got 24"),
    ("2048", {"target": 2**17}, "target must be a power of two from 8 to 65536, got 131072"),
    ("Adventure", {"rooms": 2, "locks": 2}, "locks=2 and rooms=2"),
    ("Adventure", {"objects": 1, "goals": 2}, "goals=2 and objects=1"),
    ("Bandit", {"gap": 0}, "gap must be a number above 0 and up to 1, got 0"),
    ("Bandit", {"gap": 1.5}, "gap must be a number above 0 and up to 1, got 1.5"),
    ("Bandit", {"gap": float("nan")}, "gap must be a number above 0 and up to 1, got nan"),
    ("Bandit", {"gap": "0.2"}, "gap must be a number above 0 and up to 1, got '0.2'"),
    ("ConnectFour", {"connect": 8}, "connect must fit on the board, got connect=8, rows=6 and cols=7"),
    ("Countdown", {"low": 5, "high": 4}, "low must not be above high, got low=5 and high=4"),
    ("Countdown", {"target_low": 25}, "target_low must not be above target_high"),
    ("Countdown", {"large": 3, "numbers": 2}, "large must not be above numbers"),
    ("Countdown", {"high": 2, "repeats": 1}, "numbers must not be more than can be dealt"),
    ("Countdown", {"turns": 2}, "turns must be at least numbers - 1 to use all, got 2"),
    ("Echo", {"reward": "closeness"}, "repetition"),
    ("Echo", {"turns": 0}, "turns must be at least 1, got 0"),
    ("Echo", {"turns": "3"}, "turns must be an integer, got '3'"),
    ("Echo", {"alphabet": 1.0}, "alphabet must be a string of letters, got 1.0"),
    ("Echo", {"alphabet": ""}, "alphabet"),
    ("Echo", {"alphabet": "aa"}, "alphabet"),
    ("Echo", {"alphabet": "a b"}, "alphabet"),
    ("Echo", {"word_length": 0}, "word_length"),
    ("Echo", {"word_length": 10**9}, r"turns \* word_length must be at most 1000, got 1000000000"),
    ("Echo", {"max_length": -1}, "max_length"),
    ("Echo", {"max_length": 10**9}, "max_length must be at most 65536, got 1000000000"),
    ("FrozenLake", {"map_name": "random", "size": 8, "turns": 13}, "turns must be at least 14 for a map of size 8"),
    ("GuessNumber", {"low": 2, "high": 1}, "low=2 and high=1"),
    ("Hangman", {"shortest": 7, "longest": 6}, "shortest=7 and longest=6"),
    ("Mastermind", {"pegs": 7, "repeats": False}, "pegs=7 and colors=6"),
    ("Mastermind", {"pegs": 7, "colors": 9}, "at most 100000 codes, and pegs=7 and colors=9 make 4782969"),
    ("Minesweeper", {"mines": 64}, "mines must be fewer than the 64 cells, got 64"),
    ("Sokoban", {"width": 12, "height": 12, "boxes": 5}, "boxes must be at most 4 in a room of 12 by 12, got 5"),
    ("Sokoban", {"width": 5, "height": 5, "boxes": 3}, "boxes must be at most 2 in a room of 5 by 5, got 3"),
    ("ToolUse", {"documents": 11}, "documents must be from 12 to 100 for 3 hops, got 11"),
    ("ToolUse", {"documents": 101}, "documents must be from 12 to 100 for 3 hops, got 101"),
    ("ToolUse", {"turns": 6}, "turns must be at least 7 for 3 hops, got 6"),
    ("TowerOfHanoi", {"start": ["tower"]}, "start must be"),
    ("Wordle", {"guesses": 6, "turns": 5}, "turns must be at least guesses, got turns=5 and guesses=6"),
]


def outside(usual: Any, allowed: tuple[Any, ...] | None) -> Iterator[tuple[Any, str]]:
    """Yield values that an argument cannot have, with what is said of them."""
    if isinstance(usual, bool):
        yield from ((value, f"must be True or False, got {value!r}") for value in (1, "yes"))
    elif isinstance(usual, str):
        yield from ((value, r"must be .* or .*, got") for value in ("nonsense", 0))
    elif isinstance(usual, float) and allowed:
        yield from ((value, f"must be a number, got {value!r}") for value in ("0.5", True))
        yield from ((value, "must be from .* to") for value in (allowed[0] - 0.1, allowed[1] + 0.1, float("nan")))
    elif isinstance(usual, int) and allowed:
        yield from ((value, f"must be an integer, got {value!r}") for value in ("3", True, 2.5))
        least, most = allowed
        if least is not None:
            yield least - 1, f"must be at least {least}, got {least - 1}"
        if most is not None:
            yield most + 1, f"must be at most {most}, got {most + 1}"


@pytest.mark.parametrize("env_id", IDS)
def test_a_value_outside_of_an_arguments_range_is_refused(env_id: str) -> None:
    kind = game_class(env_id)
    for name, usual in kind.presets.get("medium", {}).items():
        for value, reason in outside(usual, kind.ranges.get(name)):
            with pytest.raises(ConfigError, match=f"{name} {reason}"):
                gym.make(env_id, **{name: value})


@pytest.mark.parametrize(("name", "arguments", "reason"), REFUSED)
def test_arguments_that_do_not_fit_together_are_refused(name: str, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        game(name, **arguments)
