"""Random play: of any space, independent of the environment with the same seed, and the same wherever it is played."""

import math
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.evaluation import evaluate
from gym_trl.random_play import random_play
from gym_trl.spaces import AnyText
from gym_trl.text.spaces import write
from gym_trl.wrappers.as_text import as_text

DIGITS = "0123456789"


class SecretOf(gym.Env[Any, Any]):
    """One guess of a value that the environment has drawn from its own action space, as many environments do."""

    observation_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space[Any]) -> None:
        self.action_space = space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        if isinstance(self.action_space, spaces.Discrete):
            self.secret: Any = self.action_space.start + self.np_random.integers(self.action_space.n)
        else:
            self.action_space.seed(seed)
            self.secret = self.action_space.sample()
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        won = write(self.action_space, action) == write(self.action_space, self.secret)
        return 0, float(won), True, False, {"success": won}


COINS: Mapping[str, tuple[Callable[[], spaces.Space[Any]], float]] = {
    "Discrete": (lambda: spaces.Discrete(2), 1 / 2),
    "Discrete from 5": (lambda: spaces.Discrete(3, start=5), 1 / 3),
    "MultiBinary": (lambda: spaces.MultiBinary(1), 1 / 2),
    "MultiDiscrete": (lambda: spaces.MultiDiscrete([2, 2]), 1 / 4),
    "Box of integers": (lambda: spaces.Box(0, 1, (1,), np.int8), 1 / 2),
    "Dict": (lambda: spaces.Dict(side=spaces.Discrete(2), door=spaces.Discrete(2)), 1 / 4),
    "Tuple": (lambda: spaces.Tuple([spaces.Discrete(2)]), 1 / 2),
    "Text": (lambda: spaces.Text(1, charset="ht"), 1 / 2),
}


@pytest.mark.parametrize("name", COINS)
def test_random_play_wins_a_fair_coin_as_often_as_chance(name: str) -> None:
    make, chance = COINS[name]
    env, won, episodes = as_text(SecretOf(make())), 0, 400
    for seed in range(episodes):
        observation, info = env.reset(seed=seed)
        won += env.step(random_play(env, seed)(observation, info))[4]["success"]
    assert abs(won / episodes - chance) < 4 * math.sqrt(chance * (1 - chance) / episodes)


@pytest.mark.parametrize("env_id", ["TrlEnv/GuessNumber-v0", "FrozenLake-v1"])
def test_the_random_policies_of_two_seeds_differ_and_of_one_are_the_same(env_id: str) -> None:
    env = as_text(gym.make(env_id))
    observation, info = env.reset(seed=0)

    def drawn(seed: int) -> list[str]:
        act = random_play(env, seed)
        return [act(observation, info) for _ in range(20)]

    assert drawn(1) == drawn(1) != drawn(2)


class Price(gym.Env[str, str]):
    """A price, as a text of digits; the reward is minus the distance, so numbers of six digits are ruinous."""

    def __init__(self, best: int = 37, instructions: str = "", length: int = 6) -> None:
        self.best, self.instructions = best, instructions
        self.observation_space: spaces.Space[str] = AnyText()
        self.action_space: spaces.Space[str] = spaces.Text(length, charset=DIGITS)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.price = self.best + int(self.np_random.integers(-3, 4))
        return "What does it cost?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action not in self.action_space:
            return "A number, please.", 0.0, False, False, {"action_valid": False}
        return "Thank you.", -float(abs(int(action) - self.price)), True, False, {"action_valid": True}


@given(st.integers(0, 900), st.integers(1, 99), st.sampled_from(["from {} to {}", "between {} and {}", "{}-{}"]))
@examples(60)
def test_a_range_that_the_rules_name_is_where_numbers_are_drawn(low: int, size: int, words: str) -> None:
    env = Price(instructions=f"Say a price, {words.format(low, low + size)}.")
    observation, info = env.reset(seed=low)
    play = random_play(env, low)
    drawn = [int(play(observation, info)) for _ in range(30)]
    assert low <= min(drawn) <= max(drawn) <= low + size


def test_numbers_of_no_known_range_are_mostly_short() -> None:
    env = Price()
    observation, info = env.reset(seed=0)
    play = random_play(env, 0)
    drawn = [play(observation, info) for _ in range(400)]
    assert all(one in env.action_space and one == str(int(one)) for one in drawn)
    assert statistics.median(map(len, drawn)) <= 2
    assert {len(one) for one in drawn} >= {1, 2, 3}


class OwnPolicy(Price):
    """Says itself what random play is."""

    def random_policy(self, seed: int) -> Any:
        return lambda observation: "37"


class Listing(Price):
    """Lists its actions in ``info`` alone."""

    action_space = AnyText()

    def __init__(self) -> None:
        super().__init__()
        self.action_space = AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        observation, _ = super().reset(seed=seed)
        return observation, {"admissible_actions": ["36", "38"]}


class Masked(SecretOf):
    """Allows one of four actions."""

    def __init__(self) -> None:
        super().__init__(spaces.Discrete(4))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {"action_mask": np.asarray([0, 0, 1, 0], np.int8)}


class MaskedCells(Masked):
    """Allows one of three actions in each of two cells."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.MultiDiscrete([3, 3])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {"action_mask": [[0, 1, 0], [0, 0, 1]]}


class Anything(Price):
    """Accepts any text, and says nothing about it."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = AnyText()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "Thank you.", 1.0, True, False, {"action_valid": True}


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (OwnPolicy, {"37"}),
        (Listing, {"36", "38"}),
        (Masked, {"2"}),
        (MaskedCells, {"1 2"}),
        (Price, None),
        (Anything, None),
    ],
)
def test_an_evaluation_plays_at_random_what_the_environment_says(
    make: Callable[[], Any], wanted: set[str] | None
) -> None:
    [row] = evaluate(make, model="random", episodes=12, references=(), action_format="plain").scores
    actions = [record["turns"][0]["answer"] for record in row.records]
    assert len(actions) == 12
    assert wanted is None or set(actions) == wanted
    assert make is not Price or all(action in Price().action_space for action in actions)
