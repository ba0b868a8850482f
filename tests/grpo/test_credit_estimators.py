"""Estimators of the advantage of each turn: their equations, invariants, and exact expectations on small MDPs."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.small_mdp import Key, SmallMDP

from gym_trl.errors import ConfigError
from gym_trl.grpo.credit import (
    ESTIMATORS,
    Estimator,
    TurnRewards,
    episode,
    pool,
    return_to_go,
    scales,
)
from gym_trl.grpo.credit.estimators import EPISODE

NAMES = sorted(ESTIMATORS)


def turn_index(group: Sequence[TurnRewards]) -> list[list[float]]:
    """Return the rewards from a turn on, each less the mean at the same turn: biased where lengths differ."""
    turns = range(max(one.turns for one in group))
    at = [fmean(one.rewards[turn] for one in group if turn < one.turns) for turn in turns]
    return [
        [sum(one.rewards[later] - at[later] for later in range(turn, one.turns)) for turn in range(one.turns)]
        for one in group
    ]


REWARDS = st.floats(-10, 10).map(lambda value: round(value, 3))


@st.composite
def groups(
    draw: st.DrawFn, *, least: int = 0, least_turns: int = 0, roles: Sequence[str | None] = (None,)
) -> list[TurnRewards]:
    """Draw a group of episodes of different lengths in few states."""
    markov = draw(st.booleans())
    states = st.sampled_from(["a", "b", ("c", 1), 4])

    def one(role: str | None, rewards: list[float]) -> TurnRewards:
        keys = draw(st.lists(states, min_size=len(rewards), max_size=len(rewards)))
        return TurnRewards(rewards, [*keys, "end"], markov, role)

    paid = st.lists(REWARDS, min_size=least_turns, max_size=6)
    drawn = draw(st.lists(st.tuples(st.sampled_from(roles), paid), min_size=least, max_size=5))
    return [one(role, rewards) for role, rewards in drawn]


def near(rows: Sequence[Sequence[float]]) -> list[object]:
    return [pytest.approx(list(row), abs=1e-9) for row in rows]


@pytest.mark.parametrize("name", NAMES)
@given(group=groups(roles=(None, "X", "O")))
def test_every_turn_has_a_finite_advantage(name: str, group: list[TurnRewards]) -> None:
    advantages = ESTIMATORS[name](group)
    assert [len(row) for row in advantages] == [one.turns for one in group]
    assert all(type(value) is float and math.isfinite(value) for row in advantages for value in row)


@pytest.mark.parametrize("name", NAMES)
@given(group=groups(roles=(None, "X")), data=st.data())
def test_the_order_of_episodes_has_no_influence(name: str, group: list[TurnRewards], data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(group))))
    advantages = ESTIMATORS[name](group)
    assert ESTIMATORS[name]([group[place] for place in order]) == near([advantages[place] for place in order])


@pytest.mark.parametrize("name", NAMES)
@given(group=groups(roles=("X", "O")))
def test_roles_share_nothing(name: str, group: list[TurnRewards]) -> None:
    advantages = ESTIMATORS[name](group)
    for role in ("X", "O"):
        places = [place for place, one in enumerate(group) if one.role == role]
        alone = ESTIMATORS[name]([group[place] for place in places])
        assert [advantages[place] for place in places] == near(alone)


@pytest.mark.parametrize("name", ["episode", "return_to_go", "pool"])
@given(group=groups(least_turns=1), shift=REWARDS, factor=st.floats(-3, 3))
def test_a_constant_added_to_all_returns_is_no_merit_and_a_factor_remains(
    name: str, group: list[TurnRewards], shift: float, factor: float
) -> None:
    changed = [
        TurnRewards(
            [*(factor * paid for paid in one.rewards[:-1]), factor * one.rewards[-1] + shift], one.keys, one.markov
        )
        for one in group
    ]
    expected = [[factor * value for value in row] for row in ESTIMATORS[name](group)]
    assert ESTIMATORS[name](changed) == near(expected)


@pytest.mark.parametrize("name", ["episode", "return_to_go", "pool"])
@given(rewards=st.lists(REWARDS, max_size=5))
def test_an_episode_without_company_has_no_advantage(name: str, rewards: list[float]) -> None:
    lone = TurnRewards(rewards, ["a"] * len(rewards) + ["end"], markov=True)
    assert ESTIMATORS[name]([lone]) == near([[0.0] * len(rewards)])
    # Neither has one among episodes that failed before their first turn; for GRPO these have returns of 0.
    if name != "episode":
        assert ESTIMATORS[name]([lone, TurnRewards([], ["end"])])[0] == near([[0.0] * len(rewards)])[0]


@given(group=groups(least=1, least_turns=1))
def test_episode_equals_trl(group: list[TurnRewards]) -> None:
    # TRL 1.16, GRPOTrainer._generate_and_score_completions: rewards - nanmean of the group.
    returns = np.array([sum(one.rewards) for one in group])
    for row, expected in zip(episode(group), returns - np.nanmean(returns), strict=True):
        assert row == pytest.approx([expected] * len(row), abs=1e-9)
    assert math.fsum(row[0] for row in episode(group)) == pytest.approx(0, abs=1e-9)


@given(st.lists(st.lists(REWARDS, min_size=4, max_size=4), min_size=2, max_size=5))
def test_return_to_go_sums_to_zero_at_each_turn_that_all_reach(rewards: list[list[float]]) -> None:
    advantages = return_to_go([TurnRewards(row, "abcde") for row in rewards])
    for turn in zip(*advantages, strict=True):
        assert math.fsum(turn) == pytest.approx(0, abs=1e-9)


@given(st.lists(REWARDS, min_size=2, max_size=6), st.integers(1, 5))
def test_leave_one_out_is_grpo_times_n_by_n_minus_one_if_all_is_paid_at_the_end(paid: list[float], turns: int) -> None:
    n = len(paid)
    group = [TurnRewards([*[0.0] * (turns - 1), last], range(turns + 1)) for last in paid]
    expected = [[value * n / (n - 1) for value in row] for row in episode(group)]
    assert return_to_go(group) == near(expected)


def test_a_turn_without_company_takes_the_baseline_of_the_last_turn_with_it() -> None:
    group = [TurnRewards([0.0, 0.0, 1.0, 2.0], range(5)), TurnRewards([1.0, 4.0], range(3)), TurnRewards([6.0], "ab")]
    # Returns to go: 3 3 3 2, 5 4 and 6. Turn 1 has the second episode as company, turns 2 and 3 have none.
    assert return_to_go(group) == near([[3 - 5.5, 3 - 4, 3 - 4, 2 - 4], [5 - 4.5, 4 - 3], [6 - 4]])


@given(group=groups())
def test_without_states_that_recur_pool_is_return_to_go(group: list[TurnRewards]) -> None:
    apart = [
        TurnRewards(one.rewards, [(place, turn) for turn in range(one.turns + 1)], one.markov)
        for place, one in enumerate(group)
    ]
    assert pool(apart) == near(return_to_go(apart))


def test_pool_as_computed_by_hand() -> None:
    group = [
        TurnRewards([0.0, 1.0], ["start", "left", "end"], markov=True),
        TurnRewards([0.0, 0.0], ["start", "left", "end"], markov=True),
        TurnRewards([0.5, 0.0], ["start", "right", "end"], markov=True),
    ]
    # Returns to go: 1 1, 0 0 and 0.5 0. Baseline by turn: .25 .0, .75 .5 and .5 .5.
    # Q of the first turn: both "left" have (1 + 0) / 2, "right" 0.5; of the second: 1, 0, 0.
    # V of "start": baseline and two others, (.25 + .5) / 3, (.75 + 1.5) / 3, (.5 + 1) / 3; of "left": baseline and one.
    expected = [[0.5 - 0.25, 1 - 0.0], [0.5 - 0.75, 0 - 0.75], [0.5 - 0.5, 0 - 0.5]]
    assert pool(group) == near(expected)
    # Keys that are not Markov serve the baseline only.
    hidden = [TurnRewards(one.rewards, one.keys) for one in group]
    assert pool(hidden) == near([[1 - 0.25, 1 - 0.0], [0 - 0.75, 0 - 0.75], [0.5 - 0.5, 0 - 0.5]])
    assert pool([*group[:2], hidden[2]]) == near(pool(hidden))


def test_an_episode_counts_once_in_a_state_and_never_for_itself() -> None:
    looping = TurnRewards([1.0, 1.0, 1.0], ["hall", "hall", "hall", "end"], markov=True)  # first visit: 3
    other = TurnRewards([0.0], ["hall", "end"], markov=True)
    # The looping episode's baselines: 0 at turn 0, and in turns without company the same; the other's visit: 0.
    # Q: last 1, then 1 + (1 + 0) / 2, then 1 + (1.5 + 0) / 2. The other: Q 0, V (3 + 3) / 2.
    assert pool([looping, other]) == near([[1.75, 1.5, 1.0], [-3.0]])


def limited(rewards: Sequence[float], places: Sequence[Hashable], most: int) -> TurnRewards:
    """Return an episode under a turn limit, with keys that contain the turns left."""
    left = [most - turn for turn in range(len(rewards))]
    keys = [*zip(places, left, strict=True), "end"]
    return TurnRewards(rewards, keys, True, left=left, places=places)


@given(group=groups(least_turns=1), most=st.integers(6, 9))
def test_a_turn_limit_changes_nothing_where_places_have_one_number_left(group: list[TurnRewards], most: int) -> None:
    shared = [limited(one.rewards, [(key, turn) for turn, key in enumerate(one.keys[:-1])], most) for one in group]
    apart = [TurnRewards(one.rewards, one.keys, True) for one in shared]
    assert pool(shared) == near(pool(apart))


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
    assert pool([TurnRewards(one.rewards, one.keys, True) for one in group])[2][1] == pytest.approx(-(1.0 + 1.0) / 2)


@given(group=groups(least_turns=1), charged=st.floats(0, 5))
def test_what_was_charged_for_actions_that_were_not_played_is_no_ones_merit(
    group: list[TurnRewards], charged: float
) -> None:
    cut = [
        replace(one, rewards=[*one.rewards[:-1], one.rewards[-1] - charged], unplayed_costs=charged) for one in group
    ]
    assert pool(cut) == near(pool(group))


@given(group=groups(least_turns=1), gamma=st.floats(0, 1))
def test_a_penalty_is_credited_to_its_own_turn_alone(group: list[TurnRewards], gamma: float) -> None:
    fined = [replace(one, penalties=[0.5] * one.turns) for one in group]  # the same in every turn: no merit
    free = [TurnRewards([paid + 0.5 for paid in one.rewards], one.keys, one.markov) for one in group]
    assert pool(fined, gamma) == near(pool(free, gamma))


def test_an_end_that_saves_later_penalties_is_no_merit() -> None:
    dies = TurnRewards([0.0], ["start", "end"], True, penalties=[0.0])
    lives = TurnRewards([0.0, -0.2, -0.2], ["start", "path", "path", "end"], True, penalties=[0.0, 0.2, 0.2])
    group = [dies, lives] * 4
    assert [row[0] for row in pool(group)] == near([[0.0] * 8])[0]
    whole = [TurnRewards(one.rewards, one.keys, True) for one in group]
    assert pool(whole)[0][0] > 0.1 > -0.1 > pool(whole)[1][0]
    mixed = [lives, TurnRewards([0.0, 0.0], ["start", "path", "end"], True, penalties=[0.0, 0.0])] * 4
    assert pool(mixed)[1][1] > 0.05 > -0.05 > pool(mixed)[0][1]


@given(group=groups(least_turns=1, least=1), most=st.integers(6, 9))
def test_under_a_turn_limit_every_turn_has_a_finite_advantage(group: list[TurnRewards], most: int) -> None:
    shared = [limited(one.rewards, one.keys[:-1], most) for one in group]
    advantages = pool(shared)
    assert all(math.isfinite(value) for row in advantages for value in row)
    assert pool(shared[::-1]) == near(advantages[::-1])
    assert all(math.isfinite(value) for row in pool(shared * 9) for value in row)  # in parts


UNBIASED: dict[str, tuple[Estimator, Key, bool]] = {
    "return_to_go": (return_to_go, lambda turn, state: state, False),
    "pool with Markov keys": (pool, lambda turn, state: (turn, state), True),
    "pool with keys that are not Markov": (pool, lambda turn, state: state, False),
    "pool with one key for all states": (pool, lambda turn, state: 0, False),
}
SCALED = {EPISODE: Fraction(2, 3)}
"""Length of the expected gradient as a part of the exact one, in groups of three."""


def test_every_credit_has_a_known_bias() -> None:
    assert sorted({*(name.split()[0] for name in UNBIASED), *SCALED}) == sorted(ESTIMATORS)


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
@pytest.mark.parametrize("name", SCALED)
def test_the_expected_gradient_of_grpo_is_the_exact_one_times_a_number(name: str, stops: bool) -> None:
    mdp = SmallMDP(np.random.default_rng(0), 2, stops=stops)
    expected = mdp.gradient(ESTIMATORS[name], 3, lambda turn, state: state, markov=False)
    assert expected == pytest.approx(mdp.exact_gradient() * float(SCALED[name]), abs=1e-12)


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.sqrt((one**2).sum() * (other**2).sum()))


def test_a_baseline_by_turn_has_another_direction_than_the_exact_gradient() -> None:
    mdp = SmallMDP(np.random.default_rng(1), 2, stops=True)
    expected = mdp.gradient(turn_index, 3, lambda turn, state: (turn, state), markov=True)
    assert cosine(expected, mdp.exact_gradient()) < 0.995


def two_ways(chance: float) -> SmallMDP:
    """Return an MDP in which it makes no difference to stop at once for 1 or to go on and be paid 1 then."""
    mdp = SmallMDP(np.random.default_rng(0), 2, stops=True)
    mdp.pays[:] = [[[1.0, 0.0]] * 2, [[1.0, 1.0]] * 2]
    mdp.policy[:] = [[chance, 1 - chance]] * 2
    return mdp


@pytest.mark.parametrize("name", UNBIASED)
@given(chance=st.floats(0.1, 0.9))
def test_no_credit_has_a_price_of_a_turn_more(name: str, chance: float) -> None:
    estimator, key, markov = UNBIASED[name]
    assert two_ways(chance).gradient(estimator, 3, key, markov=markov) == pytest.approx(np.zeros((2, 2, 2)), abs=1e-12)


def test_the_enumeration_notices_a_bias() -> None:
    mdp = SmallMDP(np.random.default_rng(0), 2)
    wrong = mdp.gradient(partial(pool, gamma=0.5), 3, lambda turn, state: (turn, state), markov=True)
    assert np.abs(wrong - mdp.exact_gradient()).max() > 1e-3
    unlike = mdp.gradient(pool, 3, lambda turn, state: 0, markov=True)  # declared Markov, and is not
    assert np.abs(unlike - mdp.exact_gradient()).max() > 1e-3


@pytest.mark.parametrize("name", NAMES)
@given(st.lists(groups(least_turns=1), max_size=4))
def test_scaled_advantages_are_bounded_whatever_is_paid(name: str, batch: list[list[TurnRewards]]) -> None:
    advantages = [ESTIMATORS[name](group) for group in batch]
    for how in ("group", "batch"):
        divisors = scales(batch, advantages, how)
        for group, rows, divisor in zip(batch, advantages, divisors, strict=True):
            episodes = sum(map(len, batch)) if how == "batch" else len(group)
            for one, row in zip(group, rows, strict=True):
                assert max(map(abs, row)) / divisor <= math.sqrt(episodes * one.turns) + 1e-9


def test_equal_returns_of_unequal_turns_do_not_explode() -> None:
    group = [TurnRewards([0.0, 1.0], "abd", markov=True), TurnRewards([1.0, 0.0], "acd", markov=True)] * 8
    [divisor] = scales([group], [pool(group)], "group")
    assert max(abs(value) / divisor for row in pool(group) for value in row) < 3
    same = [TurnRewards([0.1, 0.2, 0.3], "abcd"), TurnRewards([0.3, 0.2, 0.1], "abcd")] * 8
    rounding = [TurnRewards([0.1 + 0.2], "ab"), TurnRewards([0.3], "ab")]  # differ in the last bit
    assert max(abs(value) for row in episode(same) for value in row) < 1e-9
    assert abs(episode(rounding)[0][0]) / scales([rounding], [episode(rounding)], "group")[0] < 1e-9


def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"keys must have one entry more than rewards.*got 1 keys and 1 rewards"):
        TurnRewards([1.0], ["a"])
    with pytest.raises(ConfigError, match=r"left and places must have one entry per reward.*got 1 and 0 for 1 rewards"):
        TurnRewards([1.0], ["a", "b"], left=[3])
    with pytest.raises(ConfigError, match='scale_rewards must be "group", "batch" or "none", got True'):
        scales([], [], True)  # type: ignore[arg-type]
