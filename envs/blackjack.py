"""Blackjack by the rules of Gymnasium, which are those of Sutton and Barto (example 5.1)."""

import re
from collections.abc import Mapping
from functools import cache
from itertools import count, product
from typing import Any, ClassVar, NamedTuple

from gym_trl.envs.puzzle import Puzzle, plain
from gym_trl.envs.text_env import Difficulty, Outcome, Steady
from gym_trl.text.textify import counted
from gym_trl.types import Policy

_DECK = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10)
_CHANCES = tuple((card, _DECK.count(card) / len(_DECK)) for card in range(1, 11))
_MOST_TURNS = 20
"""Most decisions of a game: two aces, 18 more cards, and the last decision; always hitting exceeds 21 by then."""
_MOVES = ("hit", "stick")
_TABLE = re.compile(
    r"Your (?:sum is (?P<sum>[0-9]+), (?P<ace>a|no) usable ace|cards are (?P<cards>[a-z0-9, ]+))\. "
    r"The dealer shows (?P<dealer>ace|[0-9]+)\."
)


class Blackjack(Puzzle):
    """Come closer to 21 than the dealer, and not over it, by Gymnasium's rules.

    >>> env = Blackjack()
    >>> env.reset(seed=8)[0]
    'Your sum is 14, no usable ace. The dealer shows 10.'
    >>> env.step("hit")[:2]
    ('Your sum is 17, no usable ace. The dealer shows 10.', 0.0)
    >>> env.step("stick")[:3]
    ('You have 17, the dealer has 10, 5, 5: 20. Lost.', -1.0, True)

    Cards are drawn with replacement; faces count 10, an ace 11 where that fits (it is "usable") and 1 elsewhere. A hand
    over 21 loses. After "stick" the dealer draws to 17 or more, and the higher sum wins. A win pays 1.0, a draw 0.0, a
    loss -1.0; with ``reward="success"`` a win pays 1.0 and all else nothing. An invalid action costs one of ``turns``
    and changes nothing, and the game is lost when no turns are left.

    Args:
        natural: An ace and a ten at the start pay 1.5 if they win. Ignored with ``sab``, as in Gymnasium.
        sab: Sutton and Barto's rule: an ace and a ten at the start beat all but the same. Gymnasium registers its
            Blackjack-v1 with it.
        sums: Show the player's sum, as Gymnasium does, and not the cards.
        turns: Most actions of a game. 20 are always enough.

    The mean payoff, computed exactly by a dynamic program; the tests compare every card with Gymnasium's game:

    ======================== ========= ========================= ==========
    perfect play             payoff    other play, default rules payoff
    ======================== ========= ========================= ==========
    default                  -0.046556 always stick              -0.1864
    ``natural=True``         -0.025729 stick at 17, as dealers   -0.0793
    ``sab=True``             -0.043113 stick at 20               -0.3536
    ..                                 uniformly random          -0.3959
    ======================== ========= ========================= ==========

    ``optimal_success`` is the share of games that perfect play for the chosen reward wins: 0.4295 for the payoff by the
    default rules, and 0.4316 if a draw counts as a loss.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"natural": True, "sab": False, "sums": True, "turns": 20},
        "medium": {"natural": False, "sab": False, "sums": True, "turns": 20},
        "hard": {"natural": False, "sab": False, "sums": False, "turns": 20},
    }
    ranges: ClassVar = {"turns": (1, None)}
    reward_modes = ("payoff", "success")
    loss_reward = -1.0
    limit_only_ends = False  # the game is lost when no turns are left
    draws = True
    garbage = "double"
    constant_action = "stick"

    natural: bool
    sab: bool
    sums: bool

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        win, else_ = "If you win you get 1", "if you lose -1, in a draw 0"
        if self.reward == "success":
            else_ = "else nothing"
        if self.sab:
            win += " (an ace and a ten as your first two cards beat all but another such pair)"
        elif self.natural and self.reward == "payoff":
            win += " (1.5 with an ace and a ten as your first two cards)"
        return (
            "Blackjack: come closer to 21 than the dealer, but not over it. Cards are drawn with replacement; faces "
            "count 10, an ace counts 11 where that fits (a usable ace) and 1 elsewhere. Over 21 you have lost. When "
            f"you stick, the dealer draws to 17 or more. {win}, {else_}. You have {counted(self.turns, 'turn')} and "
            'lose when none is left. Answer with one word: "hit" to take a card or "stick" to stop; anything else '
            "costs a turn."
        )

    @property
    def optimal_success(self) -> float:
        """Share of games won by perfect play for the reward; a draw is not a win."""
        return self._optimum().won

    @property
    def optimal_return(self) -> float:
        """Mean reward of perfect play."""
        return self._optimum().won if self.reward == "success" else self._optimum().payoff

    def admissible_actions(self) -> list[str]:
        """Both actions, in every turn."""
        return list(_MOVES)

    def solver(self) -> Policy:
        """Return a perfect policy for the reward, computed by dynamic programming."""
        turns_left = count(self.turns, -1)

        def play(observation: str) -> str:
            shown = _TABLE.search(observation)
            assert shown is not None
            if shown["sum"]:
                total, soft = int(shown["sum"]), shown["ace"] == "a"
            else:
                cards = [_card(name) for name in shown["cards"].split(", ")]
                total, soft = _total(cards), _total(cards) != sum(cards)
            turns = min(next(turns_left), _MOST_TURNS)
            return _best(total, soft, _card(shown["dealer"]), turns, self.reward == "success").move

        return Steady(play, _TABLE.search)

    def _optimum(self) -> "_Value":
        return _mean_value(self.natural, self.sab, min(self.turns, _MOST_TURNS), self.reward == "success")

    def _deal(self, instance: int | None) -> None:
        cards = [_DECK[place] for place in self.np_random.integers(len(_DECK), size=4)]
        self._dealer, self._player = cards[:2], cards[2:]

    def _act(self, action: str) -> Outcome:
        word = plain(action)
        if word == "hit":
            self._player.append(self._draw())
            if sum(self._player) > 21:
                return Outcome(f"You drew {_name(self._player[-1])} and are over 21. Lost.", -1.0, done=True)
            return self._use_turn(self._observe())
        if word == "stick":
            return self._settle()
        return self._reject('Not "hit" or "stick".')

    def _snapshot(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self._dealer), tuple(self._player)

    def _reject(self, reason: str) -> Outcome:
        return self._use_turn(f"{reason} {self._observe()}", valid=False)

    def _use_turn(self, answer: str, *, valid: bool = True) -> Outcome:
        self._turns_left -= 1
        if self._turns_left == 0:
            return Outcome(f"{answer} No turns left. Lost.", -1.0, done=True, valid=valid)
        return Outcome(answer, valid=valid)

    def _settle(self) -> Outcome:
        """Play the dealer's hand and return the outcome."""
        while _total(self._dealer) < 17:
            self._dealer.append(self._draw())
        mine, theirs = _total(self._player), _total(self._dealer)
        payoff = _compare(mine, theirs)
        if _is_natural(self._player) and (self.sab or (self.natural and payoff > 0)):
            payoff = _natural_payoff(self.sab, _is_natural(self._dealer))
        result = "Won." if payoff > 0 else "Lost." if payoff < 0 else "Draw."
        shown = ", ".join(map(_name, self._dealer))
        answer = f"You have {mine}, the dealer has {shown}: {theirs}. {result}"
        return Outcome(answer, payoff, done=True, success=payoff > 0)

    def _draw(self) -> int:
        return _DECK[self.np_random.integers(13)]

    def _observe(self) -> str:
        dealer = _name(self._dealer[0])
        if not self.sums:
            return f"Your cards are {', '.join(map(_name, self._player))}. The dealer shows {dealer}."
        ace = "a" if _total(self._player) != sum(self._player) else "no"
        return f"Your sum is {_total(self._player)}, {ace} usable ace. The dealer shows {dealer}."


