# mypy: disable-error-code="override, misc, no-untyped-def, no-untyped-call, assignment"
# mypy: disable-error-code="attr-defined, arg-type, return-value"
"""Environments over all kinds of spaces: sound ones, and the same with one planted fault each.

``SOUND`` names sound environments, and ``PLANTED`` has the check that must report each fault. The tables of
``docs/guides/checks.md`` are made of them, which a test compares.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

import gymnasium as gym
import numpy as np
from for_seats import HighCard, Observed
from gymnasium import spaces

from gym_trl.spaces import AnyText

Make = Callable[[], gym.Env[Any, Any]]


class Task(gym.Env[Any, Any]):
    """Base of the environments: a state is drawn in reset, and every action is judged until one is right."""

    turns = 1
    ends = "terminated"
    """Kind of end of the last of ``turns``."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left, self.over = self.turns, False
        self.draw(self.np_random)
        return self.shown(), self.info()

    def step(self, action):
        if self.over:
            raise gym.error.ResetNeeded("the episode is over")
        self.left -= 1
        reward, solved, valid = self.judge(action)
        terminated = solved or (self.left <= 0 and self.ends == "terminated")
        truncated = self.left <= 0 and not terminated
        self.over = terminated or truncated
        info = {**self.info(), "success": solved, "action_valid": valid}
        return self.shown(), reward, terminated, truncated, info

    def info(self) -> dict[str, Any]:
        return {}


# --- text ---


class Sum(Task):
    """Free text, one step: a sum."""

    observation_space = action_space = AnyText()
    instructions = "Add the two numbers. Answer with the sum alone."
    optimal_success = optimal_return = 1.0

    def draw(self, rng):
        self.numbers = rng.integers(1, 4, 2).tolist()

    def shown(self):
        return f"{self.numbers[0]} + {self.numbers[1]} = ?"

    def judge(self, action):
        right = action.strip() == str(sum(self.numbers))
        return float(right), right, action.strip().isdigit()

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(2, 6))

    def solver(self):
        return lambda observation: str(sum(int(part) for part in observation.split() if part.isdigit()))


class Reverse(Task):
    """Free text over a charset, one step: a word backwards."""

    observation_space = spaces.Text(20, charset="ab :")
    action_space = spaces.Text(2, min_length=2, charset="ab")
    instructions = "Write the word after the colon backwards."

    def draw(self, rng):
        self.word = "".join(rng.choice(list("ab"), 2))

    def shown(self):
        return f"ab: {self.word}"

    def judge(self, action):
        right = action == self.word[::-1]
        return float(right), right, action in self.action_space

    def solver(self):
        return lambda observation: observation[:-3:-1]


class Higher(Task):
    """Text, several steps: a hidden number."""

    observation_space = action_space = AnyText()
    instructions = "Find the number from 1 to 9 in five tries. Answer with a number alone."
    turns = 5
    said = "Guess."

    def draw(self, rng):
        self.hidden, self.said = int(rng.integers(1, 10)), "Guess."

    def shown(self):
        return self.said

    def judge(self, action):
        valid = action in map(str, range(1, 10))
        guess = int(action) if valid else 0
        right = guess == self.hidden
        self.said = "No." if not valid else "Found." if right else "Higher." if guess < self.hidden else "Lower."
        return float(right), right, valid

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(1, 9))


class Errand(Task):
    """Text with listed actions: the key of the colour that the door has."""

    observation_space = action_space = AnyText()
    instructions = "Take the key of the colour of the door."
    turns = 3
    keys = ("take the red key", "take the green key", "take the blue key")

    def draw(self, rng):
        self.colour = ("red", "green", "blue")[rng.integers(3)]

    def info(self):
        return {"admissible_commands": list(self.keys)}

    def shown(self):
        return f"The door is {self.colour}."

    def judge(self, action):
        right = action == f"take the {self.colour} key"
        self.left = 0 if action in self.keys else self.left
        return float(right), right, action in self.keys


