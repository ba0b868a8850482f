"""The search for a blind baseline over all kinds of action spaces: it finds what brute force finds."""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import example, given, strategies as st
from support.lanes import examples

from gym_trl.evaluation.blind import BlindBaseline, search_blind
from gym_trl.evaluation.blind_play import Arena
from gym_trl.evaluation.spread import numbers_within, spread
from gym_trl.seeding import derive_seed, task_seed
from gym_trl.spaces import AnyText
from gym_trl.text.samples import ranges_in
from gym_trl.text.spaces import parse, write

DIGITS = "0123456789"
SMALL: Mapping[str, Callable[[], spaces.Space[Any]]] = {
    "Discrete": lambda: spaces.Discrete(7),
    "Discrete from 12": lambda: spaces.Discrete(90, start=12),
    "MultiDiscrete": lambda: spaces.MultiDiscrete([3, 4]),
    "MultiBinary": lambda: spaces.MultiBinary(4),
    "Box of integers": lambda: spaces.Box(-2, 2, (2,), np.int64),
    "Dict": lambda: spaces.Dict(door=spaces.Discrete(3), force=spaces.MultiBinary(2)),
    "Tuple": lambda: spaces.Tuple([spaces.Discrete(3), spaces.Discrete(4, start=-1)]),
    "OneOf": lambda: spaces.OneOf([spaces.Discrete(3), spaces.Discrete(4)]),
    "Text of two letters": lambda: spaces.Text(3, charset="ab"),
    "Text of digits": lambda: spaces.Text(2, charset=DIGITS),
}


class Paying(gym.Env[int, Any]):
    """Pays for each action an amount of its own, in one turn or several; unreadable actions never reach it."""

    observation_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any], seed: int, *, turns: int = 1, wins: bool = False) -> None:
        self.action_space, self.turns, self.wins, self.seed = space, turns, wins, seed
        self.counts: Counter[str] = Counter()
        if wins:
            known = [write(space, one) for one in spread(space, 1_000)]
            self.winner = random.Random(seed).choice(known)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = self.turns
        self.counts["reset"] += 1
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.counts["step"] += 1
        self.left -= 1
        text = write(self.action_space, action)
        over = self.left == 0
        if self.wins:
            return 0, float(text == self.winner), over, False, {"success": text == self.winner}
        return 0, derive_seed(self.seed, text) / 2**63, over, False, {}


def best_by_force(make: Callable[[], gym.Env[Any, Any]]) -> float:
    """Return the highest score of a single action, of all actions of the space."""
    space = make().action_space
    scores = []
    for action in spread(space, 1_000):
        with Arena(make, math.inf, math.inf, 0) as arena:
            played = arena.play((write(space, action),), task_seed(0, "eval", 0))
            assert played is not None
            scores.append(played.total if played.success is None else float(played.success))
    return max(scores)


@pytest.mark.parametrize("name", SMALL)
@given(st.integers(0, 2**20), st.sampled_from([1, 3]), st.booleans())
@examples(2)
def test_no_single_action_of_a_small_space_beats_what_is_found(name: str, seed: int, turns: int, wins: bool) -> None:
    def make() -> Paying:
        return Paying(SMALL[name](), seed, turns=turns, wins=wins)

    found = search_blind(make, longest=1, steps=4_000, episodes=2)
    assert found.objective == ("success" if wins else "return")
    assert found.score.mean is not None
    assert found.score.mean >= best_by_force(make) - 1e-9


@given(st.floats(-1, 1), st.integers(1, 2))
@example(0.96875, 2)  # beside the bound, which is written as an integer
@examples(1)
def test_the_best_number_of_a_box_is_found_as_on_a_fine_grid(target: float, size: int) -> None:
    class Near(Paying):
        def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
            return 0, -float(np.abs(action - target).sum()), True, False, {}

    found = search_blind(lambda: Near(spaces.Box(-1, 1, (size,)), 0), longest=1, steps=10_000, episodes=2)
    assert found.mean_return.mean is not None
    assert found.mean_return.mean > -0.01 * size


class Price(gym.Env[str, str]):
    """A price as text; paid is 10 minus the distance, so the best constant is a number that stands nowhere."""

    observation_space = AnyText()

    def __init__(self, best: int, space: spaces.Space[str], instructions: str = "") -> None:
        self.best, self.action_space, self.instructions = best, space, instructions
        self.invalid = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.price = self.best + int(self.np_random.integers(-2, 3))
        return "What does it cost?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if not (action.isascii() and action.isdigit()):
            self.invalid += 1
            return "A number, please.", 0.0, False, False, {"action_valid": False}
        return "Thank you.", 10.0 - float(abs(int(action) - self.price)), True, False, {"action_valid": True}


