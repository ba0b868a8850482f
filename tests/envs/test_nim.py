"""Nim: won positions and chances are computed here by another program, which knows no closed form."""

import random
from collections.abc import Callable
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

import pytest

from gym_trl.envs.nim import Nim
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

Piles = tuple[int, ...]


def after(piles: Piles, max_take: int) -> list[Piles]:
    """The positions after each move, the piles in order of size."""
    return [
        tuple(sorted((*piles[:i], size - count, *piles[i + 1 :])))
        for i, size in enumerate(piles)
        for count in range(1, min(size, max_take) + 1)
    ]


@cache
def wins(piles: Piles, max_take: int, misere: bool) -> bool:
    """Return True if the player to move can win: there is a move after which the other cannot."""
    if not any(piles):
        return misere
    return any(not wins(then, max_take, misere) for then in after(piles, max_take))


@cache
def chance(piles: Piles, max_take: int, misere: bool, mine: float | None, theirs: float | None) -> float:
    """Return the mover's chance to win: a number is the share of random moves in perfect play, None a best reply."""
    if not any(piles):
        return float(misere)
    then = after(piles, max_take)
    chances = [1 - chance(position, max_take, misere, theirs, mine) for position in then]
    if mine is None:
        return max(chances)
    good = [wins(position, max_take, misere) for position in then]
    perfect = [value for value, lost in zip(chances, good, strict=True) if lost == all(good)]
    return mine * fmean(chances) + (1 - mine) * fmean(perfect)


def exact(env: Nim, mine: float | None) -> float:
    """The share of games that the agent wins in the mean over sizes and seats."""
    assert isinstance(env.piles, int)
    theirs = {"random": 1.0, "minimax": 0.0, "epsilon": env.epsilon}[str(env.opponent)]
    low = env.max_take + 1 if env.piles == 1 else 1
    starts = [tuple(sorted(start)) for start in product(range(low, env.largest + 1), repeat=env.piles)]
    first = fmean(chance(start, env.max_take, env.misere, mine, theirs) for start in starts)
    second = fmean(1 - chance(start, env.max_take, env.misere, theirs, mine) for start in starts)
    return {"first": first, "second": second, "random": (first + second) / 2}[env.seat]


def success(env: Nim, make_policy: Callable[[int], Policy], episodes: int) -> float:
    return fmean(play(env, make_policy(seed), seed=seed)[-1][-1]["success"] for seed in range(episodes))


@pytest.mark.parametrize("misere", [False, True])
@pytest.mark.parametrize("max_take", [1, 2, 3, 5, 9])
@pytest.mark.parametrize(("count", "largest"), [(1, 20), (2, 9), (3, 6), (4, 4)])
def test_the_closed_form_knows_which_positions_are_won(misere: bool, max_take: int, count: int, largest: int) -> None:
    rules = Nim(piles=[50], max_take=max_take, misere=misere).rules
    for piles in product(range(largest + 1), repeat=count):
        if any(piles):
            assert rules.value(piles) == (1 if wins(tuple(sorted(piles)), max_take, misere) else -1)


def test_known_positions() -> None:
    """The four that are lost in every book, and the one that Bouton begins with."""
    normal, misere = Nim().rules, Nim(misere=True).rules
    assert [normal.value(piles) for piles in ((1, 2, 3), (1, 4, 5), (2, 4, 6), (3, 5, 7))] == [-1, -1, -1, 1]
    assert [misere.value(piles) for piles in ((1, 1), (1,), (1, 1, 1), (2, 2), (3, 5, 6), (1, 2))] == [
        1,
        -1,
        -1,
        -1,
        -1,
        1,
    ]
    assert normal.best_moves((3, 4, 5)) == [(0, 2)]


