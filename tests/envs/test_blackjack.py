import random
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import gymnasium as gym
import pytest

from gym_trl.envs.blackjack import Blackjack
from gym_trl.errors import ConfigError
from gym_trl.testing import check_text_env, play

Chance = Callable[[int, bool, int], float]
"""Of a hit, by the player's sum, whether it has a usable ace, and the dealer's card."""

DECK = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10]
WEIGHTS = {card: DECK.count(card) / 13 for card in DECK}


def usable(hand: tuple[int, ...]) -> bool:
    return 1 in hand and sum(hand) + 10 <= 21


def total(hand: tuple[int, ...]) -> int:
    return sum(hand) + 10 * usable(hand)


@cache
def dealer_hands(hand: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """All hands that a dealer ends with, by the rules and card by card."""
    if total(hand) >= 17 and len(hand) > 1:
        return {hand: 1.0}
    found: dict[tuple[int, ...], float] = {}
    for card, weight in WEIGHTS.items():
        for end, chance in dealer_hands((*hand, card)).items():
            found[end] = found.get(end, 0.0) + weight * chance
    return found


@cache
def stick_payoff(mine: int, natural_hand: bool, up: int, natural: bool, sab: bool) -> float:
    mean = 0.0
    for theirs, chance in dealer_hands((up,)).items():
        end = total(theirs) if total(theirs) <= 21 else 0
        payoff = float(mine > end) - float(mine < end)
        if sab and natural_hand and sorted(theirs) != [1, 10]:
            payoff = 1.0
        elif natural and not sab and natural_hand and payoff == 1.0:
            payoff = 1.5
        mean += chance * payoff
    return mean


def exact(hits: Chance | None, *, natural: bool = False, sab: bool = False) -> float:
    """The mean payoff of a policy, or of the best one: hands are tuples of cards, and nothing of the game is used."""

    @cache
    def value(hand: tuple[int, ...], up: int) -> float:
        if sum(hand) > 21:
            return -1.0
        stick = stick_payoff(total(hand), hand == (1, 10), up, natural, sab)
        chance = 1.0 if hits is None else hits(total(hand), usable(hand), up)
        if chance == 0.0:
            return stick
        hit = sum(weight * value(tuple(sorted((*hand, card))), up) for card, weight in WEIGHTS.items())
        return max(stick, hit) if hits is None else chance * hit + (1 - chance) * stick

    deals = ((a, b, up) for a in WEIGHTS for b in WEIGHTS for up in WEIGHTS)
    return sum(WEIGHTS[a] * WEIGHTS[b] * WEIGHTS[up] * value((min(a, b), max(a, b)), up) for a, b, up in deals)


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "known"), [({}, -0.046556), ({"natural": True}, -0.025729), ({"sab": True}, -0.043113)]
)
def test_perfect_play_is_worth_what_is_known(arguments: dict[str, Any], known: float) -> None:
    assert Blackjack(**arguments).optimal_return == pytest.approx(known, abs=5e-7)
    assert exact(None, **arguments) == pytest.approx(Blackjack(**arguments).optimal_return, abs=1e-12)


def test_natural_is_ignored_where_sab_holds() -> None:
    assert Blackjack(sab=True, natural=True).optimal_return == Blackjack(sab=True).optimal_return


@pytest.mark.parametrize(
    ("name", "hits", "known"),
    [
        ("stick at 20", lambda mine, soft, up: float(mine < 20), -0.3536),
        ("as dealers", lambda mine, soft, up: float(mine < 17), -0.0793),
        ("always stick", lambda mine, soft, up: 0.0, -0.1864),
        ("random", lambda mine, soft, up: 0.5, -0.3959),
    ],
)
def test_other_policies_are_worth_what_is_known(name: str, hits: Chance, known: float) -> None:
    assert exact(hits) == pytest.approx(known, abs=5e-5)


def test_the_solver_hits_where_perfect_play_does() -> None:
    """Policy evaluation of the solver itself, by hands of cards."""
    sums, wins = Blackjack(), Blackjack(reward="success")

    def hits(env: Blackjack) -> Chance:
        def chance(mine: int, soft: bool, up: int) -> float:
            ace = "a" if soft else "no"
            shown = "ace" if up == 1 else str(up)
            return float(env.solver()(f"Your sum is {mine}, {ace} usable ace. The dealer shows {shown}.") == "hit")

        return chance

    assert exact(hits(sums)) == pytest.approx(sums.optimal_return, abs=1e-12)
    assert exact(hits(wins)) < sums.optimal_return
    assert wins.optimal_success == wins.optimal_return > sums.optimal_success


