import math
from functools import cache

import pytest
from support.games import game

from gym_trl.envs.bandit import Bandit
from gym_trl.envs.text_env import Difficulty
from gym_trl.testing import play


def bayes(arms: int, gap: float, turns: int) -> float:
    """Return the best mean payoff: all policies are considered, and nothing but Bayes' rule is used."""
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


@pytest.mark.parametrize(("arms", "gap", "turns"), [(2, 0.1, 1), (2, 0.5, 8), (3, 0.9, 5), (3, 0.1, 8), (4, 0.5, 6)])
def test_the_optimum_is_that_of_a_full_dynamic_program(arms: int, gap: float, turns: int) -> None:
    assert Bandit(arms=arms, gap=gap, turns=turns).optimal_return == pytest.approx(bayes(arms, gap, turns), abs=1e-12)


@pytest.mark.parametrize(("difficulty", "value"), [("easy", 0.6158), ("medium", 0.5257), ("hard", 0.4819)])
def test_the_solver_is_paid_the_published_optimum(difficulty: Difficulty, value: float) -> None:
    env = Bandit(difficulty=difficulty)
    assert env.optimal_return == pytest.approx(value, abs=5e-5)
    paid = [sum(step[2] for step in play(env, env.solver(), seed=seed)[1:]) for seed in range(300)]
    assert sum(paid) / 300 == pytest.approx(value, abs=0.03)


def test_an_arm_pays_the_same_in_a_group_whatever_else_is_tried() -> None:
    """RAGEN varies the noise within a group on purpose. Here the tape is drawn at reset."""

    def paid_by_b(others: str) -> list[str]:
        env, results = Bandit(), []
        env.reset(seed=7)
        for turn in range(20):
            results.append(env.step("B")[0][:9])
            for other in others[: turn % 3]:
                env.step(other)
        return results

    assert paid_by_b("") == paid_by_b("AC") == paid_by_b("E?")


def test_the_table_shows_what_was_paid() -> None:
    env, paid, tried = Bandit(turns=50), [0] * 5, [0] * 5
    policy, turn = env.random_policy(1), 0
    observation, _ = env.reset(seed=1)
    over = False
    while not over:
        action, turn = policy(observation), turn + 1
        observation, reward, over, _, _ = env.step(action)
        arm = "ABCDE".index(action)
        tried[arm] += 1
        paid[arm] += round(reward * 50)
        table = ", ".join(f"{'ABCDE'[i]} {paid[i]}/{tried[i]}" for i in range(5))
        assert observation == f"{action} paid {round(reward * 50)}. Turns left: {50 - turn}. Paid of tried: {table}."
    assert turn == 50


def test_regret_is_told_at_the_end_alone() -> None:
    """Told before, it would tell the best arm. The arms pay 0.75 and 0.25 of the turns here."""
    regrets: list[float] = []
    for pulls in ("ABAB", "BABA", "AAA?", "BBB?"):
        env = game("Bandit", arms=2, gap=0.5, turns=4)
        env.reset(seed=0)
        *early, last = [env.step(action)[-1].get("regret") for action in pulls]
        assert early == [None] * 3
        assert last is not None
        regrets.append(last)
    assert regrets[:2] == [1.0, 1.0]
    assert sorted(regrets[2:]) == [0.75, 2.25]


def test_success_is_the_best_arm_in_the_last_turn() -> None:
    won = []
    for last in ("A", "B", "?"):
        env = game("Bandit", arms=2, turns=2, reward="success")
        env.reset(seed=0)
        env.step("B")
        _, reward, over, _, info = env.step(last)
        assert over
        assert reward == info["success"]
        won.append(reward)
    assert sorted(won) == [0.0, 0.0, 1.0]
    assert won[2] == 0.0