@pytest.mark.parametrize(
    ("difficulty", "perfect", "minimax", "uniform"),
    [("easy", 0.9365, 0.8836, 0.4873), ("medium", 0.9238, 0.8561, 0.2737), ("hard", 0.7500, 0.6408, 0.0580)],
)
def test_presets_have_the_chances_of_the_table(difficulty: Any, perfect: float, minimax: float, uniform: float) -> None:
    env = Nim(difficulty=difficulty)
    assert exact(env, None) == pytest.approx(env.optimal_success)
    assert [exact(env, mine) for mine in (None, 0.0, 1.0)] == pytest.approx([perfect, minimax, uniform], abs=5e-5)
    assert env.optimal_return == pytest.approx(2 * exact(env, None) - 1)


@pytest.mark.parametrize("opponent", ["random", "minimax", "epsilon"])
@pytest.mark.parametrize("seat", ["first", "second", "random"])
@pytest.mark.parametrize("misere", [False, True])
def test_the_optimum_is_that_of_the_other_program(opponent: str, seat: Any, misere: bool) -> None:
    for piles, largest, max_take in ((1, 12, 4), (2, 5, 2), (3, 4, 4)):
        env = Nim(
            piles=piles, largest=largest, max_take=max_take, misere=misere, opponent=opponent, epsilon=0.3, seat=seat
        )
        assert env.optimal_success == pytest.approx(exact(env, None))


@pytest.mark.full
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_the_solver_and_random_moves_win_what_they_must(difficulty: Any) -> None:
    env = Nim(difficulty=difficulty)
    assert success(env, lambda _: env.solver(), 1_000) == pytest.approx(exact(env, None), abs=0.05)
    assert success(env, env.random_policy, 1_000) == pytest.approx(exact(env, 1.0), abs=0.05)


def test_against_perfect_play_the_solver_wins_exactly_the_won_positions() -> None:
    for piles in product(range(1, 5), repeat=3):
        for seat in ("first", "second"):
            for misere in (False, True):
                env = Nim(piles=piles, seat=seat, misere=misere, opponent="minimax")
                won = wins(tuple(sorted(piles)), 7, misere) == (seat == "first")
                assert play(env, env.solver(), seed=0)[-1][2] == (1.0 if won else -1.0)
                assert env.optimal_success == won


def test_a_game_too_large_to_search_is_played_by_the_closed_form() -> None:
    env = Nim(piles=9, largest=50, max_take=50, opponent="epsilon", epsilon=0.1)
    assert env.optimal_success is None
    assert success(env, lambda _: env.solver(), 50) > 0.9


def test_piles_of_the_most_sticks_are_searched_without_running_out_of_stack() -> None:
    assert Nim(piles=[50], max_take=1, opponent="random", seat="second").optimal_success == 1.0
    assert Nim(piles=[49], max_take=1, opponent="random", seat="second").optimal_success == 0.0
    assert Nim(piles=[50, 50], max_take=1, opponent="random", seat="first").optimal_success == 0.0


def test_seeds_reach_every_start() -> None:
    env = Nim(piles=2, largest=3, max_take=3, seat="first")
    starts = {env.reset(seed=seed)[0].splitlines()[1] for seed in range(200)}
    assert starts == {f"A: {a}, B: {b}" for a in (1, 2, 3) for b in (1, 2, 3)}
    easy = Nim(difficulty="easy")
    assert {easy.reset(seed=seed)[0].splitlines()[1] for seed in range(200)} == {f"A: {n}" for n in range(4, 11)}


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_no_game_is_over_before_the_agent_moves(difficulty: Any) -> None:
    env = Nim(difficulty=difficulty, seat="second")
    for seed in range(300):
        env.reset(seed=seed)
        assert env.admissible_actions()


def test_a_won_and_a_lost_game_and_their_misere() -> None:
    for misere, payoff, said in ((False, 1.0, "You won."), (True, -1.0, "You lost.")):
        env = Nim(piles=[1, 2], misere=misere, seat="first", opponent=lambda _: "A 1")
        env.reset(seed=0)
        assert env.step("B 1")[0] == "You are player 1.\nA: 0, B: 1"
        assert env.step("B 1")[:3] == (f"A: 0, B: 0\n{said}", payoff, True)


