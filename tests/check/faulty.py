# mypy: disable-error-code="override, misc, assignment"
# mypy: disable-error-code="attr-defined, arg-type, return-value"
"""Environments with one fault each."""

import os
import threading
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from gymnasium import spaces

from check.sound_spaces import Aim, Click, Lock, Make, Whole
from check.sound_text import Catch, Errand, Higher, Price, Reverse, Signs, Sum
from gym_trl.spaces import AnyText

# ---------------------------------------------------------------------------------------------------------------------
# Planted faults
# ---------------------------------------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """Environment with a fault."""

    check: str
    """Check that must find it."""
    fault: str
    make: Make
    says: str
    """Pattern of what it must say."""
    also: frozenset[str] = frozenset()
    """Other checks that find what is true as well."""


def changed(base: type[Any], **more: Any) -> type[Any]:
    return type(f"Changed{base.__name__}", (base,), more)


def stepping(base: type[Any], change: Callable[..., Any]) -> type[Any]:
    """Return a class that changes the results of steps."""
    return changed(base, step=lambda self, action: change(self, *base.step(self, action)))


def resetting(base: type[Any], change: Callable[..., Any]) -> type[Any]:
    """Return a class that changes the results of resets."""
    return changed(
        base, reset=lambda self, *, seed=None, options=None: change(self, *base.reset(self, seed=seed, options=options))
    )


def showing(base: type[Any], change: Callable[[Any, Any], Any]) -> type[Any]:
    """Return a class that changes what is observed."""
    return changed(base, shown=lambda self: change(self, base.shown(self)))


def drawing(base: type[Any], change: Callable[[Any], Any]) -> type[Any]:
    """Return a class that changes what is drawn."""

    def draw(self, rng):
        base.draw(self, rng)
        change(self)

    return changed(base, draw=draw)


def with_reward(base: type[Any], reward: Callable[[float], Any]) -> type[Any]:
    return stepping(base, lambda self, shown, paid, *rest: (shown, reward(paid), *rest))


def with_info(base: type[Any], change: Callable[[Any, dict[str, Any]], Any]) -> type[Any]:
    return stepping(base, lambda self, *step: (*step[:4], change(self, step[4])))


class Sized(Sum):
    def __init__(self, size):
        self.size = size


class Remembers(Lock):
    def __init__(self):
        self.number = 0

    def draw(self, rng):
        super().draw(rng)
        self.number += 1
        self.code = (self.code[0], self.number % 4)


class LeftOver(Higher):
    """Keeps the turns of an episode that was left in its middle."""

    left, over = 0, True

    def reset(self, *, seed=None, options=None):
        left = 0 if self.over else self.left
        began = super().reset(seed=seed)
        self.left = left or self.turns
        return began


class ClosesOnce(Aim):
    """Raises where it is closed again."""

    closed = False

    def close(self):
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


class PaysOn(Higher):
    def step(self, action):
        if self.over:
            return "Over.", 1.0, True, False, {"success": False, "action_valid": True}
        return super().step(action)


class Told(Higher):
    def draw(self, rng):
        super().draw(rng)
        self.told = "Guess the number."

    def shown(self):
        self.told += f" {super().shown()}"
        return self.told


class Shares(Signs):
    right_one: ClassVar[list[int]] = [0]

    def draw(self, rng):
        super().draw(rng)
        self.right_one[0] = self.wind

    def judge(self, action):
        time.sleep(0.001)
        self.wind = self.right_one[0]
        return super().judge(action)


class Leaks(Aim):
    def __init__(self):
        self.file = os.dup(1)


class Slow(Signs):
    def judge(self, action):
        time.sleep(0.12)
        return super().judge(action)


class MainThread(Click):
    def draw(self, rng):
        if threading.current_thread() is not threading.main_thread():
            raise ValueError("signal only works in main thread")
        super().draw(rng)


class HashOrder(Errand):
    def info(self):
        return {"admissible_commands": list(set(self.keys))}

    def shown(self):
        return f"{super().shown()} {' '.join({str(number) for number in range(50)})}"


class NoEnd(Catch):
    turns = 10**9


class Mostly(Signs):
    """The wind is north nineteen times of twenty."""

    def draw(self, rng):
        self.wind = int(rng.integers(1, 4)) if rng.random() < 0.05 else 0


class PaysUnread(Sum):
    """A text that is no number pays."""

    turns = 20

    def judge(self, action):
        reward, right, valid = super().judge(action)
        return (reward if valid else 0.2), right, valid


class CostsTurns(Catch):
    """Every turn costs a point, and nothing is owed for the rest."""

    def step(self, action):
        shown, _, *rest = super().step(action)
        return (shown, -1.0, *rest)


class CostsTries(Higher):
    """Every number costs a point, and a text that is none does not."""

    optimal_return = -2.0

    def judge(self, action):
        _, right, valid = super().judge(action)
        return -float(valid), right, valid


class Trusts(Sum):
    def judge(self, action):
        if "success=True" in action:
            return 1.0, True, True
        return super().judge(action)


class EndsWithAnswer(Reverse):
    """Shows the answer at its end, and has no solver to compare with."""

    observation_space = AnyText()

    solver = property(lambda self: (_ for _ in ()).throw(AttributeError("solver")))

    def shown(self):
        return f"{super().shown()}. It is {self.word[::-1]}"


class ShowsSeed(Aim):
    """One of the numbers that it shows is the seed."""

    observation_space = spaces.Box(-1e300, 1e300, (3,), np.float64)

    def shown(self):
        return np.array([*super().shown(), self.np_random_seed], np.float64)


class SeedDigit(Whole):
    """The task is the last digit of the seed."""

    observation_space = spaces.Box(0, 9, (1,), np.int64)
    action_space = spaces.Box(0, 18, (1,), np.int64)

    def draw(self, rng):
        self.number = np.array([self.np_random_seed % 10])


class TenTasks(Signs):
    """Has four tasks, which a training and an evaluation share."""

    num_instances = 4


def no_rules(self):
    raise AttributeError("instructions")


class Purse(Price):
    """The highest offer always buys."""

    def judge(self, action):
        valid = action in map(str, range(1, 10))
        sold = valid and int(action) >= self.price
        return float(sold), sold, valid
