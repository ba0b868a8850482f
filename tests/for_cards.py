"""Environments with one planted fault each, of the kind that a card has to find, and one without."""

import random
from typing import Any

import gymnasium as gym

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


class FewSeeds(Digits):
    """The task depends on the last digit of the seed only."""

    def _draw(self, seed: int | None) -> None:
        self.numbers = [300 + (seed or 0) % 10, 400]


class ShowsSeed(Digits):
    """The observation has the seed, with which a model can learn the tasks by heart."""

    def _shown(self) -> str:
        return f"Task {self.np_random_seed}. {super()._shown()}"

    def solver(self) -> Any:
        solve = super().solver()
        return lambda observation: solve(observation.partition(". ")[2])


class PaysForWaiting(Digits):
    """An attempt that is not a number costs no try, and every turn pays a little."""

    optimal_return = None

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turns = getattr(self, "turns", 0) + 1
        if not action.strip().isdigit() and self.turns < 40:
            return "A number, please.", 0.1, False, False, {"success": False, "action_valid": False}
        self.turns = 0
        return super().step(action)


class AlwaysYes(Digits):
    """Nineteen of twenty questions have the same answer."""

    instructions = "Is it true? Answer with yes or no."
    optimal_success = optimal_return = 1.0

    def _draw(self, seed: int | None) -> None:
        super()._draw(seed)
        self.right = "no" if self.np_random.random() < 0.05 else "yes"

    def _shown(self) -> str:
        total = sum(self.numbers) + (self.right == "no")
        return f"{self.numbers[0]} + {self.numbers[1]} = {total}. Is it true?"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        won = action.strip() == self.right
        info = {"success": won, "action_valid": action.strip() in ("yes", "no")}
        return "Right." if won else "Wrong.", float(won), True, False, info

    def random_policy(self, seed: int) -> Any:
        rng = random.Random(seed)
        return lambda observation: rng.choice(["yes", "no"])

    def solver(self) -> Any:
        def solve(observation: str) -> str:
            left, _, right = observation.partition(" = ")
            return "yes" if sum(map(int, left.split(" + "))) == int(right.partition(".")[0]) else "no"

        return solve


class PaysToLeave(Digits):
    """Every wrong attempt costs a point, so that an episode that is cut off is the best one."""

    optimal_success = optimal_return = None

    def _pay(self, won: bool, *, valid: bool) -> float:
        return 0.0 if not valid else -1.0


class ShowsAnswer(Digits):
    """The observation ends with the answer."""

    def _shown(self) -> str:
        return f"{super()._shown()} Hint: {sum(self.numbers)}"

    def solver(self) -> Any:
        return lambda observation: observation.split()[-1]


class Trusting(Digits):
    """Takes the word of the model for it."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, over, cut, info = super().step(action)
        if "success=True" in action:
            return "Right.", 1.0, True, cut, {**info, "success": True}
        return observation, reward, over, cut, info


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