class _Value(NamedTuple):
    """Value of a state, and the best action in it."""

    payoff: float
    won: float
    """Probability of a win."""
    move: str = "stick"


def _mean(values: list[tuple[float, _Value]], move: str) -> _Value:
    return _Value(sum(p * value.payoff for p, value in values), sum(p * value.won for p, value in values), move)


@cache
def _mean_value(natural: bool, sab: bool, turns: int, for_wins: bool) -> _Value:
    """Return the mean of perfect play over all deals."""
    deals = []
    for (up, p_up), (first, p_first), (second, p_second) in product(_CHANCES, repeat=3):
        hand = [first, second]
        if _is_natural(hand) and (natural or sab):
            value = _value_of_natural(up, sab)
        else:
            value = _best(_total(hand), 1 in hand, up, turns, for_wins)
        deals.append((p_up * p_first * p_second, value))
    return _mean(deals, "")


@cache
def _best(total: int, soft: bool, up: int, turns: int, for_wins: bool) -> _Value:
    """Return the best action with a sum against the dealer's card, and its value, with ``turns`` actions left."""
    stick = _mean(
        [(p, _Value(_compare(total, end), float(total > end))) for (end, _), p in _dealer_ends(up).items()], "stick"
    )
    if turns == 1:
        return stick
    hit = []
    for card, chance in _CHANCES:
        then, still_soft = _add(total, soft, card)
        lost = then > 21
        hit.append((chance, _Value(-1.0, 0.0) if lost else _best(then, still_soft, up, turns - 1, for_wins)))
    return max(stick, _mean(hit, "hit"), key=lambda value: value.won if for_wins else value.payoff)


