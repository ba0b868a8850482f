"""Advantages of turns: their equations, invariants, exact expectations on small MDPs, and which groups are compared."""

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from statistics import fmean
from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.episode import Episode
from gym_trl.errors import ConfigError
from gym_trl.grpo.credit import (
    ESTIMATORS,
    Estimator,
    Turns,
    advantages,
    episode,
    pool,
    return_to_go,
)
from gym_trl.options import check_options
from gym_trl.types import StateName, StepResult, Task

NAMES = sorted(ESTIMATORS)
REWARDS = st.floats(-10, 10).map(lambda value: round(value, 3))


Key: TypeAlias = Callable[[int, int], Hashable]
"""Function from turn and state to a key."""


class SmallMDP:
    """Random MDP with two states, two actions, ends on the way and a horizon; a policy; and all its episodes.

    By default every action may end an episode. With ``stops``, the first action ends it and the second never does, so
    that the policy alone decides how many turns there are.
    """

    def __init__(self, rng: np.random.Generator, horizon: int, *, stops: bool = False) -> None:
        self.horizon = horizon
        self.to = rng.dirichlet([1.0, 1.0, 0.5], size=(horizon, 2, 2))  # state 2: the end
        self.pays = rng.normal(size=(horizon, 2, 2)).round(2)
        self.policy = rng.dirichlet([1.0, 1.0], size=(horizon, 2))
        if stops:
            self.to[..., 2] = 0.0
            self.to /= self.to.sum(axis=-1, keepdims=True)
            self.to[:, :, 0] = 0.0, 0.0, 1.0

    def episodes(self) -> list[tuple[float, list[tuple[int, int, int]]]]:
        """Return all episodes that are possible: probability, and turns as (turn, state, action)."""

        def onward(turn: int, state: int) -> Iterator[tuple[float, list[tuple[int, int, int]]]]:
            if turn == self.horizon or state == 2:
                yield 1.0, []
                return
            for action, following in product((0, 1), (2,) if turn == self.horizon - 1 else (0, 1, 2)):
                chance = 1.0 if turn == self.horizon - 1 else self.to[turn, state, action, following]
                for later, turns in onward(turn + 1, following) if chance else ():
                    here = (turn, state, action)
                    yield self.policy[turn, state, action] * chance * later, [here, *turns]

        return list(onward(0, 0))

    def gradient(self, estimator: Estimator, size: int, key: Key, *, markov: bool) -> np.ndarray:
        """Return the expected policy gradient with an estimator, over all groups of ``size`` episodes."""
        total = np.zeros_like(self.pays)
        for group in product(self.episodes(), repeat=size):
            members = [
                Turns([self.pays[at] for at in turns], [key(t, s) for t, s, _ in turns], markov=markov)
                for _, turns in group
            ]
            chance = math.prod(one for one, _ in group) / size
            for (_, turns), worth in zip(group, estimator(members), strict=True):
                for at, advantage in zip(turns, worth, strict=True):
                    total[at] += chance * advantage
                    total[at[:2]] -= chance * advantage * self.policy[at[:2]]
        return total

    def exact_gradient(self) -> np.ndarray:
        """Return the gradient of the expected return by the policy's logits, by backward induction."""
        value = np.zeros((self.horizon + 1, 3))
        advantage = np.zeros_like(self.pays)
        for turn in reversed(range(self.horizon)):
            quality = self.pays[turn] + (self.to[turn] @ value[turn + 1] if turn < self.horizon - 1 else 0.0)
            value[turn, :2] = (self.policy[turn] * quality).sum(axis=-1)
            advantage[turn] = quality - value[turn, :2, None]
        visits = np.array([1.0, 0.0])
        gradient = np.zeros_like(self.pays)
        for turn in range(self.horizon):
            gradient[turn] = visits[:, None] * self.policy[turn] * advantage[turn]
            visits = np.einsum("s,sa,san->n", visits, self.policy[turn], self.to[turn])[:2]
        return gradient


