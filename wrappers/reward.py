"""Wrappers that change rewards."""

import math
from collections.abc import Callable, Hashable
from typing import Any

import gymnasium as gym

from gym_trl.errors import ConfigError
from gym_trl.options import load_function
from gym_trl.wrappers.base import Reset, Step, TextWrapper


class SuccessReward(TextWrapper):
    """Wrapper with a reward of 1.0 when the task is solved, and 0.0 for everything else.

    >>> env = SuccessReward(gym.make("TrlEnv/Echo-v0"))
    >>> _ = env.reset(seed=0)
    >>> env.step("woadx")[1]  # without the wrapper 0.8
    0.0

    The reward is given once, also if the episode continues after success.

    Raises:
        ConfigError: In a step, the environment ends an episode without declaring success (``info["success"]``), so that
            the reward would always be 0.0.
    """

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self._paid = False

    def lost(self, inside: float | None, turns: float) -> float:
        """Return 0."""
        return 0.0

    def part(self) -> Hashable:
        """Return whether success was paid."""
        return self._paid

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Owe the reward."""
        self._paid = False
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, _, terminated, truncated, info = self.env.step(action)
        if terminated and "success" not in info and "stop_reason" not in info:
            raise ConfigError(f"{self.env} ended without info['success']: DeclareSuccess(env, ...) adds it")
        solved = bool(info.get("success")) and not self._paid
        self._paid |= solved
        return observation, float(solved), terminated, truncated, info


class StepPenalty(TextWrapper):
    """Wrapper that subtracts a penalty from every reward, so that the shortest solution has the highest return.

    >>> env = StepPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.125)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("30", "20", "25")]
    [-0.125, -0.125, 0.875]

    A quick failure then costs less than a long solution: keep the penalty of a whole episode well below the reward.

    Raises:
        ConfigError: The penalty is negative or not finite.
    """

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.01) -> None:
        if not (math.isfinite(penalty) and penalty >= 0):
            raise ConfigError(f"penalty must be a finite number of at least 0, got {penalty}")
        super().__init__(env, penalty=penalty)
        self.penalty = penalty

    def lost(self, inside: float | None, turns: float) -> float | None:
        """Return what the slowest loss costs."""
        return None if inside is None else inside - self.penalty * turns

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, float(reward) - self.penalty, terminated, truncated, info


class InvalidActionPenalty(StepPenalty):
    """Wrapper that subtracts a penalty from the reward of an action that ``info["action_valid"]`` says is invalid.

    >>> env = InvalidActionPenalty(gym.make("TrlEnv/GuessNumber-v0"), penalty=0.5)
    >>> _ = env.reset(options={"instance": 24})
    >>> [env.step(guess)[1] for guess in ("1000", "x", "25")]
    [-0.5, -0.5, 1.0]

    Outside of ``ParseAction`` it charges responses that cannot be read as well. ``info["invalid_penalty"]`` is what
    an action has cost.

    Raises:
        ConfigError: The penalty is negative or not finite.
    """

    def __init__(self, env: gym.Env[Any, Any], penalty: float = 0.1) -> None:
        super().__init__(env, penalty)

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if not info.get("action_valid", True):
            reward = float(reward) - self.penalty
            info = {**info, "invalid_penalty": self.penalty + info.get("invalid_penalty", 0.0)}
        return observation, reward, terminated, truncated, info


class PotentialShaping(TextWrapper):
    """Wrapper that adds the increase of a potential to each reward, so that progress is rewarded immediately.

    >>> env = PotentialShaping(gym.make("FrozenLake-v1", is_slippery=False), potential=lambda lake: lake.s / 16)
    >>> _ = env.reset(seed=0)
    >>> [float(env.step(action)[1]) for action in (1, 1, 2, 2, 1, 2)]  # down, down, right, right, down, right
    [0.25, 0.25, 0.0625, 0.0625, 0.25, 0.125]

    The potential of every end is 0, so an episode's return is the original return minus the potential of its start,
    independent of the actions: cycles gain nothing, and the members of a group, which have the same start, are ranked
    as before (Ng, Harada and Russell, 1999). This includes episodes that are cut off.

    Args:
        env: Any environment.
        potential: Function of the unwrapped environment, called after each reset and each step; or its name,
            ``"package.module:function"``, which can be stored in a spec as JSON.

    Raises:
        ConfigError: The function does not exist; in a step, the potential is not finite.
    """

    def __init__(self, env: gym.Env[Any, Any], potential: Callable[[Any], float] | str) -> None:
        super().__init__(env, potential=potential)
        self._potential = load_function(potential)
        self._before = 0.0

    def lost(self, inside: float | None, turns: float) -> float:
        """Return what a loss costs: the potential, too."""
        return (inside or 0.0) - self._before

    def begin(self, observation: Any, info: dict[str, Any]) -> Reset:
        """Measure the start."""
        self._before = self._now()
        return observation, info

    def act(self, action: Any) -> Step:
        """Play an action."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        before, self._before = self._before, 0.0 if terminated or truncated else self._now()
        return observation, float(reward) + self._before - before, terminated, truncated, info

    def _now(self) -> float:
        value = float(self._potential(self.unwrapped))
        if not math.isfinite(value):
            raise ConfigError(f"a potential must be a finite number, got {value}")
        return value
