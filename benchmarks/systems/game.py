"""The games: real ones whose environments answer late, as on another machine, and whose length is heavy-tailed."""

import re
import time
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from gym_trl.pool import read_instructions
from gym_trl.wrappers.parse_action import ParseAction

MOST_TURNS = 20
_TAIL = 1.2
_SEED = re.compile(r"Game (\d+)\.")


def turns_of(seed: int) -> int:
    """How many turns the game of this seed has at most: 2 + a Pareto variable, so that few games have many.

    >>> [turns_of(seed) for seed in range(12)]
    [8, 2, 2, 2, 20, 2, 3, 4, 2, 8, 2, 2]
    """
    return min(MOST_TURNS, 2 + int(np.random.default_rng([seed, 1]).pareto(_TAIL)))


def delays(seed: int, mean_s: float) -> list[float]:
    """How long each step of this seed's game takes: exponential, the same for every system."""
    return [float(delay) for delay in mean_s * np.random.default_rng([seed, 2]).exponential(size=MOST_TURNS)]


def seed_of(text: str) -> int | None:
    """Which game a prompt is of.

    >>> seed_of("Find it. Game 17. Guess 1 to 50.")
    17
    """
    found = _SEED.search(text)
    return int(found[1]) if found else None


class FarAway(gym.Wrapper[str, str, str, str]):
    """Says which game it is, ends it after as many turns as its seed says, and takes its time."""

    def __init__(self, env: gym.Env[str, str], latency_s: float, turns: int | None = None) -> None:
        super().__init__(env)
        self._latency_s = latency_s
        self._all_turns = turns
        self._turn, self._turns = 0, 0
        self._delays: list[float] = []

    @property
    def instructions(self) -> str:
        """The game's own."""
        return read_instructions(self.env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin the game of this seed, or of one that is drawn."""
        seed = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        observation, info = self.env.reset(seed=seed, options=options)
        self._turn, self._turns = 0, self._all_turns or turns_of(seed)
        self._delays = delays(seed, self._latency_s) if self._latency_s else []
        return f"Game {seed}. {observation}", info

    def step(self, action: str) -> tuple[str, SupportsFloat, bool, bool, dict[str, Any]]:
        """Act, and wait."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        if self._delays:
            time.sleep(self._delays[self._turn])
        self._turn += 1
        return observation, reward, terminated, truncated or self._turn == self._turns, info


def far_away(env: gym.Env[str, str], latency_s: float, turns: int | None = None) -> gym.Env[str, str]:
    """A game whose actions are whole answers with the action in a box."""
    return FarAway(ParseAction(env, "boxed"), latency_s, turns)


def make(env_id: str, kwargs: dict[str, Any], latency_s: float, turns: int | None = None) -> gym.Env[str, str]:
    """The game as all systems play it."""
    return far_away(gym.make(env_id, **kwargs), latency_s, turns)
