"""Bernoulli bandits: find the best arm while every pull is rewarded."""

import math
import re
from collections.abc import Mapping
from functools import cache
from string import ascii_uppercase
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Difficulty, Outcome
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_PAID = re.compile(r"([A-Z]) paid ([01])\.")


class Bandit(Puzzle):
    """Choose one of ``arms`` in each of ``turns``; one arm pays more often than the others.

    >>> env = Bandit(difficulty="easy")
    >>> env.reset(seed=0)[0]
    'A to D. Turns left: 20.'
    >>> env.step("B")[:2]
    ('B paid 1. Turns left: 19. Paid of tried: A 0/0, B 1/1, C 0/0, D 0/0.', 0.05)
    >>> env = Bandit(turns=2)
    >>> _ = env.reset(seed=0)
    >>> env.step("A")[4], env.step("b")[4]["regret"]
    ({'action_valid': True, 'success': False, 'admissible_actions': ['A', 'B', 'C', 'D', 'E']}, 0.4)

    One arm, drawn uniformly, pays 1 with probability ``0.5 + gap / 2``, each other arm with ``0.5 - gap / 2``. The
    instructions state both numbers, but not the arm. The payoffs of each arm's first, second and later pulls are drawn
    at reset, so they depend on the seed alone and not on the other actions. An invalid action costs a turn and pays
    nothing. A turn's reward is its payoff divided by ``turns``, so the return is the mean payoff. It is a success if
    the last turn went to the best arm; with ``reward="success"`` only that pays. At the end ``info["regret"]`` is the
    mean loss per turn, compared with always choosing the best arm (for an invalid action, the best arm's full payoff).

    Args:
        difficulty: ``"medium"`` is the hard setting of Krishnamurthy et al. (2024, arXiv 2403.15371).
        arms: From 2 to 20, called A, B, C and so on.
        gap: Above 0, up to 1.
        turns: From 1 to 1000.
        summary: Observations list how often each arm was tried and paid; otherwise only the last payoff.

    ``optimal_return`` is the Bayes-optimal mean payoff under the rules above, without knowledge of the best arm.
    Choosing the arm that is most probably the best reaches it (Feldman 1962 for two arms, Rodman 1978 for more; the
    tests compare it with a full dynamic program for 2 to 4 arms and up to 8 turns), and its value is computed exactly.
    Always choosing the best arm would pay ``0.5 + gap / 2``, which is not attainable.

    ================================= ====== ====== ======
    mean payoff                       easy   medium hard
    ================================= ====== ====== ======
    the best arm, if one knew it      0.75   0.6    0.6
    Bayes-optimal play (the solver)   0.6158 0.5257 0.4819
    UCB1                              0.461  0.463  0.428
    Thompson sampling, uniform prior  0.514  0.489  0.442
    the highest mean so far           0.551  0.492  0.464
    random or always the same         0.375  0.44   0.42
    ================================= ====== ====== ======

    The first two lines and the last are exact, the others measured in 4000 episodes (standard errors up to 0.003; the
    tests measure those of medium again).
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"arms": 4, "gap": 0.5, "turns": 20, "summary": True},
        "medium": {"arms": 5, "gap": 0.2, "turns": 100, "summary": True},
        "hard": {"arms": 10, "gap": 0.2, "turns": 100, "summary": False},
    }
    ranges: ClassVar = {"arms": (2, 20), "turns": (1, 1000)}
    reward_modes = ("payoff", "success")
    limit_only_ends = False  # the last turn decides success
    garbage = "?"
    constant_action = "A"

    arms: int
    gap: float
    summary: bool

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._places = {name: place for place, name in enumerate(ascii_uppercase[: self.arms])}

    def _check_arguments(self) -> None:
        super()._check_arguments()
        gap = self.gap
        if isinstance(gap, bool) or not isinstance(gap, int | float) or not math.isfinite(gap) or not 0 < gap <= 1:
            raise ConfigError(f"gap must be a number above 0 and up to 1, got {gap!r}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        aim = (
            "collect as much as you can"
            if self.reward == "payoff"
            else "you win if you choose that one in the last turn"
        )
        return (
            f"There are {self.arms} slot machines, {self._names}. A turn on a machine pays 1 or 0, with probability "
            f"{0.5 + self.gap / 2:.4g} for one of them, which you do not know, and {0.5 - self.gap / 2:.4g} for each "
            f"other. You have {counted(self.turns, 'turn')}; {aim}. Answer with one letter alone, written like Z "
            "(which is none of them). Anything else costs a turn and pays nothing."
        )

    @property
    def optimal_success(self) -> float | None:
        """Share of episodes that Bayes-optimal play ends with the best arm; unknown for ``reward="success"``."""
        return _bayes(self.arms, self.gap, self.turns).success if self.reward == "payoff" else None

    @property
    def optimal_return(self) -> float | None:
        """Bayes-optimal mean payoff, without knowledge of the best arm."""
        return _bayes(self.arms, self.gap, self.turns).payoff if self.reward == "payoff" else None

    def admissible_actions(self) -> list[str]:
        """Return all arms."""
        return list(self._places)

    def solver(self) -> Policy:
        """Return the Bayes-optimal policy for the payoff, which chooses the arm that is most probably the best."""
        leads = [0] * self.arms  # payments minus failures: the largest is most probably the best arm's

        def policy(observation: str) -> str:
            if paid := _PAID.match(observation):
                leads[ascii_uppercase.index(paid[1])] += 1 if paid[2] == "1" else -1
            return ascii_uppercase[leads.index(max(leads))]

        return policy

    @property
    def _names(self) -> str:
        return f"A to {ascii_uppercase[self.arms - 1]}"

    def _deal(self, instance: int | None) -> None:
        self._best = int(self.np_random.integers(self.arms))
        chances = np.full((self.arms, 1), 0.5 - self.gap / 2)
        chances[self._best] = 0.5 + self.gap / 2
        self._tape = (self.np_random.random((self.arms, self.turns)) < chances).tobytes()
        self._tried, self._paid = [0] * self.arms, [0] * self.arms
        self._shown = [f"{name} 0/0" for name in self._places]
        self._regret = 0.0

    def _observe(self) -> str:
        """Return the observation of the start; the others are payoffs."""
        return f"{self._names}. Turns left: {self.turns}."

    def _act(self, action: str) -> Outcome:
        name = action.strip().upper() if action.isascii() else ""
        place = self._places.get(name)
        if place is None:
            return self._reject(f"Not {self._names}.")
        tried = self._tried[place]
        paid = self._tape[place * self.turns + tried]
        self._tried[place] = tried + 1
        self._paid[place] += paid
        if self.summary:
            self._shown[place] = f"{name} {self._paid[place]}/{tried + 1}"
        return self._use_turn(f"{name} paid {paid}.", paid, 0.0 if place == self._best else self.gap)

    def _snapshot(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self._tried), tuple(self._paid)

    def _reject(self, reason: str) -> Outcome:
        return self._use_turn(reason, 0, 0.5 + self.gap / 2)._replace(valid=False, success=False)

    def _use_turn(self, answer: str, paid: int, cost: float) -> Outcome:
        self._turns_left -= 1
        self._regret += cost
        done = self._turns_left == 0
        answer = f"{answer} Turns left: {self._turns_left}."
        if self.summary:
            answer = f"{answer} Paid of tried: {', '.join(self._shown)}."
        # Reported in every turn it would reveal the best arm.
        info = {"regret": self._regret} if done else {}
        return Outcome(answer, paid / self.turns, done, done and cost == 0.0, info=info)


class _Bayes(NamedTuple):
    payoff: float
    success: float


@cache
def _bayes(arms: int, gap: float, turns: int) -> _Bayes:
    """Compute the value of always choosing the most probable arm.

    With chances ``0.5 + gap / 2`` and ``0.5 - gap / 2`` an arm's probability of being the best grows by the same factor
    with each payment and shrinks by it without one. Always choosing the most probable arm leaves the others at most one
    such step apart, so two numbers describe the state: the lead of the chosen arm over the next ones, and the number of
    arms that are one step below these.
    """
    good, bad = 0.5 + gap / 2, 0.5 - gap / 2
    lead, below = np.arange(turns + 1)[:, None], np.arange(arms)[None, :]
    step = bad / good
    best = 1 / (1 + (arms - 1 - below) * step**lead + below * step ** (lead + 1))
    pays = bad + (good - bad) * best
    at = np.zeros((turns + 1, arms))
    at[0, 0] = 1.0
    payoff = success = 0.0
    for _ in range(turns):
        success = float((at * best).sum())
        up, down = at * pays, at * (1 - pays)
        payoff += float(up.sum())
        at = np.zeros_like(at)
        at[1:] += up[:-1]
        at[:-1] += down[1:]
        # Without a lead the arm falls one step below; when all arms have fallen they are level again.
        at[0, 1:] += down[0, :-1]
        at[0, 0] += down[0, -1]
    return _Bayes(payoff / turns, success)
