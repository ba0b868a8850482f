"""Real games whose steps are delayed, as on another machine, and whose lengths are heavy-tailed."""

import re
import time
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from gym_trl.wrappers.base import instructions_of
from gym_trl.wrappers.parse_action import ParseAction

MOST_TURNS = 20
_TAIL = 1.2
_SEED = re.compile(r"Game (\d+)\.")


def turns_of(seed: int) -> int:
    """Return the number of turns of a seed's game: 2 + a Pareto variable, so that few games have many.

    >>> [turns_of(seed) for seed in range(12)]
    [8, 2, 2, 2, 20, 2, 3, 4, 2, 8, 2, 2]
    """
    return min(MOST_TURNS, 2 + int(np.random.default_rng([seed, 1]).pareto(_TAIL)))


def delays(seed: int, mean_s: float) -> list[float]:
    """Return the delay of each step of a seed's game: exponential, the same for every system."""
    return [float(delay) for delay in mean_s * np.random.default_rng([seed, 2]).exponential(size=MOST_TURNS)]


def seed_of(text: str) -> int | None:
    """Return the seed of the game in a prompt.

    >>> seed_of("Find it. Game 17. Guess 1 to 50.")
    17
    """
    found = _SEED.search(text)
    return int(found[1]) if found else None


class FarAway(gym.Wrapper[str, str, str, str]):
    """Wrapper that states the game's seed, ends it after its number of turns, and delays its steps."""

    def __init__(self, env: gym.Env[str, str], latency_s: float, turns: int | None = None) -> None:
        super().__init__(env)
        self._latency_s = latency_s
        self._all_turns = turns
        self._turn, self._turns = 0, 0
        self._delays: list[float] = []

    @property
    def instructions(self) -> str:
        return instructions_of(self.env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        observation, info = self.env.reset(seed=seed, options=options)
        self._turn, self._turns = 0, self._all_turns or turns_of(seed)
        self._delays = delays(seed, self._latency_s) if self._latency_s else []
        return f"Game {seed}. {observation}", info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._delays:
            time.sleep(self._delays[self._turn])
        self._turn += 1
        return observation, reward, terminated, truncated or self._turn == self._turns, info


def far_away(env: gym.Env[str, str], latency_s: float, turns: int | None = None) -> gym.Env[str, str]:
    """Wrap a game: an action is a whole response with the game's action in a box."""
    return FarAway(ParseAction(env, "boxed"), latency_s, turns)


def make(env_id: str, kwargs: dict[str, Any], latency_s: float, turns: int | None = None) -> gym.Env[str, str]:
    return far_away(gym.make(env_id, **kwargs), latency_s, turns)