@pytest.mark.parametrize("said", ["A 2", "a 2", " A2\n", "A  2", "a\t2", "A 02"])
def test_an_action_can_be_written_in_several_ways(said: str) -> None:
    env = Nim(piles=[3, 4], seat="first", opponent=lambda _: "B 1")
    env.reset(seed=0)
    assert env.step(said)[0].endswith("A: 1, B: 3")


@pytest.mark.parametrize(
    "said",
    ["", "A", "2", "A 0", "A 4", "A -1", "A 1.0", "C 1", "A \u0661", "A 1 B 1", "\u0391 1", "A" + "9" * 5_000, "0 1"],
)
def test_what_is_no_pile_and_number_of_its_sticks_is_invalid(said: str) -> None:
    env = Nim(piles=[3, 4], seat="first")
    start, _ = env.reset(seed=0)
    observation, *_, info = env.step(said)
    assert not info["action_valid"]
    assert observation == f"Not a pile and a number of its sticks.\n{start}"


def test_an_empty_pile_has_nothing_to_take() -> None:
    env = Nim(piles=[1, 5], seat="first", opponent=lambda _: "B 1")
    env.reset(seed=0)
    env.step("A 1")
    assert not env.step("A 1")[-1]["action_valid"]


def test_no_more_than_max_take_can_be_taken() -> None:
    env = Nim(piles=[9], max_take=3, seat="first")
    env.reset(seed=0)
    assert env.admissible_actions() == ["A 1", "A 2", "A 3"]
    assert "at most 3" in env.instructions
    assert not env.step("A 4")[-1]["action_valid"]
    assert "at most" not in Nim().instructions


def test_a_constant_move_wins_no_more_than_random_ones() -> None:
    env = Nim()
    assert success(env, lambda _: lambda _: "A 1", 300) < exact(env, 1.0)
    assert success(env, lambda _: lambda _: env.garbage, 50) == 0.0


def test_piles_are_shown_in_their_own_order() -> None:
    env = Nim(piles=[5, 1, 3], seat="first", opponent="minimax")
    assert env.reset(seed=0)[0] == "You are player 1.\nA: 5, B: 1, C: 3"
    assert env.solver()(env.reset(seed=0)[0]) == "A 3"


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments",
    [
        {"piles": [3, 4, 5], "opponent": "minimax", "reward": "success"},
        {"piles": (1, 1), "misere": True, "opponent": "self"},
        {"piles": 9, "largest": 50, "max_take": 1},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: Nim(**arguments), episodes=20)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"piles": 0}, "piles must be from 1 to 9, got 0"),
        ({"piles": 10}, "piles must be from 1 to 9, got 10"),
        ({"piles": "3"}, "piles must be an integer or a list of sizes, got '3'"),
        ({"piles": True}, "piles must be an integer or a list"),
        ({"piles": []}, "piles must be 1 to 9 sizes"),
        ({"piles": [3, 0]}, "a size in piles must be at least 1, got 0"),
        ({"piles": [3, "4"]}, "a size in piles must be an integer, got '4'"),
        ({"piles": [3, 51]}, "a pile has at most 50 sticks"),
        ({"largest": 51}, "a pile has at most 50 sticks"),
        ({"largest": 0}, "largest must be at least 1, got 0"),
        ({"max_take": "3"}, "max_take must be an integer, got '3'"),
        ({"misere": 1}, "misere must be True or False, got 1"),
        ({"piles": [3], "max_take": 3}, "one pile must have more than max_take sticks"),
        ({"piles": 1, "largest": 7}, "one pile must have more than max_take sticks"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Nim(**arguments)


def test_global_randomness_is_not_used() -> None:
    env = Nim()
    policy = env.solver()
    state = random.getstate()
    play(env, policy, seed=0)
    assert random.getstate() == state