def limited(rewards: Sequence[float], places: Sequence[Hashable], most: int) -> Turns:
    """Return an episode under a turn limit, with keys that contain the turns left."""
    left = [most - turn for turn in range(len(rewards))]
    return Turns(rewards, list(zip(places, left, strict=True)), left, places, markov=True)


@st.composite
def groups(draw: st.DrawFn, *, least: int = 0, most: int = 5, limits: bool = True) -> list[Turns]:
    """Draw a group of episodes of different lengths in few states, some under a turn limit, some with penalties."""
    markov, under_limit, fined = draw(st.booleans()), limits and draw(st.booleans()), draw(st.booleans())
    drawn = []
    for rewards in draw(st.lists(st.lists(REWARDS, min_size=1, max_size=6), min_size=least, max_size=most)):
        places = draw(st.lists(st.sampled_from(["a", "b", ("c", 1), 4]), min_size=len(rewards), max_size=len(rewards)))
        one = limited(rewards, places, 7) if under_limit else Turns(rewards, places)
        costs = draw(st.lists(st.sampled_from([0.0, 0.5]), min_size=len(rewards), max_size=len(rewards)))
        drawn.append(one._replace(markov=markov, penalties=costs if fined else ()))
    return drawn


def near(rows: Sequence[Sequence[float]]) -> list[object]:
    return [pytest.approx(list(row), abs=1e-9) for row in rows]


# ---------------------------------------------------------------------------------------------------------------------
# All estimators
# ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@given(group=groups(), data=st.data())
def test_every_turn_has_a_finite_advantage_that_the_order_of_episodes_does_not_change(
    name: str, group: list[Turns], data: st.DataObject
) -> None:
    advantages = ESTIMATORS[name](group)
    assert [len(row) for row in advantages] == [len(one.rewards) for one in group]
    assert all(type(value) is float and math.isfinite(value) for row in advantages for value in row)
    order = data.draw(st.permutations(range(len(group))))
    assert ESTIMATORS[name]([group[place] for place in order]) == near([advantages[place] for place in order])
    many = ESTIMATORS[name](group * 9)  # a large group, which pool divides into parts
    assert all(math.isfinite(value) for row in many for value in row)


@pytest.mark.parametrize("name", NAMES)
@given(group=groups(limits=False), shift=REWARDS, factor=st.floats(-3, 3))
def test_a_constant_added_to_all_returns_is_no_merit_and_a_factor_remains(
    name: str, group: list[Turns], shift: float, factor: float
) -> None:
    changed = [
        one._replace(
            rewards=[*(factor * paid for paid in one.rewards[:-1]), factor * one.rewards[-1] + shift],
            penalties=[factor * cost for cost in one.penalties],
        )
        for one in group
    ]
    expected = [[factor * value for value in row] for row in ESTIMATORS[name](group)]
    assert ESTIMATORS[name](changed) == near(expected)


@pytest.mark.parametrize("name", NAMES)
@given(group=groups(least=1, most=1))
def test_an_episode_without_company_has_no_advantage(name: str, group: list[Turns]) -> None:
    assert ESTIMATORS[name](group) == near([[0.0] * len(group[0].rewards)])


# ---------------------------------------------------------------------------------------------------------------------
# By hand
# ---------------------------------------------------------------------------------------------------------------------


def test_a_turn_without_company_takes_the_baseline_of_the_last_turn_with_it() -> None:
    group = [Turns([0.0, 0.0, 1.0, 2.0], "abcd"), Turns([1.0, 4.0], "ab"), Turns([6.0], "a")]
    # Returns to go: 3 3 3 2, 5 4 and 6. Turn 1 has the second episode as company, turns 2 and 3 have none.
    assert return_to_go(group) == near([[3 - 5.5, 3 - 4, 3 - 4, 2 - 4], [5 - 4.5, 4 - 3], [6 - 4]])


@given(group=groups())
def test_without_states_that_recur_pool_is_return_to_go(group: list[Turns]) -> None:
    apart = [
        Turns(one.rewards, [(place, turn) for turn in range(len(one.rewards))], markov=one.markov)
        for place, one in enumerate(group)
    ]
    assert pool(apart) == near(return_to_go(apart))


