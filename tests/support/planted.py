# mypy: disable-error-code="override, misc, assignment"
# mypy: disable-error-code="attr-defined, arg-type, return-value"
"""Environments over all kinds of spaces: sound ones, and the same with one planted fault each.

``SOUND`` names sound environments, and ``PLANTED`` has the check that must report each fault.
"""

import random
import time
from functools import partial

import numpy as np
from gymnasium import spaces

from support.faulty import (
    ClosesOnce,
    CostsTries,
    CostsTurns,
    EndsWithAnswer,
    HashOrder,
    Leaks,
    LeftOver,
    MainThread,
    Mostly,
    NoEnd,
    PaysOn,
    PaysUnread,
    Planted,
    Purse,
    Remembers,
    SeedDigit,
    Shares,
    ShowsSeed,
    Sized,
    Slow,
    TenTasks,
    Told,
    Trusts,
    changed,
    drawing,
    no_rules,
    resetting,
    showing,
    stepping,
    with_info,
    with_reward,
)
from support.seat_games import HighCard, Observed
from support.sound_spaces import SOUND, Aim, Bits, Click, Flip, Lock, Picture, Steer, Whole
from support.sound_text import Catch, Coin, Fuse, Higher, Hundreds, Lift, Price, Reverse, Signs, Strictly, Sum, Walker

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
    Planted("step", "info is a list", stepping(Signs, lambda self, *step: (*step[:4], [])), "Discrete"),
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
    Planted("words", "half of a surrogate pair", showing(Sum, lambda self, shown: "\udcff"), "text"),
    Planted("words", "nothing", showing(Sum, lambda self, shown: ""), "text"),
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
    Planted("fresh start", "is set up only after its end", LeftOver, "text"),
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
    Planted("instructions", "they are long", changed(Sum, instructions="Add. " * 1000), "text"),
    Planted(
        "seats", "a seat is paid that was never asked", partial(HighCard, "pays without being asked"), "text, two seats"
    ),
    Planted(
        "seats",
        "shows a card of the other seat at times",
        partial(Observed, "sometimes a line"),
        "text, two seats, observe()",
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
        changed(Walker, state_key=property(lambda self: (self.goal, self.left))),
        "text",
    ),
    Planted("state key", "is a list", changed(Walker, state_key=property(lambda self: [self.left])), "text"),
    Planted("info", "holds a function", with_info(Flip, lambda self, info: {**info, "f": lambda: 1}), "MultiBinary"),
    Planted("info", "200 kB a step", with_info(Whole, lambda self, info: {**info, "x": "x" * 200_000}), "Box"),
    Planted(
        "info",
        "action_valid is a text",
        stepping(Sum, lambda self, *step: (*step[:4], {**step[4], "action_valid": "yes"})),
        "text",
    ),
    Planted("size", "repeats what was said", Told, "text"),
    Planted("size", "long", showing(Higher, lambda self, shown: f"{shown} {str(self.left) * 20_000}"), "text"),
    Planted("speed", "a step takes 0.12 s", Slow, "Discrete"),
    Planted("threads", "instances share their state", Shares, "Discrete"),
    Planted("threads", "works in the main thread only", MainThread, "Dict"),
    Planted("processes", "shows the order of a set", HashOrder, "text"),
    Planted("closing", "leaves a file open", Leaks, "Box"),
    Planted("closing", "closes once only", ClosesOnce, "Box"),
    Planted("gymnasium", "returns the same array twice", changed(Aim, shown=lambda self: self.point), "Box"),
    Planted(
        "gymnasium", "fewer numbers than in its space", changed(Aim, observation_space=spaces.Box(-1, 1, (3,))), "Box"
    ),
    Planted("constant action", "the wind is nearly always the same", Mostly, "Discrete"),
    Planted("stalling", "a text that is no number pays", PaysUnread, "text"),
    Planted("ending early", "every turn costs, and no settlement is declared", CostsTurns, "Discrete"),
    Planted("ending early", "every try costs, and an unread action does not", CostsTries, "text"),
    Planted("judgement in the action", "takes the word of the model", Trusts, "text"),
    Planted("answer in the observation", "ends with the answer; no solver", EndsWithAnswer, "text over a charset"),
    Planted("tasks by seed", "the last digit of the seed", SeedDigit, "Box"),
    Planted("seed in the observation", "one of the numbers is the seed", ShowsSeed, "Box"),
    Planted("separate tasks", "four tasks", TenTasks, "Discrete"),
]


