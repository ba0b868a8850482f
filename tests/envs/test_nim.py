from itertools import product
from typing import Any

import pytest
from support.games import game, success

from gym_trl.envs.board_game import Rules
from gym_trl.envs.nim import Nim, _Rules
from gym_trl.envs.text_env import Difficulty
from gym_trl.testing import play


class Slow(_Rules):
    """Nim without its closed form, to be solved by search."""

    value = Rules.value


@pytest.mark.parametrize("misere", [False, True])
@pytest.mark.parametrize("max_take", [1, 2, 3, 5])
@pytest.mark.parametrize(("count", "largest"), [(1, 12), (2, 6), (3, 4)])
def test_the_closed_form_is_what_a_search_finds(misere: bool, max_take: int, count: int, largest: int) -> None:
    rules, slow = Nim(piles=[50], max_take=max_take, misere=misere).rules, Slow(max_take, misere)
    for piles in product(range(largest + 1), repeat=count):
        if any(piles):
            assert rules.value(piles) == slow.value(piles)
            assert list(rules.best_moves(piles)) == list(slow.best_moves(piles))


@pytest.mark.parametrize(("difficulty", "perfect"), [("easy", 0.9365), ("medium", 0.9238), ("hard", 0.7500)])
def test_the_solver_wins_the_share_of_the_table(difficulty: Difficulty, perfect: float) -> None:
    env = Nim(difficulty=difficulty)
    assert env.optimal_success == pytest.approx(perfect, abs=5e-5)
    assert env.optimal_return == pytest.approx(2 * perfect - 1, abs=1e-4)
    assert success(env, lambda _: env.solver(), 400) == pytest.approx(perfect, abs=0.08)


@pytest.mark.parametrize("misere", [False, True])
def test_perfect_opponents_are_beaten_from_won_positions_alone(misere: bool) -> None:
    slow = Slow(7, misere)
    for piles in product(range(1, 4), repeat=3):
        for seat in ("first", "second"):
            env = game("Nim", piles=piles, seat=seat, misere=misere, opponent="minimax")
            won = (slow.value(piles) == 1) == (seat == "first")
            assert play(env, env.solver(), seed=0)[-1][2] == (1.0 if won else -1.0)
            assert env.optimal_success == won


def test_a_game_too_large_to_search_is_played_by_the_closed_form() -> None:
    env = game("Nim", piles=9, largest=50, max_take=50, opponent="epsilon", epsilon=0.1)
    assert env.optimal_success is None
    assert success(env, lambda _: env.solver(), 50) > 0.9


def test_piles_of_the_most_sticks_are_searched_without_running_out_of_stack() -> None:
    assert Nim(piles=[50], max_take=1, opponent="random", seat="second").optimal_success == 1.0
    assert Nim(piles=[49], max_take=1, opponent="random", seat="second").optimal_success == 0.0
    assert Nim(piles=[50, 50], max_take=1, opponent="random", seat="first").optimal_success == 0.0


@pytest.mark.parametrize(
    ("arguments", "starts"),
    [
        ({"piles": 2, "largest": 3, "max_take": 3}, {f"A: {a}, B: {b}" for a in (1, 2, 3) for b in (1, 2, 3)}),
        ({"difficulty": "easy"}, {f"A: {size}" for size in range(4, 11)}),
    ],
)
def test_seeds_reach_every_start(arguments: dict[str, Any], starts: set[str]) -> None:
    env = game("Nim", seat="first", **arguments)
    assert {env.reset(seed=seed)[0].splitlines()[1] for seed in range(200)} == starts


def test_a_won_and_a_lost_game_and_their_misere() -> None:
    for misere, payoff, verdict in ((False, 1.0, "You won."), (True, -1.0, "You lost.")):
        env = game("Nim", piles=[1, 2], misere=misere, seat="first", opponent=lambda _: "A 1")
        env.reset(seed=0)
        assert env.step("B 1")[0] == "You are player 1.\nA: 0, B: 1"
        assert env.step("A 1")[-1]["action_valid"] is False
        assert env.step("B 1")[:3] == (f"A: 0, B: 0\n{verdict}", payoff, True)


def test_no_more_than_max_take_can_be_taken() -> None:
    env = game("Nim", piles=[9], max_take=3, seat="first")
    env.reset(seed=0)
    assert env.admissible_actions() == ["A 1", "A 2", "A 3"]
    assert "at most 3" in env.instructions
    assert not env.step("A 4")[-1]["action_valid"]
    assert "at most" not in Nim().instructions
