"""Games with other arguments than their presets': promises, exact optima over all instances, and shortest solutions."""

from typing import Any

import pytest
from support.games import fewest_actions, game, mean_return
from support.lanes import in_full

from gym_trl.testing import check_text_env, play

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("2048", {"size": 2, "target": 32, "turns": 5}),
    ("2048", {"size": 4, "target": 64, "turns": 60}),
    ("Adventure", {"rooms": 1, "objects": 1, "locks": 0, "goals": 1, "turns": 1}),
    ("Adventure", {"rooms": 16, "objects": 24, "locks": 8, "goals": 5, "turns": 500}),
    ("Bandit", {"arms": 2, "turns": 1}),
    ("Bandit", {"summary": False, "turns": 7}),
    ("ConnectFour", {"rows": 2, "cols": 2, "connect": 2, "opponent": "random"}),
    ("ConnectFour", {"rows": 4, "cols": 9, "depth": 1}),
    ("Countdown", {"numbers": 2, "target_low": 1, "target_high": 100}),
    ("Countdown", {"difficulty": "easy", "form": "expression", "reward": "shaped"}),
    ("Echo", {"turns": 3}),
    ("Echo", {"alphabet": "\U0001f3b2\u00e9"}),
    ("FrozenLake", {"is_slippery": False}),
    ("FrozenLake", {"map_name": "random", "size": 6, "holes": 0.5, "is_slippery": False, "turns": 10}),
    ("FrozenLake", {"map_name": "8x8", "is_slippery": False, "turns": 14, "reward": "shaped"}),
    ("GuessNumber", {"high": 1, "turns": 1}),
    ("GuessNumber", {"low": -5, "high": 5}),
    ("Hangman", {"shortest": 10}),
    ("Hangman", {"misses": 40, "reward": "shaped"}),
    ("KuhnPoker", {"opponent": "self", "seat": "random"}),
    ("KuhnPoker", {"reward": "success"}),
    ("KuhnPoker", {"mistakes": 1}),
    ("LightsOut", {"size": 1, "turns": 1}),
    ("LightsOut", {"size": 9, "turns": 20}),
    ("Mastermind", {"pegs": 1, "colors": 1}),
    ("Mastermind", {"turns": 1}),
    ("Minesweeper", {"rows": 1, "columns": 2, "mines": 1, "turns": 1}),
    ("Minesweeper", {"rows": 4, "columns": 4, "mines": 12, "reward": "efficient"}),
    ("Sokoban", {"width": 5, "height": 5, "boxes": 2, "depth": 500, "turns": 500}),
    ("Sokoban", {"difficulty": "easy", "depth": 1, "turns": 1, "reward": "shaped"}),
    ("ToolUse", {"hops": 1, "documents": 6, "turns": 3}),
    ("ToolUse", {"hops": 2, "documents": 100, "turns": 30}),
    ("TowerOfHanoi", {"start": "tower"}),
    ("TowerOfHanoi", {"disks": 4, "turns": 7}),
    ("TowerOfHanoi", {"reward": "efficient"}),
    ("Wordle", {"strict": True}),
    ("Wordle", {"choices": 100, "strict": True}),
]
COUNTED: list[tuple[str, dict[str, Any]]] = [
    ("Echo", {"alphabet": "ab", "word_length": 2, "turns": 2}),
    *[("GuessNumber", {"low": -3, "high": 46, "turns": turns}) for turns in (1, 3, 5, 6)],
    *[("GuessNumber", {"high": 7, "turns": turns, "reward": "efficient"}) for turns in (2, 9)],
    *[("LightsOut", {"size": 3, "turns": turns}) for turns in (1, 4, 9)],
    ("LightsOut", {"size": 2, "turns": 4, "reward": "efficient"}),
    *[("Mastermind", {"pegs": 3, "colors": 3, "turns": turns}) for turns in (1, 6)],
    ("Minesweeper", {"rows": 1, "columns": 5, "mines": 2}),
    ("Minesweeper", {"rows": 3, "columns": 3, "mines": 8}),
    ("Minesweeper", {"difficulty": "easy"}),
    *[("TowerOfHanoi", {"disks": 3, "start": "random", "turns": turns}) for turns in (1, 3, 6, 7)],
    *[("TowerOfHanoi", {"disks": 5, "start": "tower", "turns": turns}) for turns in (30, 31)],
    ("TowerOfHanoi", {"disks": 4, "start": "random", "turns": 15, "reward": "efficient"}),
]
"""Small games without chance, whose optimum is an exact share of their instances."""
DISTINCT: list[tuple[str, dict[str, Any]]] = [
    ("Echo", {"alphabet": "abc", "word_length": 2, "turns": 2}),
    ("GuessNumber", {"high": 7, "turns": 9}),
    ("LightsOut", {"size": 3}),
    ("Mastermind", {"pegs": 3, "colors": 3, "turns": 9}),
    ("Minesweeper", {"rows": 2, "columns": 3, "mines": 2}),
    ("TowerOfHanoi", {"disks": 3, "start": "random"}),
    ("Wordle", {"choices": 10}),
]
"""Games in which the solver's episodes show which instance it is."""
SOLVED: list[tuple[str, dict[str, Any]]] = [
    ("FrozenLake", {"map_name": "random", "size": 5, "is_slippery": False}),
    ("LightsOut", {"size": 2, "turns": 8}),
    ("LightsOut", {"size": 3, "turns": 9}),
    ("Sokoban", {"difficulty": "easy"}),
    ("TowerOfHanoi", {"disks": 3, "start": "random", "turns": 10}),
]
"""Puzzles that show everything, where the solver's solution is a shortest one."""
LONGEST: list[tuple[str, dict[str, Any], int]] = [
    ("FrozenLake", {"is_slippery": False}, 20),
    ("LightsOut", {"size": 3}, 9),
    ("TowerOfHanoi", {"disks": 4, "start": "random", "turns": 20}, 15),
]
"""Puzzles whose potential is 1 less the moves that are needed as a share of these."""


