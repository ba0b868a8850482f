"""Games with other arguments than their presets': promises, exact optima over all instances, and shortest solutions."""

from typing import Any

import pytest
from support.games import fewest_actions, game, mean_return, rows_of

from gym_trl.testing import check_text_env, play

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("2048", {"size": 2, "target": 32, "turns": 5}),
    ("2048", {"size": 4, "target": 64, "turns": 60}),
    ("Adventure", {"rooms": 1, "objects": 1, "locks": 0, "goals": 1, "turns": 1}),
    ("Adventure", {"rooms": 16, "objects": 24, "locks": 8, "goals": 5, "turns": 500}),
    ("Bandit", {"arms": 2, "turns": 1}),
    ("Bandit", {"summary": False, "turns": 7}),
    ("ConnectFour", {"rows": 4, "cols": 9, "depth": 1}),
    ("Countdown", {"numbers": 2, "target_low": 1, "target_high": 100}),
    ("Countdown", {"difficulty": "hard", "turns": 2}),
    ("Echo", {"turns": 3}),
    ("Echo", {"alphabet": "\U0001f3b2\u00e9"}),
    ("FrozenLake", {"is_slippery": False}),
    ("FrozenLake", {"map_name": "random", "size": 6, "is_slippery": False, "turns": 10}),
    ("GuessNumber", {"high": 1, "turns": 1}),
    ("GuessNumber", {"low": -5, "high": 5}),
    ("Hangman", {"shortest": 10}),
    ("KuhnPoker", {"mistakes": 1}),
    ("LightsOut", {"size": 1, "turns": 1}),
    ("LightsOut", {"size": 9, "turns": 20}),
    ("Mastermind", {"pegs": 1, "colors": 1}),
    ("Mastermind", {"turns": 1}),
    ("Minesweeper", {"rows": 1, "columns": 2, "mines": 1, "turns": 1}),
    ("Sokoban", {"width": 5, "height": 5, "boxes": 2, "depth": 500, "turns": 500}),
    ("ToolUse", {"hops": 1, "documents": 6, "turns": 3}),
    ("ToolUse", {"hops": 2, "documents": 100, "turns": 30}),
    ("TowerOfHanoi", {"disks": 4, "turns": 7}),
    ("Wordle", {"choices": 100}),
]
COUNTED: list[tuple[str, dict[str, Any]]] = [
    ("Echo", {"alphabet": "ab", "word_length": 2, "turns": 2}),
    *[("GuessNumber", {"low": -3, "high": 46, "turns": turns}) for turns in (1, 3, 5)],
    *[("Hangman", {"shortest": length, "longest": length, "misses": 9}) for length in (5, 10)],
    ("LightsOut", {"size": 3, "turns": 9}),
    ("Mastermind", {"pegs": 2, "colors": 4, "turns": 4}),
    *[("TowerOfHanoi", {"disks": 3, "turns": turns}) for turns in (1, 3, 6)],
]
"""Small games without chance, whose optimum is an exact share of their instances."""
DISTINCT: list[tuple[str, dict[str, Any]]] = [
    ("Echo", {"alphabet": "abc", "word_length": 2, "turns": 2}),
    ("GuessNumber", {"high": 7, "turns": 9}),
    ("LightsOut", {"size": 3}),
    ("Mastermind", {"pegs": 3, "colors": 3, "turns": 9}),
    ("Minesweeper", {"rows": 2, "columns": 3, "mines": 2}),
    ("TowerOfHanoi", {"disks": 3}),
    ("Wordle", {"choices": 10}),
]
"""Games in which the solver's episodes show which instance it is."""
SOLVED: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake", {"map_name": "random", "size": 5, "is_slippery": False}),
    ("LightsOut", {"size": 2, "turns": 8}),
    ("LightsOut", {"size": 3, "turns": 9}),
    ("Sokoban", {"difficulty": "easy"}),
    ("TowerOfHanoi", {"disks": 3, "turns": 10}),
]
"""Puzzles that show everything, where the solver's solution is a shortest one."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arguments"), rows_of(VARIANTS))
def test_a_variant_keeps_every_promise(name: str, arguments: dict[str, Any]) -> None:
    check_text_env(lambda: game(name, **arguments), episodes=20)


@pytest.mark.parametrize(("name", "arguments"), rows_of(COUNTED))
def test_the_solver_reaches_the_exact_optimum_over_all_instances(name: str, arguments: dict[str, Any]) -> None:
    env = game(name, **arguments)
    assert env.num_instances is not None
    assert mean_return(env, lambda _: env.solver(), range(env.num_instances)) == pytest.approx(env.optimal_success)


@pytest.mark.parametrize(("name", "arguments"), rows_of(DISTINCT))
def test_every_instance_is_another_game(name: str, arguments: dict[str, Any]) -> None:
    env = game(name, **arguments)
    assert env.num_instances is not None
    played = {str(play(env, env.solver(), options={"instance": i})) for i in range(env.num_instances)}
    assert len(played) == env.num_instances


@pytest.mark.parametrize("games", [5, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "arguments"), rows_of(SOLVED))
def test_no_actions_win_sooner_than_the_solvers(name: str, arguments: dict[str, Any], games: int) -> None:
    env = game(name, **arguments)
    count = env.num_instances or 10**6
    for instance in range(0, count, max(1, count // games)):
        env.reset(options={"instance": instance})
        fewest = fewest_actions(env)
        assert fewest == len(play(env, env.solver(), options={"instance": instance})[1:])
