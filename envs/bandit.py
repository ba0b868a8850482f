"""Bernoulli bandits: find the best arm while every pull is rewarded."""

from string import ascii_uppercase
from typing import ClassVar

import numpy as np

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_OPTIMA = {
    (4, 0.5, 20): (0.6157738127665653, 0.9296095049357973),
    (5, 0.2, 100): (0.525656919893617, 0.8299097411906393),
    (10, 0.2, 100): (0.4818851238487609, 0.6066877113443473),
}
"""Mean payoff of the solver, and how often its last turn goes to the best arm, by arms, gap and turns."""


class Bandit(TextGame):
    """Choose one of ``arms`` in each of ``turns``; one arm pays more often than the others.

    >>> env = Bandit(difficulty="easy")
    >>> env.reset(seed=0)[0]
    'A to D. Turns left: 20.'
    >>> env.step("B")[:2]
    ('B paid 1. Turns left: 19. Paid of tried: A 0/0, B 1/1, C 0/0, D 0/0.', 0.05)

    One arm, drawn uniformly, pays 1 with probability ``0.5 + gap / 2``, each other arm with ``0.5 - gap / 2``. The
    instructions state both numbers, but not the arm. The payoffs of each arm's first, second and later pulls are drawn
    at reset, so they depend on the seed alone and not on the other actions. An invalid action costs a turn and pays
    nothing. A turn's reward is its payoff divided by ``turns``, so the return is the mean payoff. It is a success if
    the last turn went to the best arm.

    Args:
        difficulty: ``"medium"`` is the hard setting of Krishnamurthy et al. (2024, arXiv 2403.15371).
        arms: From 2 to 20, called A, B, C and so on.
        gap: Above 0, up to 1.
        turns: From 1 to 1000.
        summary: Observations list how often each arm was tried and paid; otherwise only the last payoff.

    ``optimal_return`` of the presets is the Bayes-optimal mean payoff: choosing the arm that is most probably the best
    reaches it (Feldman 1962 for two arms, Rodman 1978 for more). It is 0.6158 in easy, 0.5257 in medium, 0.4819 in
    hard; knowing the best arm would pay 0.75, 0.6, 0.6, random arms 0.375, 0.44, 0.42, and UCB1 0.461, 0.463, 0.428.
    """

    presets: ClassVar = {
        "easy": {"arms": 4, "gap": 0.5, "turns": 20, "summary": True},
        "medium": {"arms": 5, "gap": 0.2, "turns": 100, "summary": True},
        "hard": {"arms": 10, "gap": 0.2, "turns": 100, "summary": False},
    }
    ranges: ClassVar = {"arms": (2, 20), "gap": (0, 1), "turns": (1, 1000)}
    arms: int
    gap: float
    summary: bool

    def prepare(self) -> None:
        """Check the gap, look up the optimum, and write the rules."""
        if not self.gap:
            raise ConfigError("gap must be above 0")
        self.optimal_success = _OPTIMA.get((self.arms, self.gap, self.turns), (None, None))[1]
        self.instructions = (
            f"There are {self.arms} slot machines, {self._names}. A turn on a machine pays 1 or 0, with probability "
            f"{0.5 + self.gap / 2:.4g} for one of them, which you do not know, and {0.5 - self.gap / 2:.4g} for each "
            f"other. You have {counted(self.turns, 'turn')}; collect as much as you can. Answer with one letter alone, "
            "written like Z (which is none of them). Anything else costs a turn and pays nothing."
        )

    @property
    def optimal_return(self) -> float | None:
        """Bayes-optimal mean payoff, without knowledge of the best arm, if it is known."""
        return _OPTIMA.get((self.arms, self.gap, self.turns), (None, None))[0]

    @property
    def _names(self) -> str:
        return f"A to {ascii_uppercase[self.arms - 1]}"

    def deal(self) -> None:
        """Draw the best arm and all payoffs."""
        self.best = int(self.np_random.integers(self.arms))
        chances = np.full((self.arms, 1), 0.5 - self.gap / 2)
        chances[self.best] = 0.5 + self.gap / 2
        self.payoffs = (self.np_random.random((self.arms, self.turns)) < chances).astype(int).tolist()
        self.tried, self.paid = [0] * self.arms, [0] * self.arms

    def show(self) -> str:
        """Return the first observation."""
        return f"{self._names}. Turns left: {self.turns}."

    def legal(self) -> list[str]:
        """All arms, in every turn."""
        return list(ascii_uppercase[: self.arms])

    def play(self, action: str) -> Step:
        """Pull an arm."""
        name = self.read(action)
        if name is None:
            return self.reject(f"Not {self._names}.")
        arm = self.legal().index(name)
        paid = self.payoffs[arm][self.tried[arm]]
        self.tried[arm] += 1
        self.paid[arm] += paid
        is_won = arm == self.best and self.turns_left == 1
        return self.turn(f"{name} paid {paid}.", success=is_won, reward=paid / self.turns)

    def tell(self, message: str) -> str:
        """Return the message, the turns left and what the arms have paid."""
        text = f"{message} Turns left: {self.turns_left}."
        if self.summary:
            arms = zip(self.legal(), self.paid, self.tried, strict=True)
            text += f" Paid of tried: {', '.join(f'{name} {paid}/{tried}' for name, paid, tried in arms)}."
        return text

    def solve(self) -> str:
        """Return the arm that is most probably the best: the one with the most payments less failures."""
        leads = [2 * paid - tried for paid, tried in zip(self.paid, self.tried, strict=True)]
        return ascii_uppercase[leads.index(max(leads))]

    def state(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return how often each arm was tried, and paid."""
        return tuple(self.tried), tuple(self.paid)