class Price(Task):
    """Text, three steps: find the hidden price by its answers."""

    observation_space = action_space = AnyText()
    instructions = "Offer 1 to 9 for a thing. You buy it at its price only, and hear if your offer was too low."
    turns = 3
    said = "Your offer?"

    def draw(self, rng):
        self.price, self.said = int(rng.integers(1, 10)), "Your offer?"

    def shown(self):
        return self.said

    def judge(self, action):
        valid = action in map(str, range(1, 10))
        right = valid and int(action) == self.price
        self.said = "Sold." if right else "Too low." if valid and int(action) < self.price else "No."
        return float(right), right, valid

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(1, 9))


class Dark(Price):
    """Text, one step: a number that only the reward shows. All episodes begin alike."""

    turns = 1

    instructions = "Name a number from 1 to 9."
    optimal_success = optimal_return = 1 / 9

    def judge(self, action):
        right = action == str(self.price)
        self.said = "Over."
        return float(right), right, action in map(str, range(1, 10))


class Waiter(Task):
    """Text, several steps, most of which need no action: wait until the light is green."""

    observation_space = action_space = AnyText()
    instructions = "Wait at red, go at green. Answer with wait or go."
    turns = 8

    def draw(self, rng):
        self.red = int(rng.integers(0, 3))

    def shown(self):
        return "The light is green." if self.red == 0 else "The light is red."

    def judge(self, action):
        right = action == "go" and self.red == 0
        if action == "go":
            self.left = 0
        self.red -= 1
        return float(right), right, action in ("wait", "go")

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: rng.choice(("wait", "go"))


