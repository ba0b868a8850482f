"""Estimators from papers that ``bench_credit`` compares: their laws, and what they reduce to."""

import doctest
import math
from collections import defaultdict
from collections.abc import Hashable, Sequence

import credit_papers
import numpy as np
import pytest
from credit_papers import PAPERS, gagpo, graphgpo, hgpo, rtmc, turn_index, turn_scores
from hypothesis import given, strategies as st
from support.small_mdp import SmallMDP

from gym_trl.grpo.credit import TurnRewards, episode, gigpo, return_to_go

REWARDS = st.floats(-10, 10).map(lambda value: round(value, 3))


@st.composite
def groups(draw: st.DrawFn, *, turns: int | None = None) -> list[TurnRewards]:
    """Draw a group of episodes in few states, all of them with this number of turns if it is given."""
    states = st.sampled_from(["a", "b", "c"])
    lengths = st.just(turns) if turns is not None else st.integers(0, 5)
    sizes = draw(st.lists(lengths, max_size=5))
    return [
        TurnRewards(
            draw(st.lists(REWARDS, min_size=size, max_size=size)),
            [*draw(st.lists(states, min_size=size, max_size=size)), "end"],
            markov=True,
        )
        for size in sizes
    ]


def near(rows: Sequence[Sequence[float]]) -> list[object]:
    return [pytest.approx(list(row), abs=1e-8) for row in rows]


def by_state(group: Sequence[TurnRewards], advantages: Sequence[Sequence[float]]) -> dict[Hashable, list[float]]:
    values: defaultdict[Hashable, list[float]] = defaultdict(list)
    for one, row in zip(group, advantages, strict=True):
        for key, value in zip(one.keys, row, strict=False):
            values[key].append(value)
    return values


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(credit_papers).attempted > 5
    assert doctest.testmod(credit_papers).failed == 0


@pytest.mark.parametrize("name", PAPERS)
@given(group=groups(), data=st.data())
def test_every_turn_has_an_advantage_whatever_the_order(
    name: str, group: list[TurnRewards], data: st.DataObject
) -> None:
    advantages = PAPERS[name](group)
    assert [len(row) for row in advantages] == [one.turns for one in group]
    assert all(math.isfinite(value) for row in advantages for value in row)
    order = data.draw(st.permutations(range(len(group))))
    assert PAPERS[name]([group[place] for place in order]) == near([advantages[place] for place in order])


@pytest.mark.parametrize("name", ["hgpo", "gagpo", "rtmc", "turn_scores", "turn_index"])
@given(group=groups(), factor=st.floats(0.1, 3) | st.floats(-3, -0.1))
def test_a_factor_of_the_rewards_is_one_of_the_advantages(name: str, group: list[TurnRewards], factor: float) -> None:
    scaled = [TurnRewards([factor * reward for reward in one.rewards], one.keys, True) for one in group]
    assert PAPERS[name](scaled) == near([[factor * value for value in row] for row in PAPERS[name](group)])


@given(group=groups(), gamma=st.floats(0, 1))
def test_without_history_and_with_lambda_one_they_are_the_step_part_of_gigpo(
    group: list[TurnRewards], gamma: float
) -> None:
    both = zip(gigpo(group, gamma), episode(group), strict=True)
    step = [[whole - part for whole, part in zip(*rows, strict=True)] for rows in both]
    assert hgpo(group, gamma, history=0) == near(step)
    assert gagpo(group, gamma, lamda=1.0) == near(step)


@given(group=groups())
def test_a_heavier_longer_history_is_compared_with_fewer_turns(group: list[TurnRewards]) -> None:
    heavy = hgpo(group, 1.0, history=1, alpha=60.0)
    pairs: defaultdict[Hashable, list[tuple[int, int, float]]] = defaultdict(list)
    for place, one in enumerate(group):
        for turn in range(1, one.turns):
            pairs[one.keys[turn - 1], one.keys[turn]].append((place, turn, sum(one.rewards[turn:])))
    for company in pairs.values():
        mean = sum(value for _, _, value in company) / len(company)
        for place, turn, value in company if len(company) > 1 else []:
            assert heavy[place][turn] == pytest.approx(value - mean, abs=1e-8)