@pytest.mark.parametrize("arguments", [{}, {"natural": True}, {"sab": True}])
def test_it_is_gymnasiums_game_card_by_card(arguments: dict[str, Any]) -> None:
    """The same hands and the same generator give the same sums, payoffs and ends."""
    ours, rng = Blackjack(**arguments), random.Random(0)
    theirs: Any = gym.make("Blackjack-v1", **{"natural": False, "sab": False, **arguments}).unwrapped
    naturals = 0
    for seed in range(3_000):
        observation, _ = ours.reset(seed=seed)
        theirs.reset(seed=seed)
        theirs.player, theirs.dealer = list(ours._player), list(ours._dealer)
        theirs.np_random = deepcopy(ours.np_random)
        naturals += sorted(ours._player) == [1, 10]
        over = False
        while not over:
            mine, up, soft = theirs._get_obs()
            shown = "ace" if up == 1 else up
            assert observation == f"Your sum is {mine}, {'a' if soft else 'no'} usable ace. The dealer shows {shown}."
            action = "stick" if soft and mine == 21 else rng.choice(["hit", "stick"])
            observation, reward, over, _, info = ours.step(action)
            assert (reward, over) == theirs.step(int(action == "hit"))[1:3]
            assert info["success"] is (reward > 0)
    assert naturals > 50


def test_many_games_come_out_as_computed() -> None:
    for sums in (True, False):
        env = Blackjack(sums=sums)
        mean = sum(play(env, env.solver(), seed=seed)[-1][2] for seed in range(4_000)) / 4_000
        assert mean == pytest.approx(env.optimal_return, abs=0.06)
        rand = sum(play(env, env.random_policy(seed), seed=seed)[-1][2] for seed in range(4_000)) / 4_000
        assert rand == pytest.approx(-0.3959, abs=0.06)


def test_the_same_seed_and_actions_draw_the_same_cards() -> None:
    """In TextArena they did not: the same seed and action gave three hands."""
    hands = []
    for _ in range(3):
        env = Blackjack()
        env.reset(seed=42)
        hands.append([env.step(action)[0] for action in ("hit", "stick")])
        env.reset()  # a game in between
    assert hands[0] == hands[1] == hands[2]


@pytest.mark.parametrize(
    "said", ["", "stic", "stand", "double", "hit me", "hit stick", "1", "stic\u212a", "\u017ftick"]
)
def test_a_malformed_action_does_not_stand(said: str) -> None:
    """In NeMo Gym it did. It costs a turn, draws no card, and never wins."""
    env = Blackjack(turns=3)
    first, _ = env.reset(seed=0)
    state = deepcopy(env.np_random.bit_generator.state)
    assert env.step(said)[:3] == (f'Not "hit" or "stick". {first}', 0.0, False)
    assert env.step(said)[-1]["action_valid"] is False
    assert env.step(said)[:3] == (f'Not "hit" or "stick". {first} No turns left. Lost.', -1.0, True)
    assert env.np_random.bit_generator.state == state


@pytest.mark.parametrize("said", ["hit", " HIT\n", "Hit"])
def test_spaces_and_capitals_do_not_matter(said: str) -> None:
    env = Blackjack()
    env.reset(seed=0)
    assert env.step(said)[-1]["action_valid"]


def test_fewer_turns_are_worth_less_and_twenty_are_enough() -> None:
    values = [Blackjack(turns=turns).optimal_return for turns in (1, 2, 3, 20, 21, 10**30)]
    assert values[0] == pytest.approx(exact(lambda *_: 0.0), abs=1e-12)
    assert values[0] < values[1] < values[2] < values[3] == values[4] == values[5]


def test_rewards_for_success_pay_one_for_a_win_and_nothing_else() -> None:
    env = Blackjack(reward="success", natural=True)
    assert {play(env, lambda _: "stick", seed=seed)[-1][2] for seed in range(100)} == {0.0, 1.0}


def test_the_instructions_say_what_is_paid() -> None:
    assert "If you win you get 1 (1.5 with" in Blackjack(natural=True).instructions
    assert "if you lose -1, in a draw 0." in Blackjack().instructions
    assert "If you win you get 1, else nothing." in Blackjack(natural=True, reward="success").instructions


def test_the_dealers_hidden_card_is_not_shown() -> None:
    env = Blackjack(sums=False)
    observation, _ = env.reset(seed=3)
    env._dealer[1] = 11
    assert observation == env._table()


@pytest.mark.parametrize("arguments", [{"sab": True, "sums": False}, {"turns": 1}, {"turns": 2, "natural": True}])
@pytest.mark.parametrize("reward", ["payoff", "success"])
def test_variants_keep_every_promise(arguments: dict[str, Any], reward: str) -> None:
    check_text_env(lambda: Blackjack(reward=reward, **arguments), episodes=200)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"natural": 1}, "natural must be True or False, got 1"),
        ({"sab": "yes"}, "sab must be True or False, got 'yes'"),
        ({"sums": 0}, "sums must be True or False, got 0"),
        ({"turns": 0}, "turns must be at least 1, got 0"),
        ({"turns": "20"}, "turns must be an integer, got '20'"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Blackjack(**arguments)
