import math
from functools import cache

import pytest

from gym_trl.envs.bandit import Bandit


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
            if arm and counts[arm] == counts[arm - 1]:
                continue
            pays = bad + (good - bad) * likelihoods[arm] / sum(likelihoods)
            others = counts[:arm] + counts[arm + 1 :]
            won, lost = (tuple(sorted((*others, pair))) for pair in ((paid + 1, not_paid), (paid, not_paid + 1)))
            values.append(pays * (1 + value(won, left - 1)) + (1 - pays) * value(lost, left - 1))
        return max(values)

    return value(((0, 0),) * arms, turns) / turns


@pytest.mark.slow
def test_the_optimum_is_that_of_a_full_dynamic_program() -> None:
    assert Bandit("easy").optimal_return == pytest.approx(bayes(4, 0.5, 20), abs=1e-12)
