import re
from collections.abc import Iterator, Sequence
from fractions import Fraction
from itertools import combinations_with_replacement, permutations
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st
from lanes import examples

from gym_trl.envs.arithmetic import calculate
from gym_trl.envs.countdown import Countdown, _apply, _solution
from gym_trl.envs.text_env import Difficulty
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play

FORMS: tuple[Literal["steps", "expression"], ...] = ("steps", "expression")


def reachable(numbers: Sequence[Fraction], target: Fraction, *, use_all: bool, operations: int = 9) -> bool:
    """Return True if any operations make the target: all are tried one after the other, results below zero included."""
    if target in numbers and (len(numbers) == 1 or not use_all):
        return True
    return operations > 0 and any(
        reachable(rest, target, use_all=use_all, operations=operations - 1) for rest in after_any(numbers)
    )


def after_any(numbers: Sequence[Fraction]) -> Iterator[list[Fraction]]:
    """Yield the numbers left after each possible operation."""
    for i, j in permutations(range(len(numbers)), 2):
        rest = [number for place, number in enumerate(numbers) if place not in (i, j)]
        for sign in "+-*/":
            made = _apply(numbers[i], sign, numbers[j])
            if made is not None:
                yield [*rest, Fraction(made)]


def solve(numbers: Sequence[int], target: int, *, use_all: bool = True) -> Any:
    return _solution(tuple((number, 1) for number in numbers), target, use_all)


def game(dealt: Sequence[int], target: int, **arguments: Any) -> Countdown:
    """A game that was not dealt by chance."""
    env = Countdown(**arguments)
    env.reset(seed=0)
    env._dealt, env._target = tuple(dealt), target
    env._left, env._names = list(dealt), [str(number) for number in dealt]
    return env


@pytest.mark.parametrize(("highest", "solvable", "hands"), [(13, 1362, 1820), (10, 566, 715)])
def test_24_can_be_made_of_the_known_number_of_hands(highest: int, solvable: int, hands: int) -> None:
    every = list(combinations_with_replacement(range(1, highest + 1), 4))
    assert len(every) == hands
    assert sum(solve(hand, 24) is not None for hand in every) == solvable


@examples(40)
@given(st.lists(st.integers(1, 13), min_size=4, max_size=4), st.integers(1, 40))
def test_the_solver_finds_a_solution_where_there_is_one(numbers: list[int], target: int) -> None:
    exact = [Fraction(number) for number in numbers]
    assert (solve(numbers, target) is not None) == reachable(exact, Fraction(target), use_all=True)


@examples(60)
@given(st.lists(st.integers(1, 10), min_size=2, max_size=4), st.integers(1, 60))
def test_the_solver_uses_the_fewest_operations(numbers: list[int], target: int) -> None:
    steps = solve(numbers, target, use_all=False)
    exact = [Fraction(number) for number in numbers]
    fewest = (count for count in range(4) if reachable(exact, Fraction(target), use_all=False, operations=count))
    assert next(fewest, None) == (None if steps is None else len(steps))


@examples(25)
@given(st.lists(st.integers(1, 9), min_size=5, max_size=6), st.data())
def test_what_is_built_of_many_numbers_is_found(numbers: list[int], data: st.DataObject) -> None:
    """Any expression with all of them; one that comes out whole and positive is a target that can be made."""
    left = [Fraction(number) for number in numbers]
    while len(left) > 1:
        place = data.draw(st.integers(1, len(left) - 1))
        made = _apply(left[0], data.draw(st.sampled_from("+-*/")), left[place])
        left = [*left[1:place], *left[place + 1 :], Fraction(made or 0)]
        if made is None:
            return
    if left[0].denominator == 1 and left[0] > 0:
        assert solve(numbers, int(left[0])) is not None


