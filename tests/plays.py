"""Environments and responses that every player is given, for the tests of law 21."""

import itertools
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from gym_trl.envspec import EnvSpec
from gym_trl.errors import ConfigError, InfrastructureError
from gym_trl.seeding import task_seed
from gym_trl.spaces import AnyText
from gym_trl.testing import ByteChat, ScriptedEngine
from gym_trl.types import Task
from gym_trl.wrappers import InvalidActionPenalty, PotentialShaping, StepPenalty

CHAT = ByteChat()
SPACES: dict[str, tuple[gym.Space[Any], tuple[str, ...]]] = {
    "text": (AnyText(), ("go", "stay", "")),
    "discrete": (gym.spaces.Discrete(3), ("0", "2", "7", "what?")),
    "box": (gym.spaces.Box(-1.0, 1.0, (2,), np.float32), ("[0.5, -0.25]", "[1, 1]", "[9, 9]", "no")),
    "dict": (
        gym.spaces.Dict({"move": gym.spaces.Discrete(2), "size": gym.spaces.Box(0.0, 1.0, (1,), np.float32)}),
        ('{"move": 1, "size": [0.5]}', '{"move": 0, "size": [1]}', '{"move": 9}', "?"),
    ),
}
"""Spaces of actions, each with a few responses."""
GAMES: dict[str, tuple[str, ...]] = {
    "FrozenLake-v1": ("0", "1", "2", "3", "Move right", "down", "jump"),
    "CliffWalking-v1": ("0", "1", "2", "3", "jump"),
    "Blackjack-v1": ("0", "1", "hit", "stick"),
    "MountainCarContinuous-v0": ("[1.0]", "[-0.5]", "0.5", "[7]", "no"),
    "TrlEnv/GuessNumber-v0": ("25", "1", "50", "99", "a number"),
    "TrlEnv/Echo-v0": ("woadw", "dog", ""),
    "TrlEnv/Minesweeper-v0": ("reveal a1", "reveal c3", "flag b2", "a1", "?"),
}
"""Environments, each with a few responses."""
RAISED: Mapping[str, Callable[[], BaseException]] = {
    "crashed": lambda: ZeroDivisionError("it broke"),
    "left": lambda: SystemExit(1),
    "disconnected": lambda: ConnectionResetError("lost"),
    "failed": lambda: InfrastructureError("no license"),
    "mistake": lambda: ConfigError("no such level"),
}
OVER = ("terminated", "truncated", "both", "invalid", "turn_limit")
MALFORMED = ("nan", "overflow", "no text")
ENDINGS = (*OVER, "never", "crashed", "left", "disconnected", "failed", *MALFORMED)
"""Endings of an episode that cost this episode only."""


class Plan(NamedTuple):
    """Environment that does in each step what stands here, the last again and again."""

    space: str
    rewards: tuple[float, ...]
    success: tuple[bool | None, ...]
    valid: tuple[bool | None, ...]
    ends: int
    """Step in which it ends."""
    ending: str
    settlement: float
    declares: bool
    """It has the attribute ``declares_success``."""


class Planned(gym.Env[Any, Any]):
    """Environment of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.observation_space, self.action_space = plan, AnyText(), SPACES[plan.space][0]
        if plan.declares:
            self.declares_success = True
        self.played = 0

    @property
    def settlement(self) -> float:
        """Reward of losing."""
        return self.plan.settlement

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.played = 0
        return "Begin.", {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        plan, place = self.plan, self.played
        self.played += 1
        ending = plan.ending if self.played == plan.ends else ""
        if ending in RAISED:
            raise RAISED[ending]()
        if ending == "hangs":
            time.sleep(30)
        at = {name: one[min(place, len(one) - 1)] for name, one in plan._asdict().items() if isinstance(one, tuple)}
        info = {"success": at["success"], "action_valid": at["valid"]}
        info = {name: one for name, one in info.items() if one is not None}
        if ending in ("invalid", "turn_limit"):
            info["stop_reason"] = ending
        reward = {"nan": math.nan, "overflow": 1e300}.get(ending, at["rewards"])
        ended = ending in ("terminated", "both", "invalid"), ending in ("truncated", "both", "turn_limit")
        return None if ending == "no text" else f"Step {self.played}.", reward, *ended, info


class Fragile(gym.Wrapper[Any, Any, Any, Any]):
    """Breaks at the third action."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self.taken = 0
        return self.env.reset(**given)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        self.taken += 1
        if self.taken == 3:
            raise KeyError(action)
        return self.env.step(action)


def limited(env: gym.Env[Any, Any], steps: int) -> gym.Env[Any, Any]:
    """Return the environment with Gymnasium's limit."""
    return gym.wrappers.TimeLimit(env, steps)


WRAPPERS: dict[str, list[Callable[[Any], Any]]] = {
    "none": [],
    "time limit": [partial(limited, steps=3)],
    "step penalty": [partial(StepPenalty, penalty=0.25)],
    "penalty inside": [partial(InvalidActionPenalty, penalty=0.5)],
    "shaped": [partial(PotentialShaping, potential=lambda env: 0.5)],
    "both": [partial(StepPenalty, penalty=0.125), partial(limited, steps=3)],
    "fragile": [Fragile, partial(StepPenalty, penalty=0.1)],
}


def responses(words: Sequence[str]) -> list[str]:
    """Return responses with these words, with and without the marks of an action."""
    return [*words, *(f"So: <action>{word}</action>" for word in words)]


class Play(NamedTuple):
    """Environment as it is configured, and the responses in an episode of it."""

    source: Any
    options: Mapping[str, Any]
    words: tuple[str, ...]
    """They are repeated at their end."""

    @property
    def spec(self) -> EnvSpec:
        """The environment."""
        return EnvSpec(self.source, **{"action_format": None, **self.options})

    @property
    def task(self) -> Task:
        """The task, which is the first of an evaluation."""
        [env_id] = self.spec.weights
        return Task(env_id, task_seed(0, "eval", 0))

    def make(self, env_id: str = "") -> gym.Env[Any, Any]:
        """Make the environment."""
        return self.spec.make(self.task.env_id)

    def policy(self, *ignored: object) -> Callable[[object], str]:
        """Return a policy that says the words."""
        words = itertools.cycle(self.words)
        return lambda observation: next(words)

    @property
    def engine(self) -> ScriptedEngine:
        """Engine that says the words."""
        return ScriptedEngine(lambda request: CHAT.say(self.words[(request.number - 1) % len(self.words)]))


def make_named(env_id: str) -> gym.Env[Any, Any]:
    """Make the environment whose plan, wrapping and turn limit are its id, also in another process."""
    plan, wrapping, turn_limit = json.loads(env_id)
    fields: Any = [tuple(one) if isinstance(one, list) else one for one in plan]
    return Play(lambda: Planned(Plan(*fields)), {"turn_limit": turn_limit, "wrappers": WRAPPERS[wrapping]}, ()).make()