def test_pool_as_computed_by_hand() -> None:
    group = [
        Turns([0.0, 1.0], ["start", "left"], markov=True),
        Turns([0.0, 0.0], ["start", "left"], markov=True),
        Turns([0.5, 0.0], ["start", "right"], markov=True),
    ]
    # Returns to go: 1 1, 0 0 and 0.5 0. Baseline by turn: .25 .0, .75 .5 and .5 .5.
    # Q of the first turn: both "left" have (1 + 0) / 2, "right" 0.5; of the second: 1, 0, 0.
    # V of "start": baseline and two others, (.25 + .5) / 3, (.75 + 1.5) / 3, (.5 + 1) / 3; of "left": baseline and one.
    assert pool(group) == near([[0.5 - 0.25, 1 - 0.0], [0.5 - 0.75, 0 - 0.75], [0.5 - 0.5, 0 - 0.5]])
    # Keys that are not Markov serve the baseline only.
    hidden = [one._replace(markov=False) for one in group]
    assert pool(hidden) == near([[1 - 0.25, 1 - 0.0], [0 - 0.75, 0 - 0.75], [0.5 - 0.5, 0 - 0.5]])
    assert pool([*group[:2], hidden[2]]) == near(pool(hidden))


def test_values_are_shared_between_numbers_of_turns_left_as_computed_by_hand() -> None:
    group = [
        limited([0.0, 1.0], ["start", "door"], 3),  # two turns, won with one to spare
        limited([0.0, 0.0, 1.0], ["start", "start", "door"], 3),  # won in the last
        limited([0.0, 0.0, 0.0], ["start", "start", "start"], 3),
    ]
    # The third episode's second turn: two turns left at "start". The others were there three times, whatever was left,
    # and went twice to the door: W("door", 1) = 1, W("start", 1) = 0, W("start", 2) = (1 + 0 + 1) / 3. By turn the
    # others return 1 and 1.
    values = pool(group)
    assert values[2][1] == pytest.approx(0.0 + (0.0 + 3 * 0.0) / 4 - (1.0 + 3 * (2 / 3)) / 4)
    # Its last turn has nothing left to lose: W("start", 1) = 0, and the other that got so far returns 1.
    assert values[2][2] == pytest.approx(0.0 - (1.0 + 3 * 0.0) / 4)
    # With exact keys it would have had one visit as company instead of three.
    exact = [Turns(one.rewards, one.keys, markov=True) for one in group]
    assert pool(exact)[2][1] == pytest.approx(-(1.0 + 1.0) / 2)


@given(group=groups(), most=st.integers(6, 9))
def test_a_turn_limit_changes_nothing_where_places_have_one_number_left(group: list[Turns], most: int) -> None:
    shared = [limited(one.rewards, [(key, turn) for turn, key in enumerate(one.keys)], most) for one in group]
    assert pool(shared) == near(pool([Turns(one.rewards, one.keys, markov=True) for one in shared]))


@given(group=groups())
def test_a_penalty_is_credited_to_its_own_turn_alone(group: list[Turns]) -> None:
    fined = [one._replace(penalties=[0.5] * len(one.rewards)) for one in group]  # the same in every turn: no merit
    free = [one._replace(rewards=[paid + 0.5 for paid in one.rewards], penalties=()) for one in group]
    assert pool(fined) == near(pool(free))


def test_an_end_that_saves_later_penalties_is_no_merit() -> None:
    dies = Turns([0.0], ["start"], penalties=[0.0], markov=True)
    lives = Turns([0.0, -0.2, -0.2], ["start", "path", "path"], penalties=[0.0, 0.2, 0.2], markov=True)
    group = [dies, lives] * 4
    assert [row[0] for row in pool(group)] == near([[0.0] * 8])[0]
    whole = pool([one._replace(penalties=()) for one in group])
    assert whole[0][0] > 0.1 > -0.1 > whole[1][0]
    mixed = [lives, Turns([0.0, 0.0], ["start", "path"], penalties=[0.0, 0.0], markov=True)] * 4
    assert pool(mixed)[1][1] > 0.05 > -0.05 > pool(mixed)[0][1]


