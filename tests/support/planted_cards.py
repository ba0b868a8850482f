"""Environments whose cards are made: a sound one, one with few tasks, and one that declares success at times."""

import random
from typing import Any

import gymnasium as gym
import numpy as np

from gym_trl.spaces import AnyText


class Digits(gym.Env[str, str]):
    """Add two numbers up; one point for the sum, in at most three tries. No fault."""

    instructions = "Add the two numbers. Answer with the sum alone."
    declares_success = True
    optimal_success: float | None = 1.0
    optimal_return: float | None = 1.0

    def __init__(self) -> None:
        self.observation_space, self.action_space = AnyText(), AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self._draw(self.np_random_seed)
        self.tries = 3
        return self._shown(), {}

    def _draw(self, seed: int | None) -> None:
        self.numbers = [int(number) for number in self.np_random.integers(100, 1000, 2)]

    def _shown(self) -> str:
        return f"{self.numbers[0]} + {self.numbers[1]} = ?"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        won = action.strip() == str(sum(self.numbers))
        self.tries -= 1
        info = {"success": won, "action_valid": action.strip().isdigit()}
        over = won or not self.tries
        return "Right." if won else "Wrong.", self._pay(won, valid=info["action_valid"]), over, False, info

    def _pay(self, won: bool, *, valid: bool) -> float:
        return float(won)

    def random_policy(self, seed: int) -> Any:
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(200, 1998))

    def solver(self) -> Any:
        return lambda observation: str(sum(map(int, observation.removesuffix(" = ?").split(" + "))))


class SeldomPays(Digits):
    """One task in a hundred pays whatever is answered."""

    solver: Any = None

    def _pay(self, won: bool, *, valid: bool) -> float:
        return float(self.numbers[0] % 100 == 23)


class FewSeeds(Digits):
    """The task depends on the last digit of the seed only."""

    def _draw(self, seed: int | None) -> None:
        self.numbers = [300 + (seed or 0) % 10, 400]


class OnlyWins(gym.Env[str, str]):
    """Environment that says that an episode was solved, and nothing of all others."""

    def __init__(self) -> None:
        self.observation_space = self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return "Begin.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        won = action == "the word"
        return "Over.", float(won), True, False, {"success": True} if won else {}

    def solver(self) -> Any:
        return lambda observation: "the word"


class NeverLoses(Digits):
    """An episode ends only when it is won."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, _, _, info = super().step(action)
        won: bool = info["success"]
        return observation, reward, won, False, info


class LosesTheLine(Digits):
    """One task in three cannot be scored."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self.numbers[0] % 3 == 0:
            raise ConnectionError("the line was cut")
        return super().step(action)


class AlwaysTenth(Digits):
    """Each episode is paid a tenth."""

    declares_success: Any = None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "Over.", 0.1, True, False, {}


class FirstIsRight(gym.Env[np.ndarray[Any, Any], Any]):
    """The first of two actions is paid a tenth, whatever is shown."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (2,))
        self.action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.random(2, dtype=np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray[Any, Any], float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 0.1 * (action == 0), True, False, {}
