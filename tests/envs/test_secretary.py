from fractions import Fraction

import pytest
from hypothesis import given, strategies as st
from support.games import game, mean_return

from gym_trl.envs.secretary import Secretary


def skip_then_take(skipped: int, count: int) -> Fraction:
    """Return the chance of skipping some and taking the next best so far: a sum over the place of the best."""
    if skipped == 0:
        return Fraction(1, count)
    return Fraction(skipped, count) * sum(Fraction(1, place - 1) for place in range(skipped + 1, count + 1))


@pytest.mark.parametrize(
    ("count", "skipped", "share"), [(3, 1, 0.5), (5, 2, 0.4333), (10, 3, 0.3987), (20, 7, 0.3842), (100, 37, 0.3710)]
)
def test_perfect_play_wins_the_published_share(count: int, skipped: int, share: float) -> None:
    env = Secretary(applicants=count, turns=count)
    assert env.optimal_success == pytest.approx(share, abs=5e-5)
    assert env.optimal_success == pytest.approx(float(max(skip_then_take(k, count) for k in range(count))), abs=1e-12)
    actions = [env.solver()(f"Applicant {seen} of {count}: rank 1 so far.") for seen in range(1, count + 1)]
    assert actions.index("accept") == skipped


@given(st.integers(1, 12), st.integers(0))
def test_a_rank_is_that_among_the_applicants_seen(count: int, number: int) -> None:
    env = Secretary(applicants=count)
    shown = env.reset(options={"instance": number % env.num_instances})[0]
    order: list[int] = []
    for seen in range(1, count + 1):
        rank = int(shown.rpartition("rank ")[2].split()[0])
        assert shown == f"Applicant {seen} of {count}: rank {rank} so far."
        assert 1 <= rank <= seen
        order.insert(rank - 1, seen)
        if seen < count:
            shown = env.step("skip")[0]
    env.reset(options={"instance": number % env.num_instances})
    results = [env.step("skip") for _ in range(order[0] - 1)]
    assert not any(over for _, _, over, _, _ in results)
    assert env.step("accept")[1] == 1.0


def test_the_instances_are_all_orders_once() -> None:
    env, ranks = game("Secretary", applicants=5), set()
    for number in range(120):
        shown = [env.reset(options={"instance": number})[0], *(env.step("skip")[0] for _ in range(4))]
        ranks.add(tuple(text.rpartition("rank ")[2] for text in shown))
    assert len(ranks) == env.num_instances == 120


@pytest.mark.parametrize(("last", "share"), [(1, 1 / 5), (3, None), (5, 1 / 5), (6, 0.0)])
def test_accepting_an_applicant_by_place_wins_one_in_five(last: int, share: float | None) -> None:
    env = game("Secretary", applicants=5)
    won = mean_return(env, lambda _: lambda shown: "accept" if f" {last} of" in shown else "skip", range(120))
    assert won == pytest.approx(1 / 5 if share is None else share)


def test_skipping_all_loses() -> None:
    env = game("Secretary", applicants=2)
    env.reset(seed=0)
    env.step("skip")
    assert env.step("skip")[:3] == ("You skipped all.", 0.0, True)


def test_an_applicant_waits_while_no_action_is_made() -> None:
    env = game("Secretary", applicants=3, turns=2)
    first, _ = env.reset(seed=0)
    assert env.step("hire")[0] == f'Not "accept" or "skip". Turns left: 1. {first}'
