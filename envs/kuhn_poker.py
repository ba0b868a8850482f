"""Poker with three cards (Kuhn 1950), against an opponent."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import permutations, product
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

from gym_trl.envs.text_env import Difficulty, Steady
from gym_trl.envs.two_player import TwoPlayerEnv, Worth, against
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_Card: TypeAlias = int
_Move: TypeAlias = Literal["pass", "bet"]
_Played: TypeAlias = tuple[_Move, ...]

_CARDS = "JQK"
_MOVES: tuple[_Move, ...] = ("pass", "bet")
_BY_NAME: dict[str, _Move] = {move: move for move in _MOVES}
_DEALS = tuple(permutations(range(3), 2))
_SIGHT = re.compile(r"You are player ([12])\.\nYour card: ([JQK])\. Played: ([a-z, ]+)\.")
_NO_MOVES = "nothing"
_SHOWN = {
    played: ", ".join(played) or _NO_MOVES for played in ((), *((m,) for m in _MOVES), *product(_MOVES, repeat=2))
}
_PLAYED = {text: played for played, text in _SHOWN.items()}

# Probability that perfect play bets with each card, by the actions so far. Kuhn's family of solutions: the first player
# bets a jack with any probability up to 1/3, bets a king three times as often, and calls with a queen 1/3 more often.
# This is the middle of the family.
_BLUFF = 1 / 6
_PERFECT: Mapping[_Played, tuple[float, float, float]] = {
    (): (_BLUFF, 0.0, 3 * _BLUFF),
    ("pass",): (1 / 3, 0.0, 1.0),
    ("bet",): (0.0, 1 / 3, 1.0),
    ("pass", "bet"): (0.0, _BLUFF + 1 / 3, 1.0),
}


class KuhnPoker(TwoPlayerEnv):
    r"""Each of two players pays one chip and gets one of three cards; they may bet one more, and the higher card wins.

    >>> env = KuhnPoker(opponent="random")
    >>> print(env.reset(seed=1)[0])
    You are player 1.
    Your card: Q. Played: nothing.
    >>> env.step("bet")[:3]
    ('Played: bet, bet. Player 1 has Q, player 2 K.\nYou lost 2 chips.', -2.0, True)

    The cards are a jack, a queen and a king, and the king is highest. The first player passes or bets a chip, then the
    second. A bet after a bet calls it, and a pass after a bet folds and loses the one chip; after a pass and a bet the
    first player decides once more. After two passes the higher card wins one chip, after a called bet two. Payoffs are
    chips, from -2.0 to 2.0; a success is a positive payoff. A game lost by mistakes costs 2 chips, the maximum. The
    arguments shared by all games for two are documented in :class:`~gym_trl.envs.two_player.TwoPlayerEnv`; instead of
    ``"minimax"`` there is ``"nash"``, Kuhn's perfect play, which is randomized and bets a jack with probability 1/6.

    The solver is the best response to the opponent, found by trying all plans of a player; against a policy, and in
    self-play, it is ``"nash"``. The mean payoff, exact and computed by the tests in another way:

    ============== ========= ========= =========
    agent          opponent  first     second
    ============== ========= ========= =========
    best response  random    1/2       5/12
    nash           random    1/9       1/6
    always bet     random    1/2       1/4
    random         random    1/8       -1/8
    best response  nash      -1/18     1/18
    nash           nash      -1/18     1/18
    always bet     nash      -1/9      -1/9
    always pass    nash      -2/9      -1/9
    random         nash      -1/6      -1/9
    ============== ========= ========= =========

    The first player's -1/18 is the value of the game (Kuhn 1950). Random moves can be beaten without looking at the
    card.

    The reset option ``chance`` gives the cards of the first and the second player, 0 for a jack to 2 for a king.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": against("random", "random"),
        "medium": against("nash", "first"),
        "hard": against("nash", "random"),
    }
    opponents = ("random", "nash", "epsilon", "self")
    option_names = frozenset({"chance"})
    stake = 2.0
    garbage = "raise"
    constant_action = "pass"
    _longest_game = 3
    _refusal = 'Not "pass" or "bet".'
    _cards: tuple[_Card, ...] = (0, 1)
    _given: tuple[_Card, ...] | None = None
    _played: _Played = ()

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        return (
            "Poker with three cards, a jack J, a queen Q and a king K, of which K is highest. Each player pays a chip "
            "and gets a card. In turn, players pass or bet another chip. Passing after a bet gives up; betting after a "
            f"bet calls it. After two passes or a called bet the higher card wins all chips. {self._about()} "
            'Answer with one word, "pass" or "bet".'
        )

    def admissible_actions(self) -> list[str]:
        """Both actions, in every turn."""
        return list(_MOVES)

    def solver(self, seed: int = 0) -> Policy:
        """Return the best response to the opponent; against a policy and in self-play ``"nash"`` with ``seed``."""
        strategies: list[_Strategy] = [_PERFECT, _PERFECT]
        if not self._alone and not callable(self.opponent):
            strategies = [_best_plan(seat, self._chance, self.reward == "success").bets for seat in (0, 1)]
        rng = random.Random(seed)

        def policy(observation: str) -> str:
            sight = _SIGHT.search(observation)
            assert sight is not None
            bets = strategies[int(sight[1]) - 1][_PLAYED[sight[3]]][_CARDS.index(sight[2])]
            return "bet" if rng.random() < bets else "pass"

        return Steady(policy, _SIGHT.search)

    @property
    def baselines(self) -> dict[str, Callable[[int], Policy]]:
        """Policies as of every game, with a separately seeded solver for each episode."""
        return {**super().baselines, "solver": self.solver}

    @property
    def _optimum(self) -> Worth | None:
        # Kuhn's solution is for chips; the reward for success gives the game other payoffs.
        if callable(self.opponent) or (self._alone and self.reward == "success"):
            return None
        if self._alone:
            return _mean([_worth(_PERFECT, _PERFECT, seat) for seat in self._seats])
        return _mean([_best_plan(seat, self._chance, self.reward == "success").worth for seat in self._seats])

    def _start(self, instance: int | None, options: Mapping[str, Any]) -> str:
        cards = options.get("chance")
        self._given = tuple(cards) if isinstance(cards, Sequence) else None
        if cards is not None and self._given not in _DEALS:
            raise ConfigError(f"chance must be two of the cards 0, 1 and 2, for the two players, got {cards!r}")
        return super()._start(instance, options)

    def _deal(self) -> None:
        self._cards, self._played = self._given or self._one_of(_DEALS), ()

    def _see(self) -> str:
        return f"Your card: {_CARDS[self._cards[self._to_move]]}. Played: {_SHOWN[self._played]}."

    def _show_end(self) -> str:
        played = ", ".join(self._played)
        if self._played[-2:] == ("bet", "pass"):
            return f"Played: {played}."
        first, second = (_CARDS[card] for card in self._cards)
        return f"Played: {played}. Player 1 has {first}, player 2 {second}."

    def _read(self, action: str) -> _Move | None:
        return _BY_NAME.get(action.strip().lower()) if action.isascii() else None

    def _move(self, move: _Move) -> None:
        self._played += (move,)
        self._to_move = 1 - self._to_move

    def _snapshot(self) -> tuple[Any, ...]:
        return self._cards, self._played, self._to_move, self._seat, *self._mistakes_left

    def _payoff(self) -> float | None:
        return _payoff(self._cards, self._played)

    def _verdict(self, mine: float) -> str:
        return f"{super()._verdict(mine)[:-1]} {counted(abs(int(mine)), 'chip')}."

    def _legal_moves(self) -> tuple[_Move, ...]:
        return _MOVES

    def _skilled_move(self) -> _Move:
        bets = _PERFECT[self._played][self._cards[self._to_move]]
        return "bet" if self.np_random.random() < bets else "pass"


