from collections.abc import Sequence
from itertools import combinations_with_replacement
from typing import Any, Literal

import pytest

from gym_trl.envs.countdown import Countdown, _solution
from gym_trl.envs.text_env import Difficulty
from gym_trl.errors import ConfigError
from gym_trl.testing import play

FORMS: tuple[Literal["steps", "expression"], ...] = ("steps", "expression")


def dealt(hand: Sequence[int], target: int, **arguments: Any) -> Countdown:
    """Return a game that was not dealt by chance."""
    env = Countdown(**arguments)
    env.reset(seed=0)
    env._dealt, env._target = tuple(hand), target
    env._left, env._names = list(hand), [str(number) for number in hand]
    return env


def solved(env: Countdown) -> int | None:
    """Return the number of actions in which the solver wins, or ``None``."""
    policy, observation, actions, over, info = env.solver(), env._observe(), 0, False, {"success": False}
    while not over:
        observation, _, over, _, info = env.step(policy(observation))
        actions += 1
    return actions if info["success"] else None


@pytest.mark.parametrize(
    ("numbers", "target", "difficulty"),
    [
        ((3, 3, 8, 8), 24, "medium"),  # needs a fraction
        ((1, 5, 5, 5), 24, "medium"),
        ((1, 3, 4, 6), 24, "medium"),
        ((3, 6, 25, 50, 75, 100), 952, "hard"),  # the famous round
    ],
)
def test_hard_hands_are_solved(numbers: tuple[int, ...], target: int, difficulty: Difficulty) -> None:
    assert solved(dealt(numbers, target, difficulty=difficulty)) is not None


@pytest.mark.parametrize(("highest", "solvable", "hands"), [(13, 1362, 1820), (10, 566, 715)])
def test_24_is_made_of_the_published_number_of_hands(highest: int, solvable: int, hands: int) -> None:
    every = list(combinations_with_replacement(range(1, highest + 1), 4))
    assert len(every) == hands
    solutions = [_solution(tuple((number, 1) for number in hand), 24, use_all=True) for hand in every]
    assert len(hands_solved := [solution for solution in solutions if solution is not None]) == solvable
    assert {len(solution) for solution in hands_solved} == {3}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_the_solver_wins_every_game_with_the_fewest_operations(difficulty: Any, form: Any) -> None:
    env = Countdown(difficulty=difficulty, form=form, reward="efficient")
    assert env.optimal_return == 1.0
    for seed in range(40):
        steps = play(env, env.solver(), seed=seed)[1:]
        assert steps[-1][2] == 1.0
        assert all(step[-1]["action_valid"] for step in steps)


def test_fractions_are_exact() -> None:
    env = dealt([3, 3, 8, 8], 24)
    assert env.step("8 / 3")[0] == "Numbers: 3, 8, 8/3. Target: 24. Turns left: 5."
    assert env.step("3 - 8/3")[0] == "Numbers: 8, 1/3. Target: 24. Turns left: 4."
    assert env.step(" 8/1/3 ")[-1]["action_valid"] is False  # 8/1 by 3: there is no 8/1
    assert env.step("8 / 1/3")[:3] == ("24. Solved.", 1.0, True)


def test_signs_as_people_write_them_are_understood() -> None:
    env = dealt([2, 3, 4, 11], 24)
    assert env.step("11\u22123")[0] == "Numbers: 2, 4, 8. Target: 24. Turns left: 5."
    assert env.step("8 \u00f7 4")[0] == "Numbers: 2, 2. Target: 24. Turns left: 4."
    assert env.step("2 \u00d7 2")[:3] == ("4 is left, not 24.", 0.0, True)


@pytest.mark.parametrize("text", ["2 + 2", "2 + 5", "3 - 4", "4/2 + 3"])
def test_an_operation_needs_two_numbers_that_are_left(text: str) -> None:
    observation, reward, over, _, info = dealt([2, 3, 4, 11], 24).step(text)
    assert observation.endswith(" Numbers: 2, 3, 4, 11. Target: 24. Turns left: 5.")
    assert (reward, over, info) == (0.0, False, {"action_valid": False, "success": False})


@pytest.mark.parametrize("text", ["2 + 3", "2*(3+11)-4+1", "2*(3+11)-2", "2*(3+11)-4)", "-4+2*(3+11)", "2**3*4*11"])
def test_an_expression_needs_all_the_numbers_once(text: str) -> None:
    observation, reward, over, _, info = dealt([2, 3, 4, 11], 24, form="expression").step(text)
    assert observation.endswith(" Numbers: 2, 3, 4, 11. Target: 24. Turns left: 5.")
    assert (reward, over, info) == (0.0, False, {"action_valid": False, "success": False})


def test_division_by_zero_is_an_invalid_action() -> None:
    env = dealt([2, 2, 4, 11], 24, form="expression")
    assert env.step("11 / (2 - 2) + 4")[0].startswith("Division by zero. Numbers")
    env = dealt([2, 2, 4, 11], 24)
    env.step("2 - 2")
    assert env.step("4 / 0")[0].startswith("Division by zero. Numbers: 4, 11, 0.")


def test_the_target_on_the_way_wins_unless_all_numbers_must_be_used() -> None:
    env = dealt([1, 2, 2, 12], 24)
    assert env.step("2 * 12")[:3] == ("Numbers: 1, 2, 24. Target: 24. Turns left: 5.", 0.0, False)
    env = dealt([1, 2, 2, 12], 24, use_all=False)
    assert env.step("2 * 12")[:3] == ("24. Solved.", 1.0, True)


def test_only_games_that_can_be_won_within_the_turns_are_dealt() -> None:
    env = Countdown(difficulty="hard", turns=2)
    assert all(play(env, env.solver(), seed=seed)[-1][2] == 1.0 for seed in range(5))


@pytest.mark.parametrize(
    ("arguments", "deals"),
    [
        ({"high": 1}, 2000),
        ({"difficulty": "hard", "numbers": 5, "high": 60, "target_low": 10**9, "target_high": 10**9}, 200),
    ],
)
def test_games_that_cannot_be_won_are_refused_at_reset(arguments: dict[str, Any], deals: int) -> None:
    with pytest.raises(ConfigError, match=f"of {deals} deals with these arguments none can be won"):
        Countdown(**arguments).reset(seed=0)
