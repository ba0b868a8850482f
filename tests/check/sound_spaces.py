# mypy: disable-error-code="override, misc, assignment"
# mypy: disable-error-code="attr-defined, arg-type, return-value"
"""Sound environments over all other kinds of spaces, and the table of all of them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from support.seat_games import HighCard, Observed

from check.sound_text import (
    Catch,
    Coin,
    Dark,
    Errand,
    Fuse,
    Higher,
    Hundreds,
    Lift,
    Masked,
    Price,
    Reverse,
    Signs,
    Sum,
    Task,
    Waiter,
    Walker,
)

Make = Callable[[], gym.Env[Any, Any]]


# --- Box, Dict and others ---


class Aim(Task):
    """Box, one step: hit a point."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    instructions = "Shoot at the point whose coordinates are shown."

    def draw(self, rng):
        self.point = rng.uniform(-1, 1, 2).astype(np.float32)

    def shown(self):
        return self.point.copy()

    def judge(self, action):
        distance = float(np.abs(np.asarray(action) - self.point).max())
        return 1.0 - distance / 2, distance < 0.4, True


class Steer(Aim):
    """Box, several steps, truncated at the end: push a ball to a point."""

    turns = 6
    ends = "truncated"
    observation_space = spaces.Box(-4, 4, (2, 2), np.float32)
    instructions = "The first row is the ball, the second the goal. Your action is added to the ball's coordinates."

    def draw(self, rng):
        self.ball, self.goal = np.zeros(2, np.float32), rng.uniform(-2, 2, 2).astype(np.float32)

    def shown(self):
        return np.clip(np.stack([self.ball, self.goal]), -4, 4)

    def judge(self, action):
        self.ball = np.clip(self.ball + action, -4, 4)
        distance = float(np.abs(self.ball - self.goal).max())
        return -distance / 10, distance < 0.5, True


class Whole(Aim):
    """Box of integers, one step: a number twice as large."""

    observation_space = spaces.Box(0, 5, (1,), np.int64)
    action_space = spaces.Box(0, 10, (1,), np.int64)
    instructions = "Double the number."

    def draw(self, rng):
        self.number = rng.integers(0, 6, 1)

    def shown(self):
        return self.number.copy()

    def judge(self, action):
        right = int(action[0]) == 2 * int(self.number[0])
        return float(right), right, True


class Click(Task):
    """Dict, one step: click on the place that is shown."""

    observation_space = spaces.Dict({"target": spaces.MultiDiscrete([3, 3]), "label": spaces.Text(5)})
    action_space = spaces.Dict({"x": spaces.Discrete(3), "y": spaces.Discrete(3)})
    instructions = "Click on the target."

    def draw(self, rng):
        self.target, self.label = rng.integers(0, 3, 2), "OKno"[int(rng.integers(2)) * 2 :][:2]

    def shown(self):
        return {"target": self.target.copy(), "label": self.label}

    def judge(self, action):
        right = (int(action["x"]), int(action["y"])) == tuple(self.target.tolist())
        return float(right), right, True


class Orders(Task):
    """Dict with a Text and a Box inside, one step: bring what is asked for."""

    observation_space = spaces.Dict(
        {"order": spaces.Dict({"what": spaces.Text(3, charset="atew"), "n": spaces.Discrete(3)})}
    )
    action_space = spaces.Dict({"what": spaces.Text(3, charset="atew"), "n": spaces.Box(0, 2, (), np.int64)})
    instructions = "Bring what is ordered, as many as are ordered."

    def draw(self, rng):
        self.what, self.number = ("tea", "wet")[rng.integers(2)], int(rng.integers(3))

    def shown(self):
        return {"order": {"what": self.what, "n": self.number}}

    def judge(self, action):
        met = (action["what"] == self.what) + 2 * (int(action["n"]) == self.number)
        return met / 3, met == 3, True


class Lock(Task):
    """MultiDiscrete, several steps: the code on a note."""

    observation_space = spaces.Tuple([spaces.Discrete(4), spaces.Discrete(4)])
    action_space = spaces.MultiDiscrete([4, 4])
    instructions = "Open the lock with the two numbers, in the other order."
    turns = 2

    def draw(self, rng):
        self.code = tuple(rng.integers(0, 4, 2).tolist())

    def shown(self):
        return self.code

    def judge(self, action):
        right = tuple(int(one) for one in action) == self.code[::-1]
        return float(right), right, True


