"""Number guessing with the hints higher and lower."""

import random
import re
from typing import ClassVar

from gym_trl.envs.text_game import Step, TextGame
from gym_trl.errors import ConfigError
from gym_trl.text import counted

_INTEGER = re.compile(r"[+-]?[0-9]{1,999}")


class GuessNumber(TextGame):
    """Find a secret integer from ``low`` to ``high`` in ``turns`` tries, with the hints "higher" and "lower".

    >>> env = GuessNumber()
    >>> env.reset(seed=0)[0], env.step("25")[0], env.step("twenty")[0]
    ('Guess 1 to 50 in 6 tries.', 'Higher.', 'Not 1 to 50.')

    The solver halves the range. It finds ``min(1, (2**turns - 1) / n)`` of ``n`` secrets, and no more can be found:
    ``turns`` guesses tell no more apart. Medium takes it 4.86 guesses in the mean.
    """

    presets: ClassVar = {
        "easy": {"low": 1, "high": 10, "turns": 4},
        "medium": {"low": 1, "high": 50, "turns": 6},
        "hard": {"low": 1, "high": 1000, "turns": 10},
    }
    low: int
    high: int

    def prepare(self) -> None:
        """Check the range, count the secrets, and write the rules."""
        if self.low > self.high:
            raise ConfigError(f"low must not be above high, got low={self.low} and high={self.high}")
        self.num_instances = self.high - self.low + 1
        self.optimal_success = min(1.0, float(2 ** min(self.turns, 64) - 1) / self.num_instances)
        self.instructions = (
            f"Find the secret integer from {self.low} to {self.high}. You have {counted(self.turns, 'try')}. After "
            'each you are told whether the secret is "higher" or "lower". Answer with an integer alone, written like '
            f"{self.high + 1} (which is out of range). Anything else costs a try."
        )

    def deal(self) -> None:
        """Choose the secret."""
        self.secret = self.low + (self.instance or 0)
        self.least, self.most = self.low, self.high

    def show(self) -> str:
        """Return the first observation."""
        return f"Guess {self.low} to {self.high} in {counted(self.turns, 'try')}."

    def play(self, action: str) -> Step:
        """Compare a guess with the secret."""
        said = action.strip()
        guess = int(said) if _INTEGER.fullmatch(said) else None
        if guess is None or not self.low <= guess <= self.high:
            return self.reject(f"Not {self.low} to {self.high}.")
        if guess == self.secret:
            return Step("Correct.", done=True, success=True)
        if guess < self.secret:
            self.least = max(self.least, guess + 1)
            return self.turn("Higher.")
        self.most = min(self.most, guess - 1)
        return self.turn("Lower.")

    def tell(self, message: str) -> str:
        """Return the hint alone."""
        return message

    def solve(self) -> str:
        """Return the middle of what the hints leave."""
        return str((self.least + self.most) // 2)

    def guess(self, rng: random.Random) -> str:
        """Return any number of the range."""
        return str(rng.randint(self.low, self.high))

    def state(self) -> tuple[int, int]:
        """Return the range that the hints leave."""
        return self.least, self.most
