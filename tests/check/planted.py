# mypy: disable-error-code="override, misc, assignment"
# mypy: disable-error-code="attr-defined, arg-type, return-value"
"""Environments with one planted fault each, over all kinds of spaces, and the check that must find it."""

import random
import time
from functools import partial

import numpy as np
from gymnasium import spaces
from support.seat_games import Observed

from check.faulty import (
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
from check.sound_spaces import Aim, Bits, Click, Flip, Lock, Picture, Steer, Whole
from check.sound_text import Catch, Coin, Fuse, Higher, Hundreds, Lift, Price, Reverse, Signs, Strictly, Sum, Walker

PLANTED = [
    Planted("interface", "an argument has no default", Sized, "needs an argument in env_kwargs: size"),
    Planted("interface", "the maker makes no environment", lambda: "no environment", "makes no gymnasium.Env: str"),
    Planted(
        "interface",
        "returns the observation alone",
        changed(Signs, reset=lambda self, *, seed=None, options=None: 1),
        "reset returned 1",
    ),
    Planted(
        "interface", "info is None", resetting(Click, lambda self, shown, info: (shown, None)), "reset returned .*None"
    ),
    Planted(
        "interface",
        "takes no options",
        changed(Lock, reset=lambda self, seed=None: Lock.reset(self, seed=seed)),
        "reset.* raised TypeError.*'options'",
    ),
    Planted(
        "interface",
        "returns four values",
        stepping(Aim, lambda self, *step: step[:4]),
        "must be a python dictionary|old step API",
    ),
    Planted("interface", "a reward is NaN", with_reward(Flip, lambda paid: float("nan")), "gave the reward nan"),
    Planted("interface", "a reward is None", with_reward(Lock, lambda paid: None), "gave the reward None"),
    Planted(
        "interface",
        "terminated is a number",
        stepping(Fuse, lambda self, *step: (*step[:2], int(step[2]), *step[3:])),
        "gave terminated = 0",
    ),
    Planted(
        "interface",
        "info is a list",
        stepping(Signs, lambda self, *step: (*step[:4], [])),
        "`info`.*must be a python dictionary",
    ),
    Planted(
        "interface", "a number beyond its bounds", showing(Aim, lambda self, shown: shown + 3), "which is not in Box"
    ),
    Planted(
        "interface",
        "a state that is not among them",
        showing(Signs, lambda self, shown: shown + 1),
        "reset gave 4, which is not in Discrete",
    ),
    Planted(
        "interface", "a key is missing", showing(Catch, lambda self, shown: {"you": self.you}), "which is not in Dict"
    ),
    Planted(
        "interface",
        "a character that is not in the charset",
        showing(Reverse, lambda self, shown: f"{shown}!"),
        "not within the observation space",
    ),
    Planted(
        "interface",
        "reset shows None",
        resetting(Bits, lambda self, shown, info: (None, info)),
        "reset gave None, which is not in Box",
    ),
    Planted("text", "an image that nothing shows", Picture, "cannot be converted to text: an array of shape"),
    Planted(
        "interface",
        "the observation is bytes",
        showing(Sum, lambda self, shown: shown.encode()),
        "gave b'.*, which is not in",
    ),
    Planted("text", "terminal colours", showing(Sum, lambda self, shown: f"\x1b[1m{shown}"), "control characters"),
    Planted("text", "half of a surrogate pair", showing(Sum, lambda self, shown: "\udcff"), "a lone surrogate"),
    Planted("text", "nothing", showing(Sum, lambda self, shown: ""), "every observation is empty"),
    Planted(
        "rules",
        "300 numbers that nothing explains",
        changed(Hundreds, instructions=None),
        "nothing says what 300 numbers mean",
    ),
    Planted(
        "repeats",
        "a coin of the global generator",
        drawing(Coin, lambda self: setattr(self, "coin", random.getrandbits(1))),
        "draws from a global generator",
    ),
    Planted(
        "repeats",
        "shows the clock",
        showing(Aim, lambda self, shown: np.array([time.perf_counter() % 1, shown[1]], np.float32)),
        "turn 0: observation",
    ),
    Planted(
        "repeats", "seeds numpy.random", drawing(Lift, lambda self: np.random.seed(0)), "changes a global generator"
    ),
    Planted("repeats", "counts its episodes", Remembers, "a used instance differs|turn 0: observation"),
    Planted("repeats", "is set up only after its end", LeftOver, "left in the middle of an episode differs"),
    Planted(
        "tasks",
        "every seed has the same wind",
        drawing(Signs, lambda self: setattr(self, "wind", 1)),
        "seeds gave the same task",
    ),
    Planted(
        "tasks",
        "every seed has the same hidden price",
        drawing(Price, lambda self: setattr(self, "price", 5)),
        "seeds gave the same task",
    ),
    Planted("end", "never ends", NoEnd, "did not end in 1,000 turns"),
    Planted(
        "interface",
        "raises in its third step",
        changed(Fuse, shown=lambda self: 1 // (self.turns_left - 1) if self.turns_left == 1 else self.number),
        "raised ZeroDivisionError",
    ),
    Planted(
        "interface",
        "terminated and truncated",
        stepping(Steer, lambda self, *step: (*step[:2], step[2] or step[3], step[2] or step[3], step[4])),
        "gave terminated and truncated",
    ),
    Planted("end", "pays on", PaysOn, "pays 3 for three steps after the end"),
    Planted(
        "invalid actions",
        "int() of the action",
        changed(
            Sum,
            judge=lambda self, action: (
                float(int(action) == sum(self.numbers)),
                int(action) == sum(self.numbers),
                True,
            ),
        ),
        r"step\(''\).* raised ValueError: invalid literal",
    ),
    Planted(
        "invalid actions",
        "raises at what the mask forbids",
        Strictly,
        "which the mask forbids, raised AssertionError: illegal move",
    ),
    Planted(
        "invalid actions",
        "does not say what is valid",
        with_info(Sum, lambda self, info: {"success": info["success"]}),
        "info has no 'action_valid'",
    ),
    Planted("rules", "there are none", changed(Aim, instructions=property(no_rules)), "no instructions of its own"),
    Planted("rules", "they are bytes", changed(Click, instructions=b"Click."), "instructions are b'Click.'"),
    Planted("rules", "they are long", changed(Sum, instructions="Add. " * 1000), "5,000 characters of instructions"),
    Planted(
        "seats",
        "shows a card of the other seat at times",
        partial(Observed, "sometimes a line"),
        "is shown 'You are player",
    ),
    Planted("success", "is not declared", with_info(Steer, lambda self, info: {}), "success is not declared"),
    Planted(
        "interface", "is the text 'no'", with_info(Lock, lambda self, info: {"success": "no"}), "gave success = 'no'"
    ),
    Planted(
        "success",
        "is not declared in the last step",
        with_info(Higher, lambda self, info: {} if self.over else info),
        "60 of 60 episodes did not declare success in their last step",
    ),
    Planted("success", "is always 0", with_reward(Bits, lambda paid: 0.0), "the return of random play is always 0"),
    Planted("blind", "the highest offer always buys", Purse, "always '9', without reading"),
    Planted("blind", "the wind is nearly always the same", Mostly, "always 'south', without reading"),
    Planted(
        "success",
        "does worse than random play",
        changed(Walker, solver=lambda self: lambda observation: "stay"),
        "less than random play",
    ),
    Planted(
        "success", "a wrong optimum is declared", changed(Sum, optimal_success=0.5), "its declared optimum is 0.500"
    ),
    Planted(
        "state key",
        "leaves out the place",
        changed(Walker, state_key=property(lambda self: (self.goal, self.left))),
        "after the key",
    ),
    Planted(
        "state key", "is a list", changed(Walker, state_key=property(lambda self: [self.left])), "must be hashable"
    ),
    Planted(
        "interface",
        "holds a function",
        with_info(Flip, lambda self, info: {**info, "f": lambda: 1}),
        "info does not pickle",
    ),
    Planted(
        "interface",
        "200 kB a step",
        with_info(Whole, lambda self, info: {**info, "x": "x" * 200_000}),
        "info has 200 kB a step",
    ),
    Planted(
        "interface",
        "action_valid is a text",
        stepping(Sum, lambda self, *step: (*step[:4], {**step[4], "action_valid": "yes"})),
        "gave action_valid = 'yes'",
    ),
    Planted("interface", "has a spec of its own", changed(Sum, spec="easy"), "no attribute 'id'"),
    Planted(
        "text",
        "declares a type",
        changed(Sum, action_space=str),
        "must be a gymnasium.Space",
        also=frozenset({"interface"}),
    ),
    Planted("text", "repeats what was said", Told, "each observation repeats the one before"),
    Planted(
        "text",
        "long",
        showing(Higher, lambda self, shown: f"{shown} {str(self.left) * 20_000}"),
        "characters of observations an episode",
    ),
    Planted("speed", "a step takes 0.12 s", Slow, "a step takes 0.1"),
    Planted("repeats", "instances share their state", Shares, "in threads: seed"),
    Planted("repeats", "works in the main thread only", MainThread, "in threads: .*signal only works in main thread"),
    Planted("repeats", "shows the order of a set", HashOrder, "in another process"),
    Planted("closing", "leaves a file open", Leaks, "left [5-9] files"),
    Planted("closing", "closes once only", ClosesOnce, "to close it again raised RuntimeError: closed already"),
    Planted(
        "interface",
        "returns the same array twice",
        changed(Aim, shown=lambda self: self.point),
        "check_env raised AssertionError: .*share an object",
    ),
    Planted(
        "interface",
        "fewer numbers than in its space",
        changed(Aim, observation_space=spaces.Box(-1, 1, (3,))),
        "which is not in Box",
    ),
    Planted("blind", "the wind is nearly always the same", Mostly, "always 'south', without reading"),
    Planted("exploits", "a text that is no number pays", PaysUnread, "'stalling' pays", frozenset({"success"})),
    Planted(
        "exploits", "every turn costs, and no settlement is declared", CostsTurns, "pays 0.000", frozenset({"success"})
    ),
    Planted("exploits", "every try costs, and an unread action does not", CostsTries, "pays 0.000"),
    Planted("exploits", "takes the word of the model", Trusts, "a judgement in the action reaches 1.000"),
    Planted("exploits", "ends with the answer; no solver", EndsWithAnswer, "copying the last word reaches 1.000"),
    Planted("tasks", "the last digit of the seed", SeedDigit, "seeds that differ by 10 give the same task"),
    Planted("tasks", "one of the numbers is the seed", ShowsSeed, "episodes show their seed"),
    Planted("tasks", "four tasks", TenTasks, "4 different tasks in"),
]