@given(group=groups(turns=1))
def test_rtmc_is_the_mean_of_equal_moves_in_episodes_of_one_turn(group: list[TurnRewards]) -> None:
    at_once = [TurnRewards(one.rewards, ["a", "end"]) for one in group]
    paid = [one.rewards[0] for one in group]
    centre = sum(paid) / max(len(paid), 1)
    assert rtmc(at_once, gamma=1.0) == near([[value - centre] for value in paid])


def test_rtmc_counts_the_first_time_of_a_move() -> None:
    looping = TurnRewards([0.0, 0.0, 1.0], ["hall", "hall", "hall", "end"])
    leaving = TurnRewards([0.0], ["hall", "end"])
    # Moves: stay, worth 0.25 (after it 0.5, not counted); the end with 1, worth 1; the end with 0, worth 0.
    value = (0.25 + 1 + 0 + 2 * 0.5) / (3 + 2)
    assert rtmc([looping, leaving], gamma=0.5) == near([[0.25 - value, 0.25 - value, 1 - value], [0 - value]])


@given(group=groups())
def test_the_graph_part_of_graphgpo_sums_to_zero_in_each_state(group: list[TurnRewards]) -> None:
    assert graphgpo(group, beta=0.0) == near(episode(group))
    rows = zip(graphgpo(group), episode(group), strict=True)
    part = [[both - whole for both, whole in zip(*pair, strict=True)] for pair in rows]
    assert all(sum(values) == pytest.approx(0, abs=1e-5) for values in by_state(group, part).values())


def test_graphgpo_prefers_the_move_that_leads_nearer_to_a_win() -> None:
    group = [
        TurnRewards([0.0, 0.0, 1.0], ["start", "far", "near", "won"]),
        TurnRewards([0.0, 0.0], ["start", "near", "lost"]),  # a good move in a lost episode
        TurnRewards([0.0], ["start", "lost"]),
    ]
    rows = zip(graphgpo(group), episode(group), strict=True)
    part = [[both - whole for both, whole in zip(*pair, strict=True)] for pair in rows]
    assert part[1][0] > part[0][0] > part[2][0]
    assert part[0][2] > 0 > part[1][1]
    assert part[0][1] == 0  # alone
    assert graphgpo(group[1:]) == near(episode(group[1:]))  # nobody has won


@given(group=groups(), gamma=st.floats(0, 1), beta=st.floats(0, 3))
def test_turn_scores_move_credit_within_an_episode_only(group: list[TurnRewards], gamma: float, beta: float) -> None:
    for row, whole in zip(turn_scores(group, gamma, beta), episode(group), strict=True):
        assert math.fsum(row) == pytest.approx(math.fsum(whole), abs=1e-8)


def test_turn_scores_of_one_episode_as_computed_by_hand() -> None:
    late = TurnRewards([0.0, 3.0], "abc")
    # Three is divided 1 : 0.5 between the second turn and the first; the episode's advantage is 0.
    assert turn_scores([late], gamma=0.5) == near([[1.0 - 1.5, 2.0 - 1.5]])


@given(group=groups(turns=3))
def test_a_baseline_by_turn_is_return_to_go_where_all_episodes_are_as_long(group: list[TurnRewards]) -> None:
    size = len(group)
    assert turn_index(group) == near([[value * (size - 1) / size for value in row] for row in return_to_go(group)])


@pytest.mark.parametrize("name", PAPERS)
def test_no_estimator_from_a_paper_has_the_exact_expected_gradient(name: str) -> None:
    cosines = []
    for seed in range(2):
        mdp = SmallMDP(np.random.default_rng(seed), 2)
        expected = mdp.gradient(PAPERS[name], 3, lambda turn, state: (turn, state), markov=True)
        exact = mdp.exact_gradient()
        cosines.append((expected * exact).sum() / math.sqrt((expected**2).sum() * (exact**2).sum()))
    assert min(cosines) < 0.9999