@pytest.mark.parametrize("declared", ["space", "text"])
@given(st.integers(2, 9_997))
@example(1964)  # beside which the best offered number pays less than nonsense
@examples(1)
def test_a_best_number_that_is_in_no_text_is_found(declared: str, best: int) -> None:
    def make() -> Price:
        if declared == "space":
            return Price(best, spaces.Text(4, charset=DIGITS))
        return Price(best, AnyText(), "Name a price from 0 to 9,999.")  # nonsense pays more than most numbers

    found = search_blind(make, longest=1, steps=20_000, episodes=20)
    near = 2 if declared == "space" else 20  # numbers share the steps with words
    assert abs(int(found.actions[0]) - best) <= near


def test_the_best_of_a_hundred_numbers_is_found_among_answers_to_nonsense() -> None:
    found = search_blind(lambda: Price(37, AnyText(), "Name a price from 1 to 100."), steps=20_000, episodes=20)
    assert abs(int(found.actions[0]) - 37) <= 1


some_space = st.sampled_from([*SMALL.values(), lambda: spaces.Box(-1, 1, (2,)), lambda: spaces.Discrete(5_000)])


@given(some_space, st.integers(0, 2**20), st.sampled_from([1, 4, None]), st.booleans())
@examples(6)
def test_a_search_tries_no_text_that_is_not_in_the_space(make_space: Any, seed: int, turns: int, wins: bool) -> None:
    env = Paying(make_space(), seed, turns=turns or 10**9, wins=wins)
    before = Counter[str]()
    held_out = task_seed(0, "eval", 0)

    class Spy(gym.Wrapper[Any, Any, Any, Any]):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            if seed == held_out:
                before.update(env.counts)
            return self.env.reset(seed=seed, options=options)

    found = search_blind(lambda: Spy(env), steps=4_000, seconds=2.0, episodes=2)
    if not isinstance(env.action_space, spaces.Text):  # whose texts reach the environment, whatever they are
        assert before.total() == found.steps
    space = env.action_space
    assert all(write(space, parse(space, action)) == action for action in found.actions)


class Deaf(Price):
    """Understands numbers alone; nothing else changes or ends an episode, and no text says what it understands."""

    instructions = "You are at a till with things of all kinds and sizes, of wood, iron and glass, for a long time."

    def __init__(self) -> None:
        super().__init__(37, AnyText(), self.instructions)

    def random_policy(self, seed: int) -> Any:
        rng = random.Random(seed)
        return lambda observation: str(rng.randint(0, 99))


class Counting(Deaf):
    """The same with success, and with a turn limit that nonsense can reach."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        self.left = 400
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        observation, reward, over, _, info = super().step(action)
        cut = not over and not self.left
        return observation, reward - 200.0 * cut, over, cut, {**info, "success": over and reward > 5}


@pytest.mark.parametrize("make", [Counting])
def test_actions_that_change_nothing_take_a_small_share_of_the_budget(make: Callable[[], Deaf]) -> None:
    env = make()
    found = search_blind(lambda: env, steps=20_000, episodes=2)
    assert env.invalid < 0.15 * found.steps
    assert found.actions[0].isdigit()
    assert abs(int(found.actions[0]) - 37) <= 5


def test_free_text_of_a_declared_alphabet_is_played_in_it() -> None:
    class Strict(Price):
        def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
            if action not in self.action_space:
                raise ValueError(action)
            return super().step(action)

    found: BlindBaseline = search_blind(lambda: Strict(37, spaces.Text(3, charset=DIGITS)), steps=8_000, episodes=4)
    assert abs(int(found.actions[0]) - 37) <= 1


@given(st.integers(1, 40), st.integers(-5, 5), st.integers(1, 6), st.integers(1, 4))
@examples(40)
def test_all_actions_of_a_small_space_are_spread(count: int, start: int, rows: int, columns: int) -> None:
    assert sorted(map(int, spread(spaces.Discrete(count, start=start), 100))) == [start + one for one in range(count)]
    cells = spread(spaces.MultiDiscrete([rows, columns]), 100)
    assert len({tuple(one.tolist()) for one in cells}) == len(cells) == rows * columns
    both = spaces.Dict(a=spaces.Discrete(count), b=spaces.Tuple([spaces.Discrete(2)]))
    assert len({write(both, one) for one in spread(both, 100)}) == 2 * count


def test_real_numbers_are_spread_with_their_bounds_and_middle() -> None:
    assert {-1.0, 0.0, 1.0} <= {float(one[0]) for one in spread(spaces.Box(-1, 1, (1,)), 100)}
    assert {(-1.0, 1.0), (0.0, 0.0)} <= {tuple(one.tolist()) for one in spread(spaces.Box(-1, 1, (2,)), 100)}
    assert sorted(float(one[0]) for one in spread(spaces.Box(3, np.inf, (1,)), 3)) == [3, 5, 7]
    assert sorted(float(one[0]) for one in spread(spaces.Box(-np.inf, np.inf, (1,)), 3)) == [-2, 0, 2]


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(2, 300))
@examples(60)
def test_numbers_of_a_range_are_within_it_with_both_of_its_ends(low: int, size: int, most: int) -> None:
    found = numbers_within(ranges_in([f"{low} to {low + size}"]), most)
    assert len(set(found)) == len(found) <= most
    assert low == min(found)
    assert max(found) <= low + size
    assert most < 4 or max(found) == low + size