class Walker(Task):
    """Text, with a state key that is Markov: walk to a place on a line."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": [], "markov_state_key": True}
    observation_space = action_space = AnyText()
    instructions = "Walk to the goal. Answer with left or right."
    turns = 6

    def draw(self, rng):
        self.place, self.goal = 3, int(rng.choice([0, 1, 5, 6]))

    def shown(self):
        return f"You are at {self.place}, the goal is at {self.goal}."

    def info(self):
        return {"state_key": (self.place, self.goal, self.left)}

    def judge(self, action):
        if valid := action in ("left", "right"):
            self.place += 1 if action == "right" else -1
        right = self.place == self.goal
        return float(right), right, valid

    def random_policy(self, seed):
        rng = random.Random(seed)
        return lambda observation: rng.choice(("left", "right"))

    def solver(self):
        def policy(observation):
            place, goal = (int(part.strip(",.")) for part in observation.split() if part.strip(",.").isdigit())
            return "left" if goal < place else "right"

        return policy


# --- Discrete ---


class Signs(Task):
    """Discrete with names, one step: turn as the sign says."""

    observation_space = spaces.Discrete(4)
    action_space = spaces.Discrete(4)
    action_names = ("north", "east", "south", "west")
    instructions = "The number of the wind is shown: 0 north, 1 east, 2 south, 3 west. Turn against it."

    def draw(self, rng):
        self.wind = int(rng.integers(4))

    def shown(self):
        return self.wind

    def judge(self, action):
        right = int(action) == (self.wind + 2) % 4
        return float(right), right, True


class Coin(Task):
    """Discrete, one step: a fair coin that nobody sees."""

    observation_space = spaces.Discrete(1)
    action_space = spaces.Discrete(2)
    instructions = "Guess the coin: 0 heads, 1 tails."
    optimal_success = optimal_return = 0.5

    def draw(self, rng):
        self.coin = int(rng.integers(2))

    def shown(self):
        return 0

    def judge(self, action):
        right = int(action) == self.coin
        return float(right), right, True


class Masked(Signs):
    """Discrete with a mask of int8: the move that is not allowed raises."""

    kind: Any = np.int8
    turns = 3

    def draw(self, rng):
        super().draw(rng)
        self.closed = (self.wind + 1) % 4

    def info(self):
        mask = np.ones(4, np.int8)
        mask[self.closed] = 0
        return {"action_mask": mask.tolist() if self.kind is list else mask.astype(self.kind)}

    def judge(self, action):
        if int(action) == self.closed:
            return 0.0, False, False
        return super().judge(action)


class Strictly(Masked):
    """Discrete with a mask, in which the environment raises at what the mask forbids."""

    kind = np.uint8

    def judge(self, action):
        assert int(action) != self.closed, "illegal move"
        return super().judge(action)


class Lift(Task):
    """Discrete that starts at 5, several steps: go to a floor."""

    observation_space = spaces.MultiDiscrete([4, 4])
    action_space = spaces.Discrete(4, start=5)
    instructions = "The first number is your floor, the second that of your guest. Floor 0 is button 5, 1 is 6 ..."
    turns = 2

    def draw(self, rng):
        self.here, self.guest = 0, int(rng.integers(1, 4))

    def shown(self):
        return np.array([self.here, self.guest])

    def judge(self, action):
        self.here = int(action) - 5
        right = self.here == self.guest
        return float(right), right, True


class Hundreds(Task):
    """Discrete with 300 actions whose numbers the rules explain."""

    observation_space = spaces.Box(0, 299, (1,), np.int64)
    action_space = spaces.Discrete(300)
    instructions = "Answer with a number that differs from the one shown by less than 50."

    def draw(self, rng):
        self.number = int(rng.integers(300))

    def shown(self):
        return np.array([self.number])

    def judge(self, action):
        right = abs(int(action) - self.number) < 50
        return float(right), right, True


class Catch(Task):
    """Discrete, several steps, truncated at the end: stay under the ball."""

    observation_space = spaces.Dict({"you": spaces.Discrete(5), "ball": spaces.Discrete(5)})
    action_space = spaces.Discrete(3)
    instructions = "Stay under the ball: 0 left, 1 stay, 2 right. You have to be there in the tenth turn."
    turns = 10
    ends = "truncated"

    def draw(self, rng):
        self.you, self.ball = 2, int(rng.integers(5))

    def shown(self):
        return {"you": self.you, "ball": self.ball}

    def step(self, action):
        self.you = min(4, max(0, self.you + int(action) - 1))
        if self.over:
            raise gym.error.ResetNeeded("the episode is over")
        self.left -= 1
        self.over = self.left == 0
        met = self.you == self.ball
        info = {"success": met and self.over}
        if self.left == 5:
            self.ball = int(self.np_random.integers(5))
        return self.shown(), 0.1 * met, False, self.over, info


class Fuse(Task):
    """Discrete, ends by itself after some steps, whatever is done: the returns differ by what is done."""

    observation_space = spaces.Discrete(3)
    action_space = spaces.Discrete(3)
    instructions = "Answer each turn with the number shown. The fuse burns for two to four turns."

    def draw(self, rng):
        self.turns_left, self.number, self.right = int(rng.integers(2, 5)), int(rng.integers(3)), True

    def shown(self):
        return self.number

    def step(self, action):
        met = int(action) == self.number
        self.right = self.right and met
        self.turns_left -= 1
        self.number = int(self.np_random.integers(3))
        over = self.turns_left <= 0
        return self.shown(), float(met), over, False, {"success": over and self.right}


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
    """An image, which only ``images`` can show, Discrete."""

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
    """Sound environment."""

    make: Make
    kind: str
    """Spaces and ends, for the table."""
    lacks: frozenset[str] = frozenset()
    """Checks that say what it does not have, or that nothing can be learned; all others are silent."""
    options: Mapping[str, Any] = {}
    known_to_cards: frozenset[str] = frozenset({"separate tasks"})
    """Warnings of a card that are true: most have few tasks."""


_COPY = frozenset({"separate tasks", "answer in the observation"})  # the answer is what is shown

SOUND = {
    "a sum": Sound(Sum, "text, one step"),
    "a word backwards": Sound(Reverse, "text over a charset, one step"),
    "a hidden number": Sound(Higher, "text, several steps"),
    "a door and keys": Sound(Errand, "text, listed actions"),
    "a hidden price": Sound(Price, "text, secret drawn at reset"),
    "a number in the dark": Sound(Dark, "text, one step, all begin alike", frozenset({"blind baseline"})),
    "a traffic light": Sound(Waiter, "text, mostly waiting"),
    "a walk": Sound(Walker, "text, Markov state key, solver"),
    "a wind vane": Sound(Signs, "Discrete, names, one step"),
    "a fair coin": Sound(Coin, "Discrete, nothing to see", frozenset({"blind baseline"})),
    "a mask of int8": Sound(Masked, "Discrete, mask"),
    "a mask of uint8": Sound(masked(np.uint8), "Discrete, mask"),
    "a mask of truth values": Sound(masked(bool), "Discrete, mask"),
    "a mask in a list": Sound(masked(list), "Discrete, mask"),
    "a lift": Sound(Lift, "Discrete from 5; MultiDiscrete shown"),
    "300 explained numbers": Sound(Hundreds, "Discrete; Box of integers shown", known_to_cards=_COPY),
    "a ball": Sound(Catch, "Discrete, truncates; Dict shown"),
    "a fuse": Sound(Fuse, "Discrete, ends by itself", known_to_cards=_COPY),
    "a target": Sound(Aim, "Box, one step", known_to_cards=_COPY),
    # Its rewards are negative, and no settlement is declared: to write no action pays more than to play.
    "a rolling ball": Sound(
        Steer, "Box, truncates; matrix shown", known_to_cards=frozenset({"separate tasks", "stalling", "ending early"})
    ),
    "a double": Sound(Whole, "Box of integers, one step"),
    "a click": Sound(Click, "Dict, one step; Dict with text shown"),
    "orders": Sound(Orders, "Dict of Text and Box; nested Dict shown"),
    "a lock": Sound(Lock, "MultiDiscrete; Tuple shown"),
    "bits": Sound(Flip, "MultiBinary, one step"),
    "a majority": Sound(Pair, "Tuple; Sequence shown"),
    "a bright corner": Sound(Bits, "Discrete; matrix shown"),
    "an image": Sound(Picture, "Discrete; image shown, images=only", options={"images": "only"}),
    "nothing declared": Sound(Bare, "Discrete, truncates; Box shown", frozenset({"instructions", "success"})),
    "a turn limit": Sound(Catch, "Discrete, cut off by turn_limit", options={"turn_limit": 6, "success": 0.3}),
    # An empty answer is unreadable, and neither a turn nor an end unless end_after_invalid makes it one.
    "boxed answers": Sound(
        Sum,
        "text, action_format=boxed",
        options={"action_format": "boxed"},
        known_to_cards=frozenset({"separate tasks", "stalling"}),
    ),
    "high card": Sound(HighCard, "text, two seats", frozenset({"blind baseline"})),
    "high card, observed": Sound(Observed, "text, two seats, observe()", frozenset({"blind baseline"})),
}


# ---------------------------------------------------------------------------------------------------------------------
# Planted faults
# ---------------------------------------------------------------------------------------------------------------------


class Planted(NamedTuple):
    """Environment with a fault."""

    check: str
    """Check of ``validate`` or ``card`` that must report it."""
    fault: str
    make: Make
    kind: str
    options: Mapping[str, Any] = {}


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


class Waits(Lift):
    """Every turn pays, and the goal ends the episode."""

    turns = 30

    def judge(self, action):
        reward, right, valid = super().judge(action)
        return reward + 0.1, right, valid


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

    observation_space = spaces.Box(-1e10, 1e10, (3,), np.float64)

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


PLANTED = [
    Planted("construction", "an argument has no default", Sized, "text"),
    Planted("construction", "the maker makes no environment", lambda: "no environment", "-"),
    Planted(
        "reset",
        "returns the observation alone",
        changed(Signs, reset=lambda self, *, seed=None, options=None: 1),
        "Discrete",
    ),
    Planted("reset", "info is None", resetting(Click, lambda self, shown, info: (shown, None)), "Dict"),
    Planted(
        "reset",
        "takes no options",
        changed(Lock, reset=lambda self, seed=None: Lock.reset(self, seed=seed)),
        "MultiDiscrete",
    ),
    Planted("step", "returns four values", stepping(Aim, lambda self, *step: step[:4]), "Box"),
    Planted("step", "a reward is NaN", with_reward(Flip, lambda paid: float("nan")), "MultiBinary"),
    Planted("step", "a reward is None", with_reward(Lock, lambda paid: None), "MultiDiscrete"),
    Planted(
        "step",
        "terminated is a number",
        stepping(Fuse, lambda self, *step: (*step[:2], int(step[2]), *step[3:])),
        "Discrete",
    ),
    Planted("spaces", "a number beyond its bounds", showing(Aim, lambda self, shown: shown + 3), "Box"),
    Planted("spaces", "a state that is not among them", showing(Signs, lambda self, shown: shown + 1), "Discrete"),
    Planted("spaces", "a key is missing", showing(Catch, lambda self, shown: {"you": self.you}), "Dict"),
    Planted(
        "spaces",
        "a character that is not in the charset",
        showing(Reverse, lambda self, shown: f"{shown}!"),
        "text over a charset",
    ),
    Planted("spaces", "reset shows None", resetting(Bits, lambda self, shown, info: (None, info)), "matrix"),
    Planted("words", "an image that nothing shows", Picture, "image"),
    Planted("words", "the observation is bytes", showing(Sum, lambda self, shown: shown.encode()), "text"),
    Planted("words", "terminal colours", showing(Sum, lambda self, shown: f"\x1b[1m{shown}"), "text"),
    Planted("actions", "300 numbers that nothing explains", changed(Hundreds, instructions=None), "Discrete"),
    Planted(
        "determinism",
        "a coin of the global generator",
        drawing(Coin, lambda self: setattr(self, "coin", random.getrandbits(1))),
        "Discrete",
    ),
    Planted(
        "determinism",
        "shows the clock",
        showing(Aim, lambda self, shown: np.array([time.perf_counter() % 1, shown[1]], np.float32)),
        "Box",
    ),
    Planted("own generator", "seeds numpy.random", drawing(Lift, lambda self: np.random.seed(0)), "Discrete"),
    Planted("fresh start", "counts its episodes", Remembers, "MultiDiscrete"),
    Planted(
        "variety", "every seed has the same wind", drawing(Signs, lambda self: setattr(self, "wind", 1)), "Discrete"
    ),
    Planted(
        "variety",
        "every seed has the same hidden price",
        drawing(Price, lambda self: setattr(self, "price", 5)),
        "text",
    ),
    Planted("end", "never ends", NoEnd, "Discrete"),
    Planted(
        "end",
        "raises in its third step",
        changed(Fuse, shown=lambda self: 1 // (self.turns_left - 1) if self.turns_left == 1 else self.number),
        "Discrete",
    ),
    Planted(
        "end",
        "terminated and truncated",
        stepping(Steer, lambda self, *step: (*step[:2], step[2] or step[3], step[2] or step[3], step[4])),
        "Box",
    ),
    Planted("after the end", "pays on", PaysOn, "text"),
    Planted(
        "invalid actions",
        "int() of the action",
        changed(Sum, judge=lambda self, action: (float(int(action)), True, True)),
        "text",
    ),
    Planted("invalid actions", "raises at what the mask forbids", Strictly, "Discrete, mask"),
    Planted(
        "invalid actions",
        "does not say what is valid",
        with_info(Sum, lambda self, info: {"success": info["success"]}),
        "text",
    ),
    Planted("instructions", "there are none", changed(Aim, instructions=property(no_rules)), "Box"),
    Planted("instructions", "they are bytes", changed(Click, instructions=b"Click."), "Dict"),
    Planted(
        "seats", "a seat is paid that was never asked", partial(HighCard, "pays without being asked"), "text, two seats"
    ),
    Planted(
        "hidden information",
        "shows a card of the other seat at times",
        partial(HighCard, "sometimes a line"),
        "text, two seats",
    ),
    Planted("success", "is not declared", with_info(Steer, lambda self, info: {}), "Box"),
    Planted("success", "is the text 'no'", with_info(Lock, lambda self, info: {"success": "no"}), "MultiDiscrete"),
    Planted(
        "success",
        "is not declared in the last step",
        with_info(Higher, lambda self, info: {} if self.over else info),
        "text",
    ),
    Planted("reward", "is always 0", with_reward(Bits, lambda paid: 0.0), "matrix"),
    Planted("blind baseline", "the highest offer always buys", Purse, "text"),
    Planted("blind baseline", "the wind is nearly always the same", Mostly, "Discrete"),
    Planted(
        "solver", "does worse than random play", changed(Walker, solver=lambda self: lambda observation: "stay"), "text"
    ),
    Planted("solver", "a wrong optimum is declared", changed(Sum, optimal_success=0.5), "text"),
    Planted(
        "state key",
        "leaves out the place",
        changed(Walker, info=lambda self: {"state_key": (self.goal, self.left)}),
        "text",
    ),
    Planted("info", "holds a function", with_info(Flip, lambda self, info: {**info, "f": lambda: 1}), "MultiBinary"),
    Planted("info", "200 kB a step", with_info(Whole, lambda self, info: {**info, "x": "x" * 200_000}), "Box"),
    Planted("size", "repeats what was said", Told, "text"),
    Planted("speed", "a step takes 0.12 s", Slow, "Discrete"),
    Planted("threads", "instances share their state", Shares, "Discrete"),
    Planted("threads", "works in the main thread only", MainThread, "Dict"),
    Planted("processes", "shows the order of a set", HashOrder, "text"),
    Planted("closing", "leaves a file open", Leaks, "Box"),
    Planted("gymnasium", "returns the same array twice", changed(Aim, shown=lambda self: self.point), "Box"),
    Planted("constant action", "the wind is nearly always the same", Mostly, "Discrete"),
    Planted("stalling", "a text that is no number pays", PaysUnread, "text"),
    Planted("ending early", "every turn costs, and no settlement is declared", CostsTurns, "Discrete"),
    Planted("judgement in the action", "takes the word of the model", Trusts, "text"),
    Planted("answer in the observation", "ends with the answer; no solver", EndsWithAnswer, "text over a charset"),
    Planted("tasks by seed", "the last digit of the seed", SeedDigit, "Box"),
    Planted("seed in the observation", "one of the numbers is the seed", ShowsSeed, "Box"),
    Planted("separate tasks", "four tasks", TenTasks, "Discrete"),
]


class Named:
    """All of them by a name, as the commands take them: ``planted.py:Named.sound_0``, ``planted.py:Named.fault_0``."""


for _number, _sound in enumerate(SOUND.values()):
    setattr(Named, f"sound_{_number}", staticmethod(_sound.make))
for _number, _planted in enumerate(PLANTED):
    setattr(Named, f"fault_{_number}", staticmethod(_planted.make))


def tables(reasons: Mapping[str, str]) -> str:
    """Return the tables of the documentation.

    Args:
        reasons: Reason of each check, by its name.
    """
    faults = "\n".join(
        f"| {check} | {why} | {'; '.join(f'{one.fault} ({one.kind})' for one in PLANTED if one.check == check)} |"
        for check, why in reasons.items()
    )
    sound = "\n".join(f"| {name} | {one.kind} | {', '.join(sorted(one.lacks))} |" for name, one in SOUND.items())
    return (
        f"| check | reason | planted faults (spaces) |\n|---|---|---|\n{faults}\n\n"
        "## Sound environments\n\n"
        "No check has a problem or a warning, except for what the last column names: what is not declared, or that\n"
        "observations cannot help.\n\n"
        f"| environment | spaces and ends | said |\n|---|---|---|\n{sound}\n"
    )