REPORTED: dict[str, tuple[str, ...]] = {
    "construction": ("problem: raised TypeError: Sized.__init__() missing 1", "problem: made str 'no environment'"),
    "reset": (
        "problem: returned int 1",
        "problem: info is NoneType None",
        "problem: reset(seed=0, options=None) raised TypeError",
    ),
    "step": (
        "problem: returned 4 values",
        "problem: gave the reward float nan",
        "problem: gave the reward NoneType None",
        "problem: gave terminated = int 0",
        "problem: gave info = list []",
    ),
    "spaces": (
        "problem: of float32 (2,), which is not in Box(-1.0, 1.0",
        "problem: reset gave int 4, which is not in Discrete(4)",
        "problem: reset gave dict {'you': 2}, which is not in Dict(",
        "problem: is not in Text(1, 20, charset= :ab): it has '!'",
        "problem: reset gave NoneType None, which is not in Box(0, 9",
    ),
    "words": (
        "problem: cannot be converted to text: an array of shape (32, 32, 3)",
        "problem: the observation must be text, got bytes",
        "warning: control characters in '\\x1b[1m",
        "problem: a lone surrogate in an observation",
        "problem: every observation is empty",
    ),
    "actions": ("warning: an integer from 0 to 299: nothing says what 300 numbers mean",),
    "determinism": ("problem: reward ", "problem: seed 0, turn 0: observation "),
    "own generator": ("warning: the episode with seed 0 changed a global generator",),
    "fresh start": (
        "problem: a used instance differs from a new one: seed 1, turn 0",
        "problem: an instance left in the middle of an episode differs",
    ),
    "variety": (
        "warning: 10 seeds gave the same task",
        "warning: 10 seeds",
    ),
    "end": (
        "problem: did not end in 1000 turns of random play",
        "problem: raised ZeroDivisionError: ",
        "warning: gave terminated and truncated",
    ),
    "after the end": ("warning: rewarded with another 3",),
    "invalid actions": (
        "problem: step('') raised ValueError: invalid literal",
        "problem: step(0), which the mask forbids, raised AssertionError: illegal move",
        "warning: none raised, but info has no 'action_valid'",
    ),
    "instructions": (
        "warning: none: its docstring begins 'Box, one step: hit a point.'",
        "problem: they are bytes b'Click.'",
        "warning: 5,000 characters",
    ),
    "seats": (
        "problem: seat 1 is paid 1 before it was ever to move, in turn 1, of seat 0",
        "problem: is shown 'You are player ",
    ),
    "success": (
        "warning: evaluations report returns only",
        "problem: gave info['success'] = str 'no'",
        "warning: 20 of 20 episodes did not declare it in their last step",
    ),
    "reward": ("warning: of random play, always the same",),
    "blind baseline": ("warning: with always '9'", "warning: with always 'south'"),
    "solver": ("problem: , less than random play", "problem: but the declared optimum is 0.500"),
    "state key": ("problem: after the key", "problem: a state key must be hashable"),
    "info": (
        "problem: does not pickle: ",
        "warning: 200 kB a step",
        "problem: gave info['action_valid'] = str 'yes'",
    ),
    "size": ("warning: each repeats the previous one", "warning: characters an observation"),
    "speed": ("warning: a step 1",),
    "threads": ("warning: seed ", "warning: raised ValueError: signal only works in main thread"),
    "processes": ("problem: seed 0, turn ",),
    "closing": ("warning: five closed instances left 5 files", "problem: raised RuntimeError: closed already"),
    "gymnasium": ("problem: check_env raised AssertionError", "problem: check_env raised"),
    "constant action": ("problem: always 'south' solves 0.9",),
    "stalling": ("problem: 'nothing' pays 4.000 in 20.0 turns",),
    "ending early": ("warning: more than random play", "problem: pays 0.000"),
    "judgement in the action": ("problem: solves 1.000",),
    "answer in the observation": ("warning: copy the last word solves 1.000",),
    "tasks by seed": ("problem: seeds that differ by 10 give the same task",),
    "seed in the observation": ("problem: 50 of 50 episodes show their seed",),
    "separate tasks": ("warning: 100% of 100 evaluation tasks are among 400",),
}
"""Verdicts on the planted faults and parts of the findings, by check and in the order of ``PLANTED``."""


def reported(fault: Planted) -> tuple[str, str]:
    """Return the verdict on a fault and a part of the finding."""
    faults = [one for one in PLANTED if one.check == fault.check]
    verdict, _, part = REPORTED[fault.check][faults.index(fault)].partition(": ")
    return verdict, part


class Named:
    """All of them by a name, as the commands take them: ``planted.py:Named.sound_0``, ``planted.py:Named.fault_0``."""


for _number, _sound in enumerate(SOUND.values()):
    setattr(Named, f"sound_{_number}", staticmethod(_sound.make))
for _number, _planted in enumerate(PLANTED):
    setattr(Named, f"fault_{_number}", staticmethod(_planted.make))
