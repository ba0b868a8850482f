import itertools
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.secretary import Secretary
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play
from gym_trl.types import Policy


def skip_then_take(skipped: int, count: int) -> Fraction:
    """Return the chance of the rule that skips some and takes the next best so far: a sum over the best one's place."""
    if skipped == 0:
        return Fraction(1, count)
    return Fraction(skipped, count) * sum(Fraction(1, place - 1) for place in range(skipped + 1, count + 1))


def skipped_by(policy: Policy, count: int) -> int:
    """Return the number that the solver skips even if each is the best so far."""
    for seen in range(1, count + 1):
        if policy(f"Applicant {seen} of {count}: rank 1 so far.") == "accept":
            return seen - 1
    raise AssertionError("somebody must be accepted")


@pytest.mark.parametrize(
    ("count", "skipped", "known"),
    [(3, 1, 0.5), (5, 2, 0.4333), (10, 3, 0.3987), (20, 7, 0.3842), (50, 18, 0.3743), (100, 37, 0.3710)],
)
def test_perfect_play_wins_what_is_known(count: int, skipped: int, known: float) -> None:
    env = Secretary(applicants=count, turns=count)
    assert env.optimal_success == pytest.approx(known, abs=5e-5)
    assert env.optimal_success == pytest.approx(float(max(skip_then_take(k, count) for k in range(count))), abs=1e-12)
    assert skipped_by(env.solver(), count) == skipped
    assert float(skip_then_take(skipped, count)) == pytest.approx(env.optimal_success, abs=1e-12)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7])
def test_the_solver_wins_its_share_of_all_orders(count: int) -> None:
    env = Secretary(applicants=count)
    won = [play(env, env.solver(), options={"instance": number})[-1][2] for number in range(env.num_instances)]
    assert sum(won) / len(won) == pytest.approx(env.optimal_success)


@pytest.mark.parametrize(("count", "turns"), [(6, 1), (6, 3), (6, 5), (5, 4)])
def test_with_fewer_turns_than_applicants_the_solver_still_wins_its_share(count: int, turns: int) -> None:
    """Against all ways to play that are functions of the number seen and of whether this one is the best so far."""
    env = Secretary(applicants=count, turns=turns)
    orders = list(itertools.permutations(range(count)))
    best = 0
    for takes in itertools.product([False, True], repeat=turns):
        won = 0
        for order in orders:
            taken = (i for i in range(turns) if takes[i] and order[i] == min(order[: i + 1]))
            place = next(taken, None)
            won += place is not None and order[place] == 0
        best = max(best, won)
    assert env.optimal_success == pytest.approx(best / len(orders))
    won = sum(play(env, env.solver(), options={"instance": number})[-1][2] for number in range(env.num_instances))
    assert won == best


def test_instances_are_all_orders_once() -> None:
    env, found = Secretary(applicants=5), set()
    for number in range(env.num_instances):
        env.reset(options={"instance": number})
        ranks = []
        for seen in range(5):
            env._seen = seen + 1
            ranks.append(env._rank_of_all())
        assert sorted(ranks) == [1, 2, 3, 4, 5]
        found.add(tuple(ranks))
    assert len(found) == 120


@given(st.integers(1, 30), st.integers(0), st.data())
def test_the_rank_that_is_shown_is_that_among_those_seen(count: int, number: int, data: st.DataObject) -> None:
    env = Secretary(applicants=count)
    env.reset(options={"instance": number % env.num_instances})
    ranks = []
    for seen in range(count):
        env._seen = seen + 1
        ranks.append(env._rank_of_all())
    for seen in range(count):
        env._seen = seen + 1
        rank = sorted(ranks[: seen + 1]).index(ranks[seen]) + 1
        assert env._observe() == f"Applicant {seen + 1} of {count}: rank {rank} so far."


@pytest.mark.parametrize("always", ["accept", "skip"])
def test_a_constant_action_wins_one_of_the_applicants_or_nobody(always: str) -> None:
    env = Secretary(applicants=5)
    won = sum(play(env, lambda _: always, options={"instance": number})[-1][2] for number in range(120))
    assert won == (24 if always == "accept" else 0)


def test_waiting_for_the_last_one_wins_one_of_the_applicants() -> None:
    env = Secretary(applicants=5)
    last = lambda shown: "accept" if shown.startswith("Applicant 5") else "skip"  # noqa: E731
    assert sum(play(env, last, options={"instance": number})[-1][2] for number in range(120)) == 24


def test_random_play_wins_what_it_must() -> None:
    env = Secretary(difficulty="easy")
    won = sum(play(env, env.random_policy(seed), seed=seed)[-1][2] for seed in range(4_000)) / 4_000
    assert won == pytest.approx((1 - 2**-5) / 5, abs=0.025)


@pytest.mark.parametrize("said", ["", "accept 1", "yes", "skip skip", "0", "s\u212aip", "accepted"])
def test_what_is_no_action_costs_a_turn_and_the_applicant_waits(said: str) -> None:
    env = Secretary(applicants=3, turns=2)
    first, _ = env.reset(seed=0)
    answer = f'Not "accept" or "skip". Turns left: 1. {first}'
    assert env.step(said)[:3] == (answer, 0.0, False)
    assert env.step(said)[2:] == (True, False, {"action_valid": False, "success": False, "admissible_actions": []})


@pytest.mark.parametrize("said", ["skip", " SKIP\n", "Skip"])
def test_spaces_and_capitals_do_not_matter(said: str) -> None:
    env = Secretary()
    env.reset(seed=0)
    assert env.step(said)[0].startswith("Applicant 2 of 50")


def test_who_skips_all_has_lost() -> None:
    env = Secretary(applicants=2)
    env.reset(seed=0)
    env.step("skip")
    assert env.step("skip")[:3] == ("You skipped all.", 0.0, True)


def test_shaping_starts_at_what_perfect_play_wins_in_the_mean() -> None:
    env, starts = Secretary(applicants=4, reward="shaped"), []
    for number in range(24):
        env.reset(options={"instance": number})
        starts.append(env._potential())
    assert sum(starts) / 24 == pytest.approx(env.optimal_success)


@pytest.mark.parametrize("arguments", [{"applicants": 1, "turns": 1}, {"applicants": 9, "turns": 4}])
@pytest.mark.parametrize("reward", ["success", "shaped"])
def test_variants_keep_every_promise(arguments: dict[str, Any], reward: str) -> None:
    check_text_env(lambda: Secretary(reward=reward, **arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"applicants": 0}, "applicants must be at least 1, got 0"),
        ({"applicants": "50"}, "applicants must be an integer, got '50'"),
        ({"applicants": 10**9}, "applicants must be at most 1000, got 1000000000"),
        ({"turns": 1.5}, "turns must be an integer"),
        ({"turns": True}, "turns must be an integer"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Secretary(**arguments)
