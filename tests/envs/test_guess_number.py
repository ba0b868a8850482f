import random
from collections.abc import Callable
from typing import Any

import pytest

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy


def episodes(env: GuessNumber, make_policy: Callable[[], Policy]) -> list[list[tuple[Any, ...]]]:
    """The steps of one episode for every secret there is."""
    return [play(env, make_policy(), options={"instance": secret})[1:] for secret in range(env.num_instances)]


def success(env: GuessNumber, make_policy: Callable[[], Policy]) -> float:
    return float(sum(steps[-1][2] for steps in episodes(env, make_policy)) / env.num_instances)


@pytest.mark.parametrize(
    ("count", "mean", "most"),
    [
        (10, 2.9, 4),
        (20, 3.7, 5),
        (50, 4.86, 6),
        (100, 5.80, 7),
        (128, 6.0703, 8),
        (1000, 8.987, 10),
        (1023, 9.0098, 10),
        (1024, 9.0117, 11),
        (1025, 9.0137, 11),
    ],
)
def test_halving_needs_the_known_number_of_guesses(count: int, mean: float, most: int) -> None:
    env = GuessNumber(high=count, turns=most)
    lengths = [len(steps) for steps in episodes(env, env.solver)]
    assert sum(lengths) / count == pytest.approx(mean, abs=5e-5)
    assert max(lengths) == most
    assert env.optimal_success == 1.0
    assert GuessNumber(high=count, turns=most - 1).optimal_success < 1.0


@pytest.mark.parametrize("count", [1, 2, 7, 8, 50])
@pytest.mark.parametrize("turns", [1, 2, 3, 4, 5, 6])
def test_the_solver_reaches_the_optimum_exactly(count: int, turns: int) -> None:
    env = GuessNumber(low=-3, high=count - 4, turns=turns)
    assert env.optimal_success == env.optimal_return == min(1.0, (2**turns - 1) / count)
    assert success(env, env.solver) == pytest.approx(env.optimal_success)


@pytest.mark.parametrize("said", ["1", "25", "50", " 7\n"])
def test_a_constant_guess_wins_one_secret(said: str) -> None:
    assert success(GuessNumber(), lambda: lambda _: said) == 1 / 50


@pytest.mark.parametrize(
    "said", ["", "0", "51", "-1", "25.0", "1e1", "0x10", "1_0", "٢٥", "guess 25", "1 2", "9" * 5_000]
)
def test_what_is_no_integer_in_range_wins_nothing_and_is_invalid(said: str) -> None:
    for steps in episodes(GuessNumber(), lambda: lambda _: said):
        assert [step[2] for step in steps] == [0.0] * 6
        assert not any(step[-1]["action_valid"] or step[-1]["success"] for step in steps)
        assert steps[0][1] == "Not 1 to 50."


def test_whitespace_of_any_kind_around_a_guess_changes_nothing() -> None:
    spaces = [chr(code) for code in range(0x110000) if chr(code).isspace()]
    assert "\x1f" in spaces
    for space in spaces:
        env = GuessNumber()
        env.reset(options={"instance": 30})
        assert env.step(f"{space}31{space}")[1:3] == (1.0, True), repr(space)


def test_random_guesses_win_what_they_must_and_constant_ones_win_less() -> None:
    env = GuessNumber()
    exact = 1 - (1 - 1 / 50) ** 6
    won = sum(play(env, env.random_policy(seed), seed=seed)[-1][2] for seed in range(3_000)) / 3_000
    assert won == pytest.approx(exact, abs=0.025)
    assert success(env, lambda: lambda _: "25") < exact


def test_random_guesses_are_in_range_and_their_own() -> None:
    env = GuessNumber(low=5, high=9)
    state = random.getstate()
    policy = env.random_policy(0)
    assert {policy("") for _ in range(200)} == {"5", "6", "7", "8", "9"}
    assert random.getstate() == state


def test_an_invalid_guess_costs_a_turn_and_changes_nothing_else() -> None:
    env = GuessNumber(turns=3)
    env.reset(options={"instance": 29})
    assert env.step("25")[0] == "Higher."
    assert env.step("0")[0] == "Not 1 to 50."
    assert env.step("30") == ("Correct.", 1.0, True, False, {"action_valid": True, "success": True})


def test_a_lost_game_is_terminated() -> None:
    env = GuessNumber(turns=1)
    env.reset(options={"instance": 0})
    lost = ("Lower.", 0.0, True, False, {"action_valid": True, "success": False})
    assert env.step("2") == lost


def test_the_right_guess_on_the_last_turn_wins() -> None:
    env = GuessNumber(turns=1)
    env.reset(options={"instance": 4})
    assert env.step("+5")[1:3] == (1.0, True)


def test_seeds_reach_every_secret() -> None:
    env = GuessNumber(high=5)
    assert {play(env, env.solver(), seed=seed)[-1][0] for seed in range(100)} == {"1", "2", "3", "4", "5"}


def test_the_example_in_the_instructions_is_never_the_secret() -> None:
    assert "written like 51 (which is out of range)" in GuessNumber().instructions


@pytest.mark.parametrize(("high", "turns"), [(50, 6), (50, 3), (7, 9)])
def test_halving_is_worth_the_same_when_tries_count(high: int, turns: int) -> None:
    env = GuessNumber(high=high, turns=turns, reward="efficient")
    paid = [play(env, env.solver(), options={"instance": instance})[-1][2] for instance in range(high)]
    assert sum(paid) / high == pytest.approx(env.optimal_return)


def test_many_turns_and_wide_ranges_are_fine() -> None:
    assert GuessNumber(turns=10**9).optimal_success == 1.0
    wide = GuessNumber(low=-(10**40), high=10**40, turns=140)
    assert play(wide, wide.solver(), seed=0)[-1][2] == 1.0


@pytest.mark.parametrize("arguments", [{"high": 1, "turns": 1}, {"high": 1000, "turns": 3}, {"low": -5, "high": 5}])
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: GuessNumber(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"low": 2, "high": 1}, "low=2 and high=1"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"high": "50"}, "high must be an integer, got '50'"),
        ({"turns": 2.0}, "turns must be an integer"),
        ({"low": True}, "low must be an integer"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GuessNumber(**arguments)