_Strategy: TypeAlias = Mapping[_Played, tuple[float, float, float]]
"""Probability of a bet for each card, by the actions so far."""
_DECISIONS: tuple[tuple[_Played, ...], ...] = (((), ("pass", "bet")), (("pass",), ("bet",)))
"""Decisions of each seat."""


class _Plan(NamedTuple):
    worth: Worth
    bets: _Strategy


def _payoff(cards: tuple[_Card, ...], played: _Played) -> float | None:
    """Return the first player's payoff."""
    higher = 1.0 if cards[0] > cards[1] else -1.0
    match played:
        case ("pass", "pass"):
            return higher
        case ("bet", "pass"):
            return 1.0
        case ("pass", "bet", "pass"):
            return -1.0
        case ("bet", "bet") | ("pass", "bet", "bet"):
            return 2 * higher
    return None


@lru_cache(64)
def _best_plan(seat: int, chance: float, for_success: bool) -> _Plan:
    """Return the best of a seat's 64 deterministic plans against ``"nash"`` mixed with random moves."""
    theirs = {
        played: tuple(chance / 2 + (1 - chance) * bets for bets in by_card) for played, by_card in _PERFECT.items()
    }
    plans = []
    by_card = list(product((0.0, 1.0), repeat=3))
    for bets in product(by_card, repeat=2):
        mine = dict(zip(_DECISIONS[seat], bets, strict=True))
        plans.append(_Plan(_worth(mine, theirs, seat), mine))  # type: ignore[arg-type]  # three cards
    return max(plans, key=lambda plan: plan.worth.rank(for_success))


def _worth(mine: _Strategy, theirs: _Strategy, seat: int) -> Worth:
    """Return the mean worth of one strategy against another over all deals."""
    strategies = (mine, theirs) if seat == 0 else (theirs, mine)
    return _mean([_follow(cards, (), strategies, seat) for cards in _DEALS])


def _mean(worths: Sequence[tuple[float, float]]) -> Worth:
    return Worth(*(sum(part) / len(worths) for part in zip(*worths, strict=True)))


def _follow(
    cards: tuple[_Card, ...], played: _Played, strategies: tuple[_Strategy, _Strategy], seat: int
) -> tuple[float, float]:
    payoff = _payoff(cards, played)
    if payoff is not None:
        mine = -payoff if seat else payoff
        return mine, float(mine > 0)
    player = len(played) % 2
    bets = strategies[player][played][cards[player]]
    if_bet, if_pass = (_follow(cards, (*played, move), strategies, seat) for move in ("bet", "pass"))
    return tuple(bets * one + (1 - bets) * other for one, other in zip(if_bet, if_pass, strict=True))  # type: ignore[return-value]
