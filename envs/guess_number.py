"""Number guessing with the hints higher and lower."""

import math
import random
import re
from collections.abc import Callable
from typing import ClassVar

from gym_trl.envs.puzzle import Puzzle
from gym_trl.envs.text_env import Outcome
from gym_trl.errors import ConfigError
from gym_trl.text import counted
from gym_trl.types import Policy

_INTEGER = re.compile(r"[+-]?[0-9]+")
_CORRECT = Outcome("Correct.", done=True, success=True)
# Outcome of a hint, and of the hint that ends the game.
_HIGHER, _LOWER = ((Outcome(hint), Outcome(hint, done=True)) for hint in ("Higher.", "Lower."))
_RANGE = re.compile(r"Guess (-?[0-9]+) to (-?[0-9]+) ")


class GuessNumber(Puzzle):
    """Find a secret integer from ``low`` to ``high`` in ``turns`` tries, with the hints "higher" and "lower".

    >>> env = GuessNumber()
    >>> env.reset(seed=0)
    ('Guess 1 to 50 in 6 tries.', {})
    >>> env.step("25")[0]
    'Higher.'
    >>> env.step("twenty")
    ('Not 1 to 50.', 0.0, False, False, {'action_valid': False, 'success': False})

    A guess that is not an integer or out of range gives no hint. White space around the integer is allowed.

    Perfect play halves the range. It finds ``min(1, (2**turns - 1) / n)`` of ``n`` secrets, because ``turns`` guesses
    can distinguish ``2**turns - 1`` secrets. With enough turns its mean number of guesses is:

    ======= ======= =======
    secrets mean    most
    ======= ======= =======
    10      2.9     4
    20      3.7     5
    50      4.86    6
    100     5.80    7
    1000    8.987   10
    1024    9.0117  11
    ======= ======= =======

    The numbers are exact (the tests enumerate the secrets).
    """

    presets: ClassVar = {
        "easy": {"low": 1, "high": 10, "turns": 4},
        "medium": {"low": 1, "high": 50, "turns": 6},
        "hard": {"low": 1, "high": 1000, "turns": 10},
    }
    ranges: ClassVar = {"low": (None, None), "high": (None, None), "turns": (1, None)}
    reward_modes = ("success", "efficient", "shaped")
    optimum_is_shortest = True
    garbage = "1.5"

    low: int
    high: int

    def _check_arguments(self) -> None:
        super()._check_arguments()
        if self.low > self.high:
            raise ConfigError(f"low must not be above high, got low={self.low} and high={self.high}")

    @property
    def instructions(self) -> str:
        """Rules of the game and format of an action; the example is out of range, so it is never the secret."""
        return (
            f"Find the secret integer from {self.low} to {self.high}. You have {counted(self.turns, 'try')}. After "
            'each you are told whether the secret is "higher" or "lower". Answer with an integer alone, written like '
            f"{self.high + 1} (which is out of range). Anything else costs a try."
        )

    @property
    def action_tools(self) -> list[Callable[..., str]]:
        """Return the tool of tool-calling models: ``guess(number)``."""
        return [guess]

    @property
    def num_instances(self) -> int:
        """The number of secrets."""
        return self.high - self.low + 1

    @property
    def optimal_success(self) -> float:
        """``min(1, (2**turns - 1) / n)`` of ``n`` secrets."""
        # Compare bits first, so that many turns do not create a huge integer.
        if self.turns >= self.num_instances.bit_length():
            return 1.0
        return float((2**self.turns - 1) / self.num_instances)

    @property
    def constant_action(self) -> str:
        """The middle of the range."""
        return str((self.low + self.high) // 2)

    def solver(self) -> Policy:
        """Return a policy that halves the range."""
        return _Halving()

    def random_policy(self, seed: int) -> Policy:
        """Return a policy that guesses uniformly random integers of the range."""
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(self.low, self.high))

    def _deal(self, instance: int | None) -> None:
        self._secret = self.low + (instance or 0)
        self._least, self._most = self.low, self.high

    def _observe(self) -> str:
        """Return the observation of the start; the others are hints."""
        return f"Guess {self.low} to {self.high} in {counted(self.turns, 'try')}."

    def _act(self, action: str) -> Outcome:
        guess = _integer(action)
        if guess is None or not self.low <= guess <= self.high:
            return self._reject(f"Not {self.low} to {self.high}.")
        secret = self._secret
        if guess == secret:
            return _CORRECT
        self._turns_left -= 1
        if secret > guess:
            if guess >= self._least:
                self._least = guess + 1
            return _HIGHER[self._turns_left == 0]
        if guess <= self._most:
            self._most = guess - 1
        return _LOWER[self._turns_left == 0]

    def _snapshot(self) -> tuple[int, int]:
        return self._least, self._most

    def _fewest_actions(self) -> float:
        """Return the guesses that halving takes for this secret."""
        policy = _Halving(self.low, self.high)
        answer, count = "", 0
        while True:
            guess, count = int(policy(answer)), count + 1
            if guess == self._secret:
                return count
            answer = "Higher." if self._secret > guess else "Lower."

    def _potential(self) -> float:
        """Return the share of the bits that are known."""
        left = self._most - self._least + 1
        return 1.0 - math.log(left) / math.log(self.num_instances) if self.num_instances > 1 else 0.0

    def _reject(self, reason: str) -> Outcome:
        self._turns_left -= 1
        return Outcome(reason, done=self._turns_left == 0, valid=False)


class _Halving:
    """Policy that guesses the middle of the remaining range, which it derives from the observations alone."""

    def __init__(self, low: int = 0, high: int = 0) -> None:
        self._low, self._high, self._guess = low, high, 0

    def __call__(self, observation: str) -> str:
        if start := _RANGE.search(observation):
            self._low, self._high = int(start[1]), int(start[2])
        elif observation.startswith("Higher"):
            self._low = self._guess + 1
        elif observation.startswith("Lower"):
            self._high = self._guess - 1
        self._guess = (self._low + self._high) // 2
        return str(self._guess)


def guess(number: int) -> str:
    """Guess the secret integer.

    Args:
        number: An integer of the range that you were told.
    """
    return str(number)


def _integer(text: str) -> int | None:
    try:
        if text.isascii() and text.isdigit():
            return int(text)
        text = text.strip()  # int() takes fewer characters for space than strip()
        return int(text) if _INTEGER.fullmatch(text) else None
    except ValueError:  # Python parses no integers of more than 4300 digits
        return None
