"""Tests of ratings: a case computed by hand, and the laws of a fair rating."""

import math
import random

import pytest
from hypothesis import given, strategies as st

from gym_trl.errors import ConfigError
from gym_trl.evaluation.ratings import ELO, PlayedGame, Standings, Tally, rate

NAMES = "abcd"
RESULTS = {"win": (1.0, -1.0), "draw": (0.0, 0.0), "loss": (-1.0, 1.0)}


def game(first: str, second: str, result: str) -> PlayedGame:
    return PlayedGame((first, second), RESULTS[result])


def of(found: Standings, name: str) -> float:
    return next(row.rating.rating for row in found.rows if row.player == name)


def width(found: Standings, name: str) -> float:
    rating = next(row.rating for row in found.rows if row.player == name)
    return rating.high - rating.low


GAMES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(sorted(RESULTS))).filter(
        lambda one: one[0] != one[1]
    ),
    max_size=40,
).map(lambda found: [game(*one) for one in found])


def balanced(results: dict[tuple[str, str], list[str]]) -> list[PlayedGame]:
    """Return games in which each pair met as often in one order of seats as in the other."""
    return [game(*pair, result) for pair, found in results.items() for result in found]


PAIRS = [(one, other) for one in NAMES for other in NAMES if one != other]


@st.composite
def tables(draw: st.DrawFn) -> dict[tuple[str, str], list[str]]:
    count = draw(st.integers(1, 4))
    one = st.lists(st.sampled_from(sorted(RESULTS)), min_size=count, max_size=count)
    return {pair: draw(one) for pair in PAIRS}


def test_two_players_computed_by_hand() -> None:
    # 3 wins of 4 in each seat. By symmetry the seats have no advantage and the strengths are x and -x, where
    # the slope of the posterior vanishes: 8 (3/4 - p(2x)) + (1/2 - p(x)) = 0 with p(x) = 1 / (1 + exp(-x)).
    results = [*["win"] * 3, "loss"]
    games = [game("a", "b", result) for result in results]
    games += [PlayedGame(("b", "a"), one.payoffs[::-1]) for one in games]
    found = rate(games)
    low, high = 0.0, 2.0
    for _ in range(60):
        middle = (low + high) / 2
        slope = 8 * (0.75 - 1 / (1 + math.exp(-2 * middle))) + 0.5 - 1 / (1 + math.exp(-middle))
        low, high = (middle, high) if slope > 0 else (low, middle)
    assert of(found, "a") == pytest.approx(400 / math.log(10) * low, abs=1e-6)
    assert of(found, "b") == pytest.approx(-of(found, "a"))
    assert found.seats[0].rating == pytest.approx(0.0, abs=1e-6)
    # The Hessian of (a, b) is w [[1, -1], [-1, 1]] + v I: the variance of (a - b) / 2 is 1 / (2 (2 w + v)).
    even, prior = 1 / (1 + math.exp(-2 * low)), 1 / (1 + math.exp(-low))
    variance = 1 / (2 * (2 * 8 * even * (1 - even) + prior * (1 - prior)))
    assert width(found, "a") == pytest.approx(2 * 1.959964 * ELO * math.sqrt(variance), rel=1e-6)


def test_four_hundred_points_are_ten_to_one() -> None:
    games = [game("a", "b", "win")] * 5000 + [game("a", "b", "loss")] * 500
    games += [PlayedGame(one.players[::-1], one.payoffs[::-1]) for one in games]
    assert of(rate(games), "a") - of(rate(games), "b") == pytest.approx(400, abs=0.5)


def test_strengths_and_seats_that_made_the_games_are_found() -> None:
    rng, strengths, advantage = random.Random(0), {"a": 150.0, "b": 0.0, "c": -150.0}, 80.0
    games = []
    for one, other in [(x, y) for x in strengths for y in strengths if x != y] * 1500:
        odds = 10 ** ((strengths[one] - strengths[other] + advantage) / 400)
        games.append(game(one, other, "win" if rng.random() < odds / (1 + odds) else "loss"))
    found = rate(games)
    for row in found.rows:
        assert row.rating.low < strengths[row.player] < row.rating.high
    assert found.seats[0].low < advantage < found.seats[0].high


