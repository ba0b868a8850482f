"""Environments with a known verdict, for the audit."""

import os
import random
import time
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from gym_trl.spaces import AnyText

DIGITS = [str(number) for number in range(10)]


class Game(gym.Env[Any, Any]):
    """Show a digit for a few turns; the last action wins if it is the digit."""

    instructions = "Answer with the digit that is shown, alone."
    declares_success = True
    turns: ClassVar[int] = 1
    observation_space: spaces.Space[Any] = AnyText()
    action_space: spaces.Space[Any] = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.digit, self.left, self.over = self.draw(), self.turns, False
        return self.shown(), {"admissible_actions": DIGITS} if isinstance(self.action_space, AnyText) else {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.over:
            return self.shown(), 0.0, True, False, {"success": False, "action_valid": True}
        self.left -= 1
        self.over = self.left <= 0
        won = self.over and self.wins(action)
        valid = not isinstance(action, str) or action in DIGITS
        info: dict[str, Any] = {"success": won, "action_valid": valid}
        if isinstance(self.action_space, AnyText):
            info["admissible_actions"] = DIGITS
        return self.shown(), float(won), self.over, False, info

    def draw(self) -> int:
        return int(self.np_random.integers(10))

    def shown(self) -> Any:
        return f"The digit is {self.digit}."

    def wins(self, action: Any) -> bool:
        return str(action) == str(self.digit)

    def solver(self) -> Any:
        return lambda observation: str(self.digit)


class Reads(Game):
    pass


class ReadsInThreeTurns(Game):
    turns = 3


class ReadsNumbers(Game):
    observation_space, action_space = spaces.Discrete(10), spaces.Discrete(10)

    def shown(self) -> Any:
        return self.digit


class ReadsDict(Game):
    observation_space = spaces.Dict({"digit": spaces.Discrete(10), "left": spaces.Discrete(5)})
    action_space = spaces.Discrete(10)

    def shown(self) -> Any:
        return {"digit": self.digit, "left": self.left}


class ReadsBox(Game):
    observation_space, action_space = spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(10)

    def shown(self) -> Any:
        return np.array([self.digit], np.float32)


class ReadsWithoutSolver(Game):
    solver: Any = None


class PaysAWord(Game):
    """Pay everything for one action."""

    def wins(self, action: Any) -> bool:
        return str(action) == "7"

    def solver(self) -> Any:
        return lambda observation: "7"


class PaysANumber(ReadsNumbers):
    def wins(self, action: Any) -> bool:
        return str(action) == "7"


class PaysTheLast(ReadsInThreeTurns):
    def wins(self, action: Any) -> bool:
        return str(action) == "3"

    def solver(self) -> Any:
        return lambda observation: "3"


class OneSeed(Game):
    """Draw the same digit for every seed."""

    def draw(self) -> int:
        return 4


class OftenTheSame(Game):
    """Draw one digit in half of the episodes."""

    def draw(self) -> int:
        return 5 if self.np_random.random() < 0.5 else int(self.np_random.integers(10))


class OftenTheSameNumber(ReadsNumbers):
    def draw(self) -> int:
        return 5 if self.np_random.random() < 0.5 else int(self.np_random.integers(10))


class PaysAnything(Game):
    def wins(self, action: Any) -> bool:
        return str(action) in DIGITS


class NeverPays(Game):
    declares_success = False

    def wins(self, action: Any) -> bool:
        return False

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, over, cut, _ = super().step(action)
        return observation, reward, over, cut, {}

    solver: Any = None


class OnlyReturns(NeverPays):
    """Pay the action, and declare neither success nor a best score."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, over, cut, info = super().step(action)
        return observation, float(str(action) == str(self.digit)), over, cut, info


class GlobalRandom(Game):
    def draw(self) -> int:
        return random.randrange(10)


class Clock(Game):
    def shown(self) -> Any:
        return f"The digit is {self.digit}, the time {time.perf_counter()}."


class Remembers(Game):
    """Count episodes over resets."""

    episodes = 0

    def draw(self) -> int:
        self.episodes += 1
        return (super().draw() + self.episodes) % 10


class FailsInReset(Game):
    def draw(self) -> int:
        raise ZeroDivisionError("no digit")


class FailsInStep(Game):
    def wins(self, action: Any) -> bool:
        raise ZeroDivisionError("no winner")


class CannotBeMade(Game):
    def __init__(self) -> None:
        raise ValueError("no board")


class NeedsAPackage(Game):
    def __init__(self) -> None:
        import no_such_package_of_a_game as _  # type: ignore[import-not-found]  # noqa: F401


class NeedsAnArgument(Game):
    def __init__(self, board: str) -> None:
        raise NotImplementedError


class ResetsToAText(Game):
    def reset(self, **_: Any) -> Any:
        return "The digit is 1."


class EndsItsProcess(Game):
    def step(self, action: Any) -> Any:
        os._exit(3)


class Hangs(Game):
    def step(self, action: Any) -> Any:
        time.sleep(3600)


_BY_VERDICT: dict[str, tuple[type[Game], ...]] = {
    "reads": (Reads, ReadsInThreeTurns, ReadsNumbers, ReadsDict, ReadsBox, ReadsWithoutSolver),
    "blind": (PaysAWord, PaysANumber, PaysTheLast, OneSeed),
    "partly blind": (OftenTheSame, OftenTheSameNumber),
    # What hangs cannot be told from what is slow.
    "not measured": (PaysAnything, NeverPays, OnlyReturns, NeedsAPackage, NeedsAnArgument, Hangs),
    "broken": (
        GlobalRandom,
        Clock,
        Remembers,
        FailsInReset,
        FailsInStep,
        CannotBeMade,
        ResetsToAText,
        EndsItsProcess,
    ),
}
VERDICTS = {one: verdict for verdict, games in _BY_VERDICT.items() for one in games}