def _value_of_natural(up: int, sab: bool) -> _Value:
    """Return the value of a natural where it has a special payoff; sticking with it is optimal."""
    ends = []
    for (end, is_natural), chance in _dealer_ends(up).items():
        payoff = _compare(21, end)
        if sab or payoff > 0:
            payoff = _natural_payoff(sab, is_natural)
        ends.append((chance, _Value(payoff, float(payoff > 0))))
    return _mean(ends, "stick")


@cache
def _dealer_ends(up: int) -> dict[tuple[int, bool], float]:
    """Return the probabilities of the dealer's final sums (0 for over 21), each with whether it is a natural."""
    ends: dict[tuple[int, bool], float] = {}

    def draw(total: int, soft: bool, cards: int, chance: float) -> None:
        if total >= 17:
            end = (_counts(total), cards == 2 and total == 21)
            ends[end] = ends.get(end, 0.0) + chance
            return
        for card, share in _CHANCES:
            draw(*_add(total, soft, card), cards + 1, chance * share)

    draw(11 if up == 1 else up, up == 1, 1, 1.0)
    return ends


def _add(total: int, soft: bool, card: int) -> tuple[int, bool]:
    """Return the sum with another card, and whether an ace counts 11 in it."""
    total += card
    if card == 1 and total + 10 <= 21 and not soft:
        return total + 10, True
    if soft and total > 21:
        return total - 10, False
    return total, soft


def _natural_payoff(sab: bool, dealer_has_one: bool) -> float:
    if not sab:
        return 1.5
    return 0.0 if dealer_has_one else 1.0


def _compare(mine: int, theirs: int) -> float:
    mine, theirs = _counts(mine), _counts(theirs)
    return float(mine > theirs) - float(mine < theirs)


def _counts(total: int) -> int:
    return 0 if total > 21 else total


def _total(hand: list[int]) -> int:
    total = sum(hand)
    return total + 10 if 1 in hand and total <= 11 else total


def _is_natural(hand: list[int]) -> bool:
    return len(hand) == 2 and 1 in hand and 10 in hand


def _name(card: int) -> str:
    return "ace" if card == 1 else str(card)


def _card(name: str) -> int:
    return 1 if name == "ace" else int(name)