# ---------------------------------------------------------------------------------------------------------------------
# Expected gradients
# ---------------------------------------------------------------------------------------------------------------------

UNBIASED: dict[str, tuple[Estimator, Key, bool]] = {
    "return_to_go": (return_to_go, lambda turn, state: state, False),
    "pool with Markov keys": (pool, lambda turn, state: (turn, state), True),
    "pool with keys that are not Markov": (pool, lambda turn, state: state, False),
    "pool with one key for all states": (pool, lambda turn, state: 0, False),
}


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(("horizon", "size"), [(2, 3), (3, 2)])
@pytest.mark.parametrize("name", UNBIASED)
def test_the_expected_gradient_is_the_exact_one(name: str, horizon: int, size: int, stops: bool) -> None:
    estimator, key, markov = UNBIASED[name]
    for seed in range(2):
        mdp = SmallMDP(np.random.default_rng(seed), horizon, stops=stops)
        expected = mdp.gradient(estimator, size, key, markov=markov)
        assert expected == pytest.approx(mdp.exact_gradient(), abs=1e-12)


@pytest.mark.parametrize("stops", [False, True])
def test_the_expected_gradient_of_grpo_is_the_exact_one_times_a_number(stops: bool) -> None:
    mdp = SmallMDP(np.random.default_rng(0), 2, stops=stops)
    expected = mdp.gradient(episode, 3, lambda turn, state: state, markov=False)
    assert expected == pytest.approx(mdp.exact_gradient() * float(Fraction(2, 3)), abs=1e-12)


# ---------------------------------------------------------------------------------------------------------------------
# Groups
# ---------------------------------------------------------------------------------------------------------------------


def compared(batch: Sequence[Sequence[Turns]], estimator: Estimator, how: str = "none", keys: str = "") -> Any:
    """Return the advantages by group; ``keys`` are the names of their tasks."""
    members = [
        one._replace(group=number, seat=1, task=keys[number] if keys else str(number))
        for number, group in enumerate(batch)
        for one in group
    ]
    found = iter(advantages(members, estimator, how))
    return [[next(found) for _ in group] for group in batch]


@pytest.mark.parametrize("how", ["group", "batch", "none"])
@given(returns=st.lists(st.lists(st.integers(-9, 9).map(float), min_size=1, max_size=4), min_size=1, max_size=4))
def test_episode_is_scaled_as_trl_does(returns: list[list[float]], how: str) -> None:
    found = compared([[Turns([0.0, value], "ab") for value in group] for group in returns], episode, how)
    for group, rows in zip(returns, found, strict=True):
        others = group if how == "group" else [value for values in returns for value in values]
        deviation = float(np.std(others, ddof=1)) + 1e-4 if len(others) > 1 else 1e-4
        scale = 1.0 if how == "none" else deviation
        assert rows == near([[(value - fmean(group)) / scale] * 2 for value in group])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["group", "batch"])
@given(batch=st.lists(groups(), max_size=4))
def test_scaled_advantages_are_bounded_whatever_is_paid(name: str, how: str, batch: list[list[Turns]]) -> None:
    for group, rows in zip(batch, compared(batch, ESTIMATORS[name], how), strict=True):
        episodes = sum(map(len, batch)) if how == "batch" else len(group)
        for one, row in zip(group, rows, strict=True):
            assert max(map(abs, row)) <= math.sqrt(episodes * len(one.rewards)) + 1e-9


def test_equal_returns_of_unequal_turns_do_not_explode_and_rounding_is_no_advantage() -> None:
    unequal = [Turns([0.0, 1.0], "ab", markov=True), Turns([1.0, 0.0], "ac", markov=True)] * 8
    [values] = compared([unequal], pool, "group")
    assert 0.1 < max(abs(value) for row in values for value in row) < 3
    same = [Turns([0.1, 0.2, 0.3], "abc"), Turns([0.3, 0.2, 0.1], "abc"), Turns([0.1 + 0.2 + 0.3], "a")]
    assert compared([same, unequal], episode, "group")[0] == [[0.0] * 3, [0.0] * 3, [0.0]]


