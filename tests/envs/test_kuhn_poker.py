"""Kuhn's poker: the numbers are computed here in another way, from the table of all plans, in fractions."""

from fractions import Fraction
from itertools import permutations, product
from statistics import fmean
from typing import Any, Literal

import pytest

from gym_trl.envs.kuhn_poker import KuhnPoker
from gym_trl.testing import play
from gym_trl.types import Policy

Plan = tuple[str, str, str]
"""Plan of a player with a jack, a queen and a king."""
Mix = dict[str, Fraction]
Strategy = tuple[Mix, Mix, Mix]
"""For each card how often which plan is followed."""

FIRST = ("bet", "pass-pass", "pass-bet")
SECOND = ("pass/pass", "pass/bet", "bet/pass", "bet/bet")
"""Plan of the second player after a pass, and after a bet."""
DEALS = list(permutations(range(3), 2))


def chips(cards: tuple[int, ...], first: str, second: str) -> int:
    """Return the first player's gain, by the two plans for these cards."""
    after_pass, after_bet = second.split("/")
    higher = 1 if cards[0] > cards[1] else -1
    if first == "bet":
        return 2 * higher if after_bet == "bet" else 1
    if after_pass == "pass":
        return higher
    return 2 * higher if first == "pass-bet" else -1


def value(first: Strategy, second: Strategy) -> Fraction:
    """The mean of the first player's chips."""
    total = Fraction(0)
    for cards in DEALS:
        for (one, p), (other, q) in product(first[cards[0]].items(), second[cards[1]].items()):
            payoff = chips(cards, one, other)
            total += p * q * payoff
    return total / len(DEALS)


def pure(plans: tuple[str, ...]) -> Strategy:
    return tuple({plan: Fraction(1)} for plan in plans)  # type: ignore[return-value]


def uniform(seat: int) -> Strategy:
    """Each action with probability 1/2."""
    if seat == 0:
        mix = {"bet": Fraction(1, 2), "pass-pass": Fraction(1, 4), "pass-bet": Fraction(1, 4)}
    else:
        mix = {plan: Fraction(1, 4) for plan in SECOND}
    return mix, mix, mix


def nash_first(bluff: Fraction) -> Strategy:
    call = bluff + Fraction(1, 3)
    return (
        {"bet": bluff, "pass-pass": 1 - bluff},
        {"pass-bet": call, "pass-pass": 1 - call},
        {"bet": 3 * bluff, "pass-bet": 1 - 3 * bluff},
    )


NASH = (
    nash_first(Fraction(1, 6)),
    (
        {"bet/pass": Fraction(1, 3), "pass/pass": Fraction(2, 3)},
        {"pass/bet": Fraction(1, 3), "pass/pass": Fraction(2, 3)},
        {"bet/bet": Fraction(1)},
    ),
)
ALL = (list(map(pure, product(FIRST, repeat=3))), list(map(pure, product(SECOND, repeat=3))))


def mine(seat: int, own: Strategy, other: Strategy) -> Fraction:
    return value(own, other) if seat == 0 else -value(other, own)


def best_response(seat: int, other: Strategy) -> Fraction:
    return max(mine(seat, plan, other) for plan in ALL[seat])


def seat_name(seat: int) -> Literal["first", "second"]:
    return "second" if seat else "first"


def test_no_plan_does_better_against_nash_than_the_value_of_the_game() -> None:
    """Kuhn 1950: -1/18 for who begins."""
    for bluff in (Fraction(0), Fraction(1, 6), Fraction(1, 3)):
        assert value(nash_first(bluff), NASH[1]) == Fraction(-1, 18)
        assert best_response(1, nash_first(bluff)) == Fraction(1, 18)
    assert best_response(0, NASH[1]) == Fraction(-1, 18)
    for opponent in ("nash", "self"):
        assert KuhnPoker(opponent=opponent, seat="first").optimal_return == pytest.approx(-1 / 18)
        assert KuhnPoker(opponent=opponent, seat="second").optimal_return == pytest.approx(1 / 18)
        assert KuhnPoker(opponent=opponent, seat="random").optimal_return == pytest.approx(0)


def test_the_best_response_to_random_moves_has_the_known_value() -> None:
    for seat, known in enumerate((0.5, 0.4167)):
        found = best_response(seat, uniform(1 - seat))
        assert float(found) == pytest.approx(known, abs=5e-5)
        assert KuhnPoker(opponent="random", seat=seat_name(seat)).optimal_return == pytest.approx(float(found))
    assert KuhnPoker(difficulty="easy").optimal_return == pytest.approx(11 / 24)


