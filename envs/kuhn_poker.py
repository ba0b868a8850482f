"""Poker with three cards (Kuhn 1950)."""

import random
from itertools import permutations

from gym_trl.envs.seat_game import SeatGame
from gym_trl.text import counted
from gym_trl.types import Policy

_CARDS = "JQK"
_DEALS = tuple(permutations(range(3), 2))
_BLUFF = 1 / 6
_PERFECT = {
    (): (_BLUFF, 0.0, 3 * _BLUFF),
    ("pass",): (1 / 3, 0.0, 1.0),
    ("bet",): (0.0, 1 / 3, 1.0),
    ("pass", "bet"): (0.0, _BLUFF + 1 / 3, 1.0),
}
"""Probability that perfect play bets with each card, by the actions so far: the middle of Kuhn's solutions."""


class KuhnPoker(SeatGame):
    r"""Each of two players pays one chip and gets one of three cards; they may bet one more, and the higher card wins.

    >>> env = KuhnPoker()
    >>> env.reset(seed=1)[0], env.step("bet")[0]
    ('You are player 1.\nYour card: Q. Played: nothing.', 'You are player 2.\nYour card: K. Played: bet.')
    >>> env.step("bet")[:2]
    ('Played: bet, bet. Player 1 has Q, player 2 K.\nPlayer 2 won 2 chips.', 2.0)

    A bet after a bet calls it, and a pass after a bet folds; after a pass and a bet the first player decides once more.
    After two passes the higher card wins one chip, after a called bet two. The solver is Kuhn's perfect play, which is
    random; its value for the first player is -1/18.
    """

    sides = ("player 1", "player 2")
    refusal = 'Not "pass" or "bet".'
    loss_return = -2.0

    def prepare(self) -> None:
        """Write the rules."""
        self.instructions = (
            "Poker with three cards, a jack J, a queen Q and a king K, of which K is highest. Each player pays a chip "
            "and gets a card. In turn, players pass or bet another chip. Passing after a bet gives up; betting after a "
            "bet calls it. After two passes or a called bet the higher card wins all chips. You are told who you are; "
            f"player 1 begins. The game is lost with {counted(self.mistakes, 'illegal action')}. Answer with one word, "
            '"pass" or "bet".'
        )

    def deal(self) -> None:
        """Deal a card to each player."""
        self.cards = _DEALS[int(self.np_random.random() * len(_DEALS))]
        self.played: tuple[str, ...] = ()

    def look(self) -> str:
        """Return the card of the player to move, and the actions so far."""
        return f"Your card: {_CARDS[self.cards[self.to_move]]}. Played: {', '.join(self.played) or 'nothing'}."

    def legal(self) -> list[str]:
        """Both actions, in every turn."""
        return ["pass", "bet"]

    def move(self, action: str) -> tuple[float, ...] | None:
        """Pass or bet."""
        self.played += (action,)
        higher = 0 if self.cards[0] > self.cards[1] else 1
        match self.played:
            case ("pass", "pass"):
                return self.win_of(higher)
            case ("bet", "bet") | ("pass", "bet", "bet"):
                return self.win_of(higher, 2.0)
            case (*_, "bet", "pass"):
                return self.win_of(1 - self.to_move)
        return None

    def ending(self) -> str:
        """Return the actions, and the cards unless a player has given up."""
        shown = f"Played: {', '.join(self.played)}."
        if self.played[-2:] == ("bet", "pass"):
            return shown
        return f"{shown} Player 1 has {_CARDS[self.cards[0]]}, player 2 {_CARDS[self.cards[1]]}."

    def verdict(self, payoffs: tuple[float, ...]) -> str:
        """Return who has won how many chips."""
        return f"{super().verdict(payoffs)[:-1]} {counted(int(max(payoffs)), 'chip')}."

    def solver(self, seed: int = 0) -> Policy:
        """Return perfect play, which draws from ``seed``."""
        rng = random.Random(seed)
        return lambda observation: "bet" if rng.random() < self._chance_of_bet() else "pass"

    def solve(self) -> str:
        """Return what perfect play is more likely to do."""
        return "bet" if self._chance_of_bet() >= 0.5 else "pass"

    def _chance_of_bet(self) -> float:
        return _PERFECT[self.played][self.cards[self.to_move]]

    def state(self) -> tuple[object, ...]:
        """Return the cards and the actions so far."""
        return self.cards, self.played
