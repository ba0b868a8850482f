import math
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from gym_trl.envs.bandit import Bandit
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy

LETTERS = "ABCDEFGHIJKLMNOPQRST"
Index = Callable[[int, int, int], float]
"""Of an arm, by how often it paid, how often it was tried, and the turn."""


def highest(arms: int, index: Index) -> Policy:
    """Tries each arm once, then the one with the highest index."""
    paid, tried = [0] * arms, [0] * arms

    def play_turn(observation: str) -> str:
        if " paid " in observation:
            arm = LETTERS.index(observation[0])
            tried[arm] += 1
            paid[arm] += int(observation[7])
        turn = sum(tried)
        if turn < arms:
            return LETTERS[turn]
        return LETTERS[max(range(arms), key=lambda arm: index(paid[arm], tried[arm], turn))]

    return play_turn


def indices(rng: random.Random) -> dict[str, Index]:
    return {
        "UCB1": lambda paid, tried, turn: paid / tried + math.sqrt(2 * math.log(turn) / tried),
        "Thompson": lambda paid, tried, turn: rng.betavariate(1 + paid, 1 + tried - paid),
        "greedy": lambda paid, tried, turn: paid / tried,
    }


def mean_payoff(env: Bandit, make_policy: Callable[[int], Policy], episodes: int) -> float:
    return sum(sum(step[2] for step in play(env, make_policy(i), seed=i)[1:]) for i in range(episodes)) / episodes


def bayes(arms: int, gap: float, turns: int) -> float:
    """The best mean payoff: every policy is considered, and nothing but Bayes' rule is used."""
    good, bad = 0.5 + gap / 2, 0.5 - gap / 2

    @cache
    def value(counts: tuple[tuple[int, int], ...], left: int) -> float:
        if left == 0:
            return 0.0
        likelihoods = []
        for best in range(arms):
            chances = (good if arm == best else bad for arm in range(arms))
            likelihoods.append(math.prod(c**p * (1 - c) ** n for c, (p, n) in zip(chances, counts, strict=True)))
        values = []
        for arm, (paid, not_paid) in enumerate(counts):
            pays = bad + (good - bad) * likelihoods[arm] / sum(likelihoods)
            others = counts[:arm] + counts[arm + 1 :]
            won, lost = (tuple(sorted((*others, pair))) for pair in ((paid + 1, not_paid), (paid, not_paid + 1)))
            values.append(pays * (1 + value(won, left - 1)) + (1 - pays) * value(lost, left - 1))
        return max(values)

    return value(((0, 0),) * arms, turns) / turns


@pytest.mark.parametrize(("arms", "turns"), [(2, 1), (2, 8), (3, 2), (3, 5), (3, 8), (4, 6)])
@pytest.mark.parametrize("gap", [0.1, 0.5, 0.9])
def test_the_optimum_is_that_of_a_full_dynamic_program(arms: int, gap: float, turns: int) -> None:
    assert Bandit(arms=arms, gap=gap, turns=turns).optimal_return == pytest.approx(bayes(arms, gap, turns), abs=1e-12)


@pytest.mark.parametrize(("difficulty", "value"), [("easy", 0.6158), ("medium", 0.5257), ("hard", 0.4819)])
def test_the_optimum_of_the_presets_is_what_the_table_says(difficulty: Any, value: float) -> None:
    assert Bandit(difficulty=difficulty).optimal_return == pytest.approx(value, abs=5e-5)


@pytest.mark.parametrize("difficulty", ["easy", "medium", "hard"])
def test_the_solver_reaches_the_optimum(difficulty: Any) -> None:
    env = Bandit(difficulty=difficulty)
    played = [play(env, env.solver(), seed=seed)[1:] for seed in range(600)]
    assert env.optimal_return is not None
    assert env.optimal_success is not None
    assert sum(step[2] for steps in played for step in steps) / 600 == pytest.approx(env.optimal_return, abs=0.02)
    assert sum(steps[-1][-1]["success"] for steps in played) / 600 == pytest.approx(env.optimal_success, abs=0.08)


@pytest.mark.parametrize(("name", "value"), [("UCB1", 0.463), ("Thompson", 0.489), ("greedy", 0.492)])
def test_known_policies_are_below_it(name: str, value: float) -> None:
    env = Bandit()
    measured = mean_payoff(env, lambda seed: highest(5, indices(random.Random(seed))[name]), 400)
    assert measured == pytest.approx(value, abs=0.015)
    assert env.optimal_return is not None
    assert measured < env.optimal_return


def test_random_and_constant_play_are_paid_the_mean_of_the_arms() -> None:
    env = Bandit(difficulty="easy")
    assert mean_payoff(env, env.random_policy, 2_000) == pytest.approx(0.375, abs=0.012)
    assert mean_payoff(env, lambda _: lambda _: "A", 2_000) == pytest.approx(0.375, abs=0.02)