@pytest.mark.parametrize("opponent", ["random", "epsilon", "nash", "self"])
@pytest.mark.parametrize("seat", ["first", "second"])
def test_the_solver_is_paid_the_optimum(opponent: str, seat: Any) -> None:
    env = KuhnPoker(opponent=opponent, seat=seat)
    paid = [play(env, env.solver(seed), seed=seed)[-1][2] for seed in range(4_000)]
    assert fmean(paid) == pytest.approx(env.optimal_return, abs=0.1)
    assert fmean(payoff > 0 for payoff in paid) == pytest.approx(env.optimal_success, abs=0.04)


def test_in_self_play_the_solvers_dice_are_those_of_its_seed() -> None:
    """Not of how often the environment was asked for one."""
    env = KuhnPoker(opponent="self")
    shown = "You are player 1.\nYour card: J. Played: nothing."
    dice = [[env.solver(seed)(shown) for seed in range(200)] for _ in range(2)]
    assert dice[0] == dice[1]
    assert dice[0].count("bet") == pytest.approx(200 / 6, abs=20)
    assert dice[0] == [env.baselines["solver"](seed)(shown) for seed in range(200)]


def test_the_opponents_bets_are_as_often_as_kuhn_says() -> None:
    """Its first action by card, as the first player: 1/6 of the jacks, no queen, half of the kings."""
    bets: dict[str, list[bool]] = {card: [] for card in "JQK"}
    for seed in range(3_000):
        env = KuhnPoker(opponent="nash", seat="second")
        observation, _ = env.reset(seed=seed)
        bets["JQK"[env._cards[0]]].append(observation.endswith("Played: bet."))
    shares = [fmean(bets[card]) for card in "JQK"]
    assert shares == pytest.approx([1 / 6, 0, 1 / 2], abs=0.05)


def game(*moves: str, cards: tuple[int, int], seat: Any = "first") -> tuple[str, float, bool]:
    """The end of a game in which these moves are played in turn, by the agent and a script."""
    mine_, theirs = (moves[::2], moves[1::2]) if seat == "first" else (moves[1::2], moves[::2])
    env = KuhnPoker(opponent=lambda: _script(theirs), seat=seat)
    while True:
        env.reset()
        if env._cards == cards:
            break
    steps = [env.step(move) for move in mine_]
    assert [step[2] for step in steps] == [False] * (len(steps) - 1) + [True]
    return steps[-1][:3]


def _script(moves: tuple[str, ...]) -> Policy:
    left = list(moves)
    return lambda observation: left.pop(0)


@pytest.mark.parametrize(
    ("moves", "cards", "first", "shown"),
    [
        ("pass pass", (1, 0), 1.0, "Played: pass, pass. Player 1 has Q, player 2 J."),
        ("pass pass", (0, 2), -1.0, "Played: pass, pass. Player 1 has J, player 2 K."),
        ("bet pass", (0, 2), 1.0, "Played: bet, pass."),
        ("bet bet", (0, 2), -2.0, "Played: bet, bet. Player 1 has J, player 2 K."),
        ("bet bet", (2, 1), 2.0, "Played: bet, bet. Player 1 has K, player 2 Q."),
        ("pass bet pass", (2, 0), -1.0, "Played: pass, bet, pass."),
        ("pass bet bet", (2, 0), 2.0, "Played: pass, bet, bet. Player 1 has K, player 2 J."),
        ("pass bet bet", (1, 2), -2.0, "Played: pass, bet, bet. Player 1 has Q, player 2 K."),
    ],
)
def test_every_way_a_game_can_end(moves: str, cards: tuple[int, int], first: float, shown: str) -> None:
    """A card that was folded to, or folded, is not shown."""
    for seat, sign in (("first", 1.0), ("second", -1.0)):
        said, payoff, over = game(*moves.split(), cards=cards, seat=seat)
        assert (payoff, over) == (sign * first, True)
        number = "1 chip" if abs(first) == 1 else "2 chips"
        assert said == f"{shown}\nYou {'won' if payoff > 0 else 'lost'} {number}."


def test_a_player_does_not_see_the_others_card() -> None:
    """The observation is the same for every card of the other player."""
    seen: dict[int, set[str]] = {0: set(), 1: set(), 2: set()}
    env = KuhnPoker(opponent=lambda _: "bet", seat="second")
    for seed in range(100):
        observation, _ = env.reset(seed=seed)
        seen[env._cards[1]].add(observation)
        assert not env.step("check")[0].count("player 1")
    assert all(len(observations) == 1 for observations in seen.values())


def test_nobody_claims_to_know_how_to_win_most_games_of_self_play() -> None:
    """Kuhn solved the game for chips."""
    assert KuhnPoker(opponent="self", reward="success").optimal_return is None
    assert KuhnPoker(opponent="self", reward="payoff").optimal_return is not None