def test_an_interval_contains_the_true_rating_in_nineteen_of_twenty_tournaments() -> None:
    rng, inside, count = random.Random(1), 0, 300
    for _ in range(count):
        games = [
            game(*seats, "win" if (rng.random() < 0.64) == (seats[0] == "a") else "loss")
            for seats in (("a", "b"), ("b", "a"))
            for _ in range(25)
        ]
        [rating] = [row.rating for row in rate(games, anchor="b").rows if row.player == "a"]
        inside += rating.low <= ELO * math.log(0.64 / 0.36) <= rating.high
    assert 0.91 < inside / count < 0.99


@pytest.mark.parametrize("count", [1, 100, 100_000])
def test_a_player_that_wins_everything_has_a_finite_rating_and_a_wide_interval(count: int) -> None:
    found = rate([game("a", "b", "win"), game("b", "a", "loss")] * count)
    assert 0 < of(found, "a") < 1500
    assert width(found, "a") > 200


def test_one_player_can_be_the_anchor() -> None:
    games = [game("a", "b", "win"), game("b", "a", "win"), game("a", "c", "win"), game("c", "b", "draw")]
    found = rate(games, anchor="b")
    assert of(found, "b") == width(found, "b") == 0
    free = rate(games)
    assert of(found, "a") == pytest.approx(of(free, "a") - of(free, "b"))
    assert sum(row.rating.rating for row in free.rows) == pytest.approx(0, abs=1e-6)


def test_scores_payoffs_and_pairs_are_counted() -> None:
    games = [game("a", "b", "win"), game("b", "a", "draw"), PlayedGame(("b", "c"), (2.0, -2.0))]
    found = rate(games, players=["d"])
    told = {row.player: (row.tally, row.games, row.payoff) for row in found.rows}
    assert told == {
        "a": (Tally(1, 1, 0), 2, 0.5),
        "b": (Tally(1, 1, 1), 3, pytest.approx(1 / 3)),
        "c": (Tally(0, 0, 1), 1, -2.0),
        "d": (Tally(0, 0, 0), 0, None),
    }
    assert found.pairs["a", "b"] == Tally(1, 1, 0)
    assert found.pairs["b", "a"] == Tally(0, 1, 1)
    assert ("a", "c") not in found.pairs


def test_in_a_game_of_three_each_pair_of_seats_is_a_comparison() -> None:
    found = rate([PlayedGame(("a", "b", "c"), (3.0, 1.0, 1.0)), PlayedGame(("a", "a", "b"), (0.0, 2.0, 1.0))])
    assert found.pairs["a", "b"] == Tally(2, 0, 1)
    assert found.pairs["b", "c"] == Tally(0, 1, 0)
    assert len(found.seats) == 3
    assert [row.games for row in found.rows] == [2, 2, 1]


def test_a_forfeit_is_lost_whatever_was_paid() -> None:
    found = rate([PlayedGame(("a", "b", "c"), (5.0, 0.0, 0.0), forfeit=0)])
    assert found.pairs["a", "b"] == found.pairs["a", "c"] == Tally(0, 0, 1)
    assert found.pairs["b", "c"] == Tally(0, 1, 0)
    assert {row.player: row.forfeits for row in found.rows} == {"a": 1, "b": 0, "c": 0}


def test_a_seat_that_always_wins_is_worth_points_to_nobody_who_has_it_as_often() -> None:
    games = [PlayedGame((one, other), (1.0, -1.0)) for one, other in PAIRS] * 10
    found = rate(games)
    assert all(abs(row.rating.rating) < 1e-6 for row in found.rows)
    assert found.seats[0].low > 0 > found.seats[1].high