def test_an_arm_pays_the_same_in_a_group_whatever_else_is_tried() -> None:
    """RAGEN varies the noise within a group on purpose. Here the tape is drawn at reset."""

    def paid_by_b(others: str) -> list[str]:
        env, found = Bandit(), []
        env.reset(seed=7)
        for turn in range(20):
            found.append(env.step("B")[0][:9])
            for other in others[: turn % 3]:
                env.step(other)
        return found

    assert paid_by_b("") == paid_by_b("AC") == paid_by_b("E?")


def test_what_is_shown_is_what_was_paid() -> None:
    env, policy, paid, tried = Bandit(turns=50), None, [0] * 5, [0] * 5
    policy = env.random_policy(1)
    observation, _ = env.reset(seed=1)
    for turn in range(1, 51):
        action = policy(observation)
        observation, reward, over, _, _ = env.step(action)
        arm = LETTERS.index(action)
        tried[arm] += 1
        paid[arm] += round(reward * 50)
        table = ", ".join(f"{LETTERS[i]} {paid[i]}/{tried[i]}" for i in range(5))
        assert observation == f"{action} paid {round(reward * 50)}. Turns left: {50 - turn}. Paid of tried: {table}."
        assert over is (turn == 50)


def test_regret_is_what_worse_arms_cost_in_the_mean_and_is_told_at_the_end_alone() -> None:
    """Told before, it would tell the best arm."""
    env = Bandit(arms=2, gap=0.5, turns=4)
    env.reset(seed=0)
    best, worse = ("A", "B") if env._best == 0 else ("B", "A")
    regrets = [env.step(action)[-1].get("regret") for action in (best, worse, "?", best)]
    assert regrets == [None, None, None, 1.25]


def test_it_is_a_success_if_the_last_turn_goes_to_the_best_arm() -> None:
    for last in ("A", "B", "?"):
        env = Bandit(arms=2, turns=2, reward="success")
        env.reset(seed=0)
        env.step("B")
        _, reward, over, _, info = env.step(last)
        assert over
        assert reward == info["success"] == (last == "AB"[env._best])


@pytest.mark.parametrize("said", ["", "F", "AB", "1", "arm A", "A.", "\u0391", "\u24b6", "A" * 5_000])
def test_what_is_no_arm_costs_a_turn_and_pays_nothing(said: str) -> None:
    env = Bandit(summary=False)
    env.reset(seed=0)
    assert env.step(said)[:3] == ("Not A to E. Turns left: 99.", 0.0, False)
    assert env.step(said)[-1]["action_valid"] is False


@pytest.mark.parametrize("said", ["b", " B\n", "B"])
def test_spaces_and_capitals_do_not_matter(said: str) -> None:
    env = Bandit()
    env.reset(seed=0)
    assert env.step(said)[0].startswith("B paid")


def test_the_instructions_say_what_is_paid() -> None:
    assert "You have 100 turns; collect as much as you can." in Bandit().instructions
    aim = "You have 100 turns; you win if you choose that one in the last turn."
    assert aim in Bandit(reward="success").instructions


def test_where_the_gap_is_one_the_first_payment_says_all() -> None:
    env = Bandit(arms=3, gap=1, turns=3)
    assert env.optimal_return == pytest.approx((1 + 2 / 3 + 1 / 3) / 3)
    assert env.optimal_success == pytest.approx(1.0)
    assert play(env, env.solver(), seed=0)[-1][2] > 0


@pytest.mark.full
@pytest.mark.parametrize(
    "arguments", [{"arms": 2, "turns": 1}, {"arms": 20, "gap": 1.0, "turns": 50}, {"summary": False, "turns": 7}]
)
@pytest.mark.parametrize("reward", ["payoff", "success"])
def test_variants_keep_every_promise(arguments: dict[str, Any], reward: str) -> None:
    check_text_env(lambda: Bandit(reward=reward, **arguments), episodes=30)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"arms": 1}, "arms must be at least 2, got 1"),
        ({"arms": 21}, "arms must be at most 20, got 21"),
        ({"arms": "5"}, "arms must be an integer, got '5'"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": 1001}, "turns must be at most 1000, got 1001"),
        ({"gap": 0}, "gap must be a number above 0 and up to 1, got 0"),
        ({"gap": 1.5}, "gap must be a number above 0 and up to 1, got 1.5"),
        ({"gap": float("nan")}, "gap must be a number above 0 and up to 1, got nan"),
        ({"gap": "0.2"}, "gap must be a number above 0 and up to 1, got '0.2'"),
        ({"summary": 1}, "summary must be True or False, got 1"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Bandit(**arguments)