@pytest.mark.parametrize(("numbers", "target"), [((3, 3, 8, 8), 24), ((1, 5, 5, 5), 24), ((1, 3, 4, 6), 24)])
def test_hands_that_need_fractions_are_solved_in_both_forms(numbers: tuple[int, ...], target: int) -> None:
    for form in FORMS:
        env = game(numbers, target, numbers=len(numbers), form=form)
        policy, observation = env.solver(), env._observe()
        for _ in numbers[1:]:
            observation, reward, over, _, info = env.step(policy(observation))
            assert info["action_valid"]
            if over:
                break
        assert (reward, over) == (1.0, True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_the_solver_wins_every_game_with_the_fewest_operations(difficulty: Any, form: Any) -> None:
    env = Countdown(difficulty=difficulty, form=form, reward="efficient")
    assert env.optimal_return == 1.0
    for seed in range(40):
        steps = play(env, env.solver(), seed=seed)[1:]
        assert steps[-1][2] == 1.0
        assert all(step[-1]["action_valid"] for step in steps)
        assert len(steps) == env._fewest_actions()


def test_random_and_constant_play_win_little() -> None:
    """24 by chance: a hand in a hundred or so; by adding all up, one in twenty."""
    shares: tuple[tuple[Difficulty, float, float], ...] = (("easy", 0.08, 0.2), ("medium", 0.0, 0.03))
    for difficulty, least, most in shares:
        env = Countdown(difficulty=difficulty)
        won = sum(play(env, env.random_policy(seed), seed=seed)[-1][2] for seed in range(600)) / 600
        assert least <= won <= most
    for form, most in zip(FORMS, (0, 20), strict=True):
        won = 0
        for seed in range(200):
            env = Countdown(form=form)
            env.reset(seed=seed)
            won += play(env, env.baselines["constant"].policy(0), seed=seed)[-1][-1]["success"]
        assert won <= most


def test_the_famous_round_is_solved() -> None:
    """25, 50, 75, 100, 3 and 6 for 952."""
    env = game([3, 6, 25, 50, 75, 100], 952, difficulty="hard")
    policy, observation, reward, over = env.solver(), env._observe(), 0.0, False
    while not over:
        observation, reward, over, _, _ = env.step(policy(observation))
    assert reward == 1.0


def test_fractions_are_exact() -> None:
    env = game([3, 3, 8, 8], 24)
    assert env.step("8 / 3")[0] == "Numbers: 3, 8, 8/3. Target: 24. Turns left: 5."
    assert env.step("3 - 8/3")[0] == "Numbers: 8, 1/3. Target: 24. Turns left: 4."
    assert env.step(" 8/1/3 ")[-1]["action_valid"] is False  # 8/1 by 3: there is no 8/1
    assert env.step("8 / 1/3")[:3] == ("24. Solved.", 1.0, True)


def test_signs_as_people_write_them_are_understood() -> None:
    env = game([2, 3, 4, 11], 24)
    assert env.step("11\u22123")[0] == "Numbers: 2, 4, 8. Target: 24. Turns left: 5."
    assert env.step("8 \u00f7 4")[0] == "Numbers: 2, 2. Target: 24. Turns left: 4."
    assert env.step("2 \u00d7 2")[:3] == ("4 is left, not 24.", 0.0, True)


@pytest.mark.parametrize(
    "said",
    [
        *("", "24", "2", "2 +", "+ 3", "2 + 2", "2 + 5", "3 - 4", "2 ** 3", "2 // 3", "2 % 3", "(2 + 3)", "-2 + 3"),
        *("2.0 + 3", "1e1 + 2", "02 + 3", "\u0662 + 3", "2 + 3 + 4", "2 + 3 = 5", "9" * 5_000, "9" * 40 + " + 2"),
        *("__import__('os').system('ls')", "2 + 3\x00", "4/2 + 3", "2 + 3; 11 - 4"),
    ],
)
def test_what_is_no_operation_costs_a_turn_and_changes_nothing(said: str) -> None:
    env = game([2, 3, 4, 11], 24)
    observation, reward, over, _, info = env.step(said)
    assert observation.endswith(" Numbers: 2, 3, 4, 11. Target: 24. Turns left: 5.")
    assert (reward, over, info) == (0.0, False, {"action_valid": False, "success": False})


@pytest.mark.parametrize(
    "said",
    [
        *("", "24", "(24)", "2 + 3", "2*(3+11)-4+1", "2*(3+11)-2", "2 2", "2(3+11)-4", "()", "(2*(3+11)-4", ")("),
        *("2*(3+11)-4)", "-4+2*(3+11)", "2**3*4*11", "2*(3+11)-\u0664", "2.0*(3+11)-4", "2*(3+11)-4 = 24", "2+*3"),
        *("(2+3)(4+11)", "2+3+4+11)+(", "(" * 90 + "2*(3+11)-4", "9" * 5_000, "2*(3+11)-4 #", "\x002*(3+11)-4"),
        *("abs(2)*(3+11)-4", "2*(3+11)-4\nimport os", "2*(3+11)-4" + "0" * 20, "+".join(["2*(3+11)-4"] * 1_000)),
    ],
)
def test_what_is_no_expression_of_the_numbers_costs_a_turn_and_wins_nothing(said: str) -> None:
    env = game([2, 3, 4, 11], 24, form="expression")
    observation, reward, over, _, info = env.step(said)
    assert observation.endswith(" Numbers: 2, 3, 4, 11. Target: 24. Turns left: 5.")
    assert (reward, over, info) == (0.0, False, {"action_valid": False, "success": False})


def test_division_by_zero_is_an_invalid_action() -> None:
    env = game([2, 2, 4, 11], 24, form="expression")
    assert env.step("11 / (2 - 2) + 4")[0].startswith("Division by zero. Numbers")
    env = game([2, 2, 4, 11], 24)
    env.step("2 - 2")
    assert env.step("4 / 0")[0].startswith("Division by zero. Numbers: 4, 11, 0.")


def test_a_number_cannot_be_used_twice() -> None:
    env = game([2, 3, 4, 11], 24)
    env.step("2 * 3")
    assert env.step("2 * 4")[0].startswith("There is no 2 left.")
    env = game([1, 2, 10], 100, numbers=3, use_all=False, form="expression")
    assert env.step("10 * 10")[-1] == {"action_valid": False, "success": False}


def test_the_target_on_the_way_is_no_win_where_all_numbers_must_be_used() -> None:
    env = game([1, 2, 2, 12], 24)
    assert env.step("2 * 12")[:3] == ("Numbers: 1, 2, 24. Target: 24. Turns left: 5.", 0.0, False)
    env = game([1, 2, 2, 12], 24, use_all=False)
    assert env.step("2 * 12")[:3] == ("24. Solved.", 1.0, True)


@examples(200)
@given(st.recursive(st.integers(1, 9), lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner), max_leaves=8))
def test_expressions_are_worth_what_python_says(tree: Any) -> None:
    def text(node: Any) -> str:
        return str(node) if isinstance(node, int) else f"({text(node[0])}{node[1]}{text(node[2])})"

    def flat(node: Any) -> str:
        """Without parentheses, where precedence decides."""
        return str(node) if isinstance(node, int) else f"{flat(node[0])} {node[1]} {flat(node[2])}"

    for written in (text(tree), flat(tree)):
        try:
            expected = eval(re.sub(r"(\d+)", r"Fraction(\1)", written), {"Fraction": Fraction})
        except ZeroDivisionError:
            with pytest.raises(ZeroDivisionError):
                calculate(written, signs=False)
        else:
            assert calculate(written, signs=False) == expected