@pytest.mark.parametrize(
    ("games", "said"),
    [
        ([PlayedGame(("a",), (1.0,))], "a game must have two or more players and a payoff for each"),
        ([PlayedGame(("a", "b"), (1.0,))], "a game must have two or more players and a payoff for each"),
        ([PlayedGame(("a", "b"), (1.0, math.nan))], "payoffs must be finite numbers"),
        (
            [PlayedGame(("a", "b"), (1.0, 0.0)), PlayedGame(("a", "b", "c"), (1.0, 0.0, 0.0))],
            "games must have one number of seats, got 2 and",
        ),
    ],
)
def test_results_that_cannot_be_rated_are_named(games: list[PlayedGame], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rate(games)


def test_a_misspelt_anchor_is_answered_with_the_one_that_is_meant() -> None:
    with pytest.raises(ConfigError, match=r"anchor must be one of random, solver, got 'solvr'; did you mean 'solver'"):
        rate([game("solver", "random", "win")], anchor="solvr")


def test_nobody_is_rated_without_players() -> None:
    assert rate([]).rows == ()
    assert [str(row.rating) for row in rate([], players=["a"]).rows] == ["+0 [+0, +0]"]


# ---------------------------------------------------------------------------------------------------------------------
# Laws
# ---------------------------------------------------------------------------------------------------------------------


@given(GAMES, st.randoms(use_true_random=False))
def test_the_order_of_the_games_changes_nothing(games: list[PlayedGame], rng: random.Random) -> None:
    mixed = rng.sample(games, len(games))
    assert rate(mixed) == rate(games)


@given(GAMES, st.permutations(NAMES))
def test_names_change_nothing(games: list[PlayedGame], others: list[str]) -> None:
    other = dict(zip(NAMES, others, strict=True))
    renamed = [PlayedGame(tuple(other[name] for name in one.players), one.payoffs) for one in games]
    before, after = rate(games, players=NAMES), rate(renamed, players=NAMES)
    for row in before.rows:
        assert of(after, other[row.player]) == pytest.approx(row.rating.rating, abs=1e-5)
        assert width(after, other[row.player]) == pytest.approx(width(before, row.player), abs=1e-5)


@given(GAMES)
def test_turning_all_results_round_turns_all_ratings_round(games: list[PlayedGame]) -> None:
    turned = [PlayedGame(one.players, tuple(-paid for paid in one.payoffs)) for one in games]
    before, after = rate(games, players=NAMES), rate(turned, players=NAMES)
    assert [of(after, name) for name in NAMES] == pytest.approx([-of(before, name) for name in NAMES], abs=1e-5)


@given(tables(), st.sampled_from(PAIRS), st.data())
def test_a_better_result_never_lowers_a_rating(
    results: dict[tuple[str, str], list[str]], pair: tuple[str, str], data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, len(results[pair]) - 1))
    before = rate(balanced(results))
    better = {"loss": "draw", "draw": "win", "win": "win"}[results[pair][number]]
    results[pair] = [*results[pair][:number], better, *results[pair][number + 1 :]]
    after = rate(balanced(results))
    assert of(after, pair[0]) >= of(before, pair[0]) - 1e-6
    assert of(after, pair[1]) <= of(before, pair[1]) + 1e-6


@given(tables(), st.integers(2, 30))
def test_intervals_shrink_with_games(results: dict[tuple[str, str], list[str]], times: int) -> None:
    # Every pair has won and lost in both seats, so that nobody's rating grows without end.
    games = balanced({pair: [*found, "win", "loss"] for pair, found in results.items()})
    few, many = rate(games), rate(games * times)
    for name in NAMES:
        assert width(many, name) < width(few, name)
        assert width(many, name) == pytest.approx(width(few, name) / math.sqrt(times), rel=0.25)


@given(GAMES)
def test_any_results_give_finite_ratings_that_contain_themselves(games: list[PlayedGame]) -> None:
    for row in rate(games, players=NAMES).rows:
        assert -2000 < row.rating.low <= row.rating.rating <= row.rating.high < 2000