@pytest.mark.full
@pytest.mark.parametrize(("name", "arguments"), VARIANTS)
def test_a_variant_keeps_every_promise(name: str, arguments: dict[str, Any]) -> None:
    check_text_env(lambda: game(name, **arguments), episodes=20)


@pytest.mark.parametrize(("name", "arguments"), COUNTED)
def test_the_solver_reaches_the_exact_optimum_over_all_instances(name: str, arguments: dict[str, Any]) -> None:
    env = game(name, **arguments)
    assert env.num_instances is not None
    assert mean_return(env, lambda _: env.solver(), range(env.num_instances)) == pytest.approx(env.optimal_return)


@pytest.mark.parametrize(("name", "arguments"), DISTINCT)
def test_every_instance_is_another_game(name: str, arguments: dict[str, Any]) -> None:
    env = game(name, **arguments)
    assert env.num_instances is not None
    played = {str(play(env, env.solver(), options={"instance": i})) for i in range(env.num_instances)}
    assert len(played) == env.num_instances


@pytest.mark.both
@pytest.mark.parametrize(("name", "arguments"), SOLVED)
def test_no_actions_win_sooner_than_the_solvers(name: str, arguments: dict[str, Any]) -> None:
    env, paid = game(name, **arguments), game(name, reward="efficient", **arguments)
    count = env.num_instances or 10**6
    for instance in range(0, count, max(1, count // in_full(40, fast=5))):
        env.reset(options={"instance": instance})
        steps = play(paid, paid.solver(), options={"instance": instance})[1:]
        assert fewest_actions(env) == len(steps)
        assert steps[-1][2] == 1.0


@pytest.mark.parametrize(("name", "arguments", "longest"), LONGEST)
def test_a_shaped_reward_pays_equal_shares_of_the_way(name: str, arguments: dict[str, Any], longest: int) -> None:
    env = game(name, reward="shaped", **arguments)
    count = env.num_instances or 10**6
    for instance in range(0, count, max(1, count // 10)):
        steps = play(env, env.solver(), options={"instance": instance})[1:]
        assert [step[2] for step in steps] == pytest.approx([1 / longest] * len(steps))