@given(st.text(alphabet="0123456789+-*/() .=x", max_size=30))
def test_no_text_breaks_the_parser(text: str) -> None:
    for form in FORMS:
        env = game([2, 3, 4, 11], 24, form=form)
        env.step(text)


def test_only_games_that_can_be_won_within_the_turns_are_dealt() -> None:
    env = Countdown(difficulty="hard", turns=2)
    for seed in range(5):
        assert play(env, env.solver(), seed=seed)[-1][2] == 1.0


def test_shaping_pays_nothing_for_a_dead_end() -> None:
    env = game([1, 1, 2, 12], 24, reward="shaped")
    env._potential_before = env._potential()
    assert env._potential_before == 1 / 4
    assert env.step("1 * 1")[1] == pytest.approx(1 / 3 - 1 / 4)
    assert env.step("2 / 12")[1] == pytest.approx(-1 / 3)
    assert env._potential() == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        {"numbers": 2, "target_low": 1, "target_high": 100},
        {"difficulty": "hard", "use_all": True, "form": "expression", "turns": 1},
        {"difficulty": "easy", "form": "expression", "reward": "shaped"},
    ],
)
def test_variants_keep_every_promise(arguments: dict[str, Any]) -> None:
    check_text_env(lambda: Countdown(**arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"numbers": 1}, "numbers must be at least 2, got 1"),
        ({"numbers": 7}, "numbers must be at most 6, got 7"),
        ({"numbers": "4"}, "numbers must be an integer, got '4'"),
        ({"low": 0}, "low must be at least 1, got 0"),
        ({"high": 101}, "high must be at most 100, got 101"),
        ({"low": 5, "high": 4}, "low must not be above high, got low=5 and high=4"),
        ({"target_low": 25}, "target_low must not be above target_high"),
        ({"large": 5}, "large must be at most 4, got 5"),
        ({"large": 3, "numbers": 2}, "large must not be above numbers"),
        ({"high": 2, "repeats": 1}, "numbers must not be more than can be dealt"),
        ({"use_all": 1}, "use_all must be True or False, got 1"),
        ({"form": "tree"}, "form must be 'steps' or 'expression', got 'tree'"),
        ({"turns": 2}, "turns must be at least numbers - 1 to use all, got 2"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Countdown(**arguments)


def test_games_that_nobody_can_win_are_refused_at_reset() -> None:
    with pytest.raises(ConfigError, match="of 2000 deals with these arguments none can be won"):
        Countdown(high=1).reset(seed=0)


def test_that_nobody_can_win_is_found_out_with_fewer_deals_of_many_numbers() -> None:
    env = Countdown(difficulty="hard", numbers=5, high=60, target_low=10**9, target_high=10**9)
    with pytest.raises(ConfigError, match="of 200 deals with these arguments none can be won"):
        env.reset(seed=0)