def test_pool_compares_all_groups_of_a_task_and_other_estimators_do_not() -> None:
    lost, won = (Turns([paid], ["start"], markov=True) for paid in (0.0, 1.0))
    batch = [[lost, lost], [won, won]]
    assert compared(batch, pool, keys="aa") == near_groups([[-2 / 3] * 2, [2 / 3] * 2])
    for estimator, keys in ((pool, "ab"), (return_to_go, "aa"), (episode, "aa")):
        assert compared(batch, estimator, keys=keys) == near_groups([[0.0] * 2] * 2)
    for other in (won._replace(markov=False), won._replace(keys=["elsewhere"])):  # not known to be the same state
        assert compared([[lost, lost], [other, other]], pool, keys="aa") == near_groups([[0.0] * 2] * 2)


def near_groups(values: Sequence[Sequence[float]]) -> list[list[Any]]:
    """Return what is near to groups of episodes of one turn."""
    return [near([[value] for value in row]) for row in values]


def test_an_estimator_of_a_user_is_called_with_each_group_and_its_form_is_checked() -> None:
    batch, given_groups = [[Turns([1.0], "a")], [Turns([0.0, 2.0], "ab"), Turns([0.0], "a")]], []

    def last(group: Sequence[Turns]) -> list[list[float]]:
        given_groups.append(list(group))
        return [list(one.rewards) for one in group]

    assert compared(batch, last) == [[[1.0]], [[0.0, 2.0], [0.0]]]
    assert [[one.rewards for one in group] for group in given_groups] == [[[1.0]], [[0.0, 2.0], [0.0]]]
    for wrong in ([], [[1.0], [1.0]], [[math.nan, 0.0], [0.0]], None, 1.0, [1.0, 2.0], "ab", [["a", "b"], ["c"]]):

        def mine(group: Sequence[Turns], wrong: Any = wrong) -> Any:
            return wrong

        with pytest.raises(ConfigError, match="mine"):
            compared(batch[1:], mine)


@pytest.mark.parametrize("credit", ["pol", 3, None])
def test_an_estimator_that_does_not_exist_is_refused(credit: Any) -> None:
    """Law 22."""
    with pytest.raises(ConfigError, match="credit"):
        check_options({"credit": credit})


def played(states: Sequence[StateName], **about: Any) -> Episode:
    one = Episode(Task("Some-v0", seed=3), **about)
    one.begin(StepResult("go", state=states[0], markov_keys=True, task_key="" if not about else "maze"))
    for state in states[1:]:
        one.answer("a")
        one.step(StepResult("on", reward=-0.25, info={"invalid_penalty": 0.5}, state=state))
    return one


def test_turns_of_an_episode_are_its_states_before_each_and_weighted_penalties() -> None:
    timed = [StateName(f"({place}, {left})", str(place), left) for place, left in ((4, 2), (5, 1), (6, 0))]
    turns = Turns.of(played(timed), 0, [1.0, 3.0], weight=2.0)
    assert turns[:6] == ([1.0, 3.0], ["(4, 2)", "(5, 1)"], [2, 1], ["4", "5"], [1.0, 1.0], True)
    assert Turns.of(played([StateName("x"), *timed[1:]]), 0, [1.0, 3.0]).left == ()


def test_episodes_share_a_task_if_their_states_are_those_of_one_and_seats_are_never_compared() -> None:
    states = [StateName("x"), StateName("y")]
    first, second = (Turns.of(played(states, seat=seat), 0) for seat in (0, 1))
    assert first.task == second.task != Turns.of(played(states), 0).task
    rows = [one._replace(rewards=[paid], group=group) for one, paid, group in ((first, 0.0, 0), (second, 1.0, 1))]
    assert advantages(rows, pool, "none") == [[0.0], [0.0]]
