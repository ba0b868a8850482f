"""Secretary problem (Ferguson 1989): accept the best applicant of a sequence."""

import re
from collections.abc import Mapping
from functools import lru_cache
from itertools import count
from math import factorial
from typing import Any, ClassVar

from gym_trl.envs.puzzle import Puzzle, plain
from gym_trl.envs.text_env import Difficulty, Outcome, Steady
from gym_trl.text.textify import counted
from gym_trl.types import Policy

_SHOWN = re.compile(r"Applicant ([0-9]+) of ([0-9]+): rank ([0-9]+) ")
_MOVES = ("accept", "skip")


class Secretary(Puzzle):
    """Accept the best of ``applicants``, which appear one at a time and cannot be recalled.

    >>> env = Secretary(applicants=3)
    >>> env.reset(options={"instance": 0})[0]
    'Applicant 1 of 3: rank 1 so far.'
    >>> env.step("skip")[0]
    'Applicant 2 of 3: rank 1 so far.'
    >>> env.step("accept")[:2]
    ('Rank 2 of all 3. Not the best.', 0.0)

    The observation gives each applicant's rank among those seen so far, 1 for the best; the actions are accept, which
    ends the game, and skip. The game is won if the accepted applicant is the best of all, seen or not; all orders are
    equally likely. An invalid action costs one of ``turns`` and keeps the applicant; the game is lost when no turns are
    left or all were skipped. An instance is an order of the applicants: there are ``applicants!``.

    Perfect play skips a number of applicants and accepts the next one that is better than all before:

    ========== ======= ======
    applicants skipped wins
    ========== ======= ======
    3          1       0.5
    5          2       0.4333
    10         3       0.3987
    20         7       0.3842
    50         18      0.3743
    100        37      0.3710
    ========== ======= ======

    The numbers are exact (a dynamic program here, a sum over positions and, for 5, all orders in the tests); the limit
    is 1/e. Always accepting, like every constant policy, wins ``1 / applicants``, and random play, which rarely
    sees more than a few applicants, ``(1 - 2**-applicants) / applicants``.

    ``reward="shaped"`` adds the change of the probability that perfect play still wins.
    """

    presets: ClassVar[Mapping[Difficulty, Mapping[str, Any]]] = {
        "easy": {"applicants": 5, "turns": 15},
        "medium": {"applicants": 50, "turns": 60},
        "hard": {"applicants": 100, "turns": 110},
    }
    ranges: ClassVar = {"applicants": (1, 1000), "turns": (1, None)}
    reward_modes = ("success", "shaped")
    garbage = "accept 1"
    constant_action = "accept"
    after_message = " "

    applicants: int

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action."""
        return (
            f"{self.applicants} applicants come one at a time, in random order. You are told the rank of each among "
            "those seen so far (1 is the best so far). Accept or skip each; a skipped applicant does not come back. "
            f"You win if you accept the very best of all {self.applicants}, in {counted(self.turns, 'turn')}. Answer "
            'with one word: "accept" or "skip". Anything else costs a turn and leaves the same applicant to decide on.'
        )

    @property
    def num_instances(self) -> int:
        """Number of orders."""
        return factorial(self.applicants)

    @property
    def optimal_success(self) -> float:
        """Share of orders in which perfect play accepts the best."""
        return _chances(self.applicants, min(self.applicants, self.turns))[0]

    def admissible_actions(self) -> list[str]:
        """Both actions, in every turn."""
        return list(_MOVES)

    def solver(self) -> Policy:
        """Return the perfect policy: skip some, then accept the first better than all before."""
        turns_left = count(self.turns, -1)

        def stop(observation: str) -> str:
            shown = _SHOWN.search(observation)
            assert shown is not None
            seen, applicants, rank = map(int, shown.groups())
            last = min(applicants, seen + next(turns_left) - 1)
            return "accept" if rank == 1 and seen / applicants >= _chances(applicants, last)[seen] else "skip"

        return Steady(stop, _SHOWN.search)

    def _deal(self, instance: int | None) -> None:
        # The relative ranks are independent of each other, so they are the digits of the instance.
        left = instance or 0
        self._ranks: list[int] = []
        for seen in range(1, self.applicants + 1):
            left, rank = divmod(left, seen)
            self._ranks.append(rank + 1)
        self._seen = 1

    def _act(self, action: str) -> Outcome:
        word = plain(action)
        if word == "accept":
            rank = self._rank_of_all()
            answer = "The best." if rank == 1 else "Not the best."
            return Outcome(f"Rank {rank} of all {self.applicants}. {answer}", done=True, success=rank == 1)
        if word != "skip":
            return self._reject('Not "accept" or "skip".')
        if self._seen == self.applicants:
            return Outcome("You skipped all.", done=True)
        self._seen += 1
        return self._end_turn()

    def _snapshot(self) -> int:
        return self._seen

    def _potential(self) -> float:
        """Return the probability that perfect play wins, given the applicants seen."""
        last = min(self.applicants, self._seen + self._turns_left - 1)
        later = _chances(self.applicants, last)[self._seen]
        return max(self._seen / self.applicants, later) if self._ranks[self._seen - 1] == 1 else later

    def _reject(self, reason: str) -> Outcome:
        return self._end_turn(f"{reason} Turns left: {self._turns_left - 1}.", valid=False)

    def _observe(self) -> str:
        return f"Applicant {self._seen} of {self.applicants}: rank {self._ranks[self._seen - 1]} so far."

    def _rank_of_all(self) -> int:
        rank = self._ranks[self._seen - 1]
        for later in self._ranks[self._seen :]:
            rank += later <= rank
        return rank


@lru_cache(maxsize=256)
def _chances(applicants: int, last: int) -> tuple[float, ...]:
    """Return the probabilities of accepting the best by the number skipped, if ``last`` is the last one seen."""
    chances = [0.0]
    for seen in range(last, 0, -1):
        later = chances[-1]
        chances.append((max(seen / applicants, later) + (seen - 1) * later) / seen)
    return tuple(reversed(chances))
