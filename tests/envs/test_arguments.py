"""Arguments that no game can be made of are refused."""

from typing import Any

import gymnasium as gym
import pytest
from support.games import IDS, game, game_class, rows_of

from gym_trl.errors import ConfigError

REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("2048", {"target": 24}),
    ("2048", {"target": 2**17}),
    ("Adventure", {"rooms": 2, "locks": 2}),
    ("Adventure", {"objects": 1, "goals": 2}),
    ("Bandit", {"gap": 0}),
    ("Bandit", {"gap": 1.5}),
    ("Bandit", {"gap": float("nan")}),
    ("Bandit", {"gap": "0.2"}),
    ("ConnectFour", {"connect": 8}),
    ("Countdown", {"target_low": 25}),
    ("Countdown", {"large": 3, "numbers": 2}),
    ("Countdown", {"high": 2, "repeats": 1}),
    ("Countdown", {"turns": 2}),
    ("Echo", {"turns": 0}),
    ("Echo", {"turns": "3"}),
    ("Echo", {"alphabet": 1.0}),
    ("Echo", {"alphabet": ""}),
    ("Echo", {"alphabet": "aa"}),
    ("Echo", {"alphabet": "a b"}),
    ("Echo", {"word_length": 0}),
    ("Echo", {"word_length": 10**9}),
    ("FrozenLake", {"map_name": "random", "size": 8, "turns": 13}),
    ("GuessNumber", {"low": 2, "high": 1}),
    ("Hangman", {"shortest": 7, "longest": 6}),
    ("Mastermind", {"pegs": 7, "colors": 9}),
    ("Minesweeper", {"mines": 64}),
    ("Sokoban", {"width": 12, "height": 12, "boxes": 5}),
    ("Sokoban", {"width": 5, "height": 5, "boxes": 3}),
    ("ToolUse", {"documents": 11}),
    ("ToolUse", {"documents": 101}),
    ("ToolUse", {"turns": 6}),
    ("FrozenLake", {"map_name": ["4x4"]}),
    ("Wordle", {"guesses": 6, "turns": 5}),
]


@pytest.mark.parametrize("env_id", IDS)
def test_a_number_or_a_text_outside_of_an_arguments_range_is_refused(env_id: str) -> None:
    kind = game_class(env_id)
    for name, usual in kind.presets["medium"].items():
        allowed = kind.ranges.get(name, (1, None) if name == "turns" else ())
        step = 1 if isinstance(usual, int) else 0.1
        if isinstance(usual, str):
            wrong: list[Any] = ["nonsense"] if allowed else []
        else:
            wrong = [end + way * step for end, way in zip(allowed, (-1, 1), strict=False) if end is not None]
        for value in wrong:
            with pytest.raises(ConfigError):
                gym.make(env_id, **{name: value})


@pytest.mark.parametrize(("name", "arguments"), rows_of(REFUSED))
def test_arguments_that_do_not_fit_together_are_refused(name: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        game(name, **arguments)