class Flip(Task):
    """MultiBinary, one step: the opposite of all bits."""

    observation_space = action_space = spaces.MultiBinary(3)
    instructions = "Answer with the opposite of each bit."

    def draw(self, rng):
        self.bits = rng.integers(0, 2, 3).astype(np.int8)

    def shown(self):
        return self.bits.copy()

    def judge(self, action):
        met = int((np.asarray(action) != self.bits).sum())
        return met / 3, met == 3, True


class Pair(Task):
    """Tuple, one step: a number and a side."""

    observation_space = spaces.Sequence(spaces.Discrete(3))
    action_space = spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)])
    instructions = "Answer with the number that occurs most, and 1 if it is the last one, else 0."

    def draw(self, rng):
        self.numbers = tuple(rng.integers(0, 3, 3).tolist())

    def shown(self):
        return self.numbers

    def judge(self, action):
        most = max(range(3), key=self.numbers.count)
        met = (int(action[0]) == most) + (int(action[1]) == (self.numbers[-1] == most))
        return met / 2, met == 2, True


class Bits(Task):
    """Box of 8 by 8 as a picture in text, Discrete: the corner that is bright."""

    observation_space = spaces.Box(0, 9, (4, 4), np.uint8)
    action_space = spaces.Discrete(4)
    instructions = "Which corner is bright? 0 top left, 1 top right, 2 bottom left, 3 bottom right."

    def draw(self, rng):
        self.corner = int(rng.integers(4))
        self.picture = np.zeros((4, 4), np.uint8)
        self.picture[3 * (self.corner // 2), 3 * (self.corner % 2)] = 9

    def shown(self):
        return self.picture.copy()

    def judge(self, action):
        right = int(action) == self.corner
        return float(right), right, True


class Picture(Bits):
    """An image, which no text shows, Discrete."""

    observation_space = spaces.Box(0, 255, (32, 32, 3), np.uint8)

    def shown(self):
        return np.kron(self.picture, np.ones((8, 8), np.uint8))[..., None].repeat(3, 2)


class Bare(Task):
    """Box and Discrete of someone who declares nothing: no rules, no success, no names."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)
    turns = 5
    __doc__ = None

    def draw(self, rng):
        self.point = rng.uniform(-1, 1, 2).astype(np.float32)

    def shown(self):
        return self.point.copy()

    def step(self, action):
        self.left -= 1
        met = int(action) == int(self.point[0] > self.point[1])
        self.draw(self.np_random)
        return self.shown(), float(met), False, self.left <= 0, {}


def masked(kind: Any, base: type[Masked] = Masked) -> type[Masked]:
    return type(f"Masked{getattr(kind, '__name__', kind)}", (base,), {"kind": kind})


# ---------------------------------------------------------------------------------------------------------------------
# Sound environments
# ---------------------------------------------------------------------------------------------------------------------


class Sound(NamedTuple):
    """Sound environment, and the checks whose warnings about it are true."""

    make: Make
    warned: frozenset[str] = frozenset({"tasks"})
    """Most have few tasks."""
    options: Mapping[str, Any] = {}


_COPY = frozenset({"tasks", "exploits"})
"""The answer is what is shown; or rewards are negative, and no loss is declared, so that to write no action pays."""

SOUND = {
    "a sum": Sound(Sum),
    "a word backwards": Sound(Reverse),
    "a hidden number": Sound(Higher),
    "a door and keys": Sound(Errand),
    "a hidden price": Sound(Price),
    "a number in the dark": Sound(Dark),
    "a traffic light": Sound(Waiter),
    "a walk": Sound(Walker),
    "a wind vane": Sound(Signs),
    "a fair coin": Sound(Coin),
    "a mask of int8": Sound(Masked),
    "a mask of uint8": Sound(masked(np.uint8)),
    "a mask of truth values": Sound(masked(bool)),
    "a mask in a list": Sound(masked(list)),
    "a lift": Sound(Lift),
    "300 explained numbers": Sound(Hundreds, _COPY),
    "a ball": Sound(Catch),
    "a fuse": Sound(Fuse, _COPY),
    "a target": Sound(Aim, _COPY),
    "a rolling ball": Sound(Steer, _COPY),
    "a double": Sound(Whole),
    "a click": Sound(Click),
    "orders": Sound(Orders),
    "a lock": Sound(Lock),
    "bits": Sound(Flip),
    "a majority": Sound(Pair),
    "a bright corner": Sound(Bits),
    "nothing declared": Sound(Bare, frozenset({"rules", "success"})),
    "a turn limit": Sound(Catch, options={"turn_limit": 6, "success": 0.3}),
    "boxed answers": Sound(Sum, options={"action_format": "boxed"}),
    "high card": Sound(HighCard),
    "high card, observed": Sound(Observed),
}
