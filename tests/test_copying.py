"""Copying of what is read: an answer in the observation is found without a solver, and nothing else is."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.env_checker.card.card import CARD_CHECKS
from gym_trl.env_checker.card.copying import NAMES, parts
from gym_trl.env_checker.card.evidence import Evidence
from gym_trl.env_checker.card.plays import Plays
from gym_trl.report import OK, PROBLEM, WARNING, Finding
from gym_trl.spaces import AnyText

WORDS = ("amber", "birch", "cedar", "dusk", "ember", "fern", "grove", "hazel", "iris", "juniper")
SHOWN = {
    "last word": "The order is open. Its name is {}.",
    "first word": "{} is what is wanted.",
    "last line": "It is wanted.\n{}",
    "first line": "{}\nIt is wanted.",
    "quotation": "Somebody wrote '{}' on the wall there.",
    "brackets": "Somebody asks for a thing ({}) at the till.",
    "colon": "Wanted: {}. Others are sold out.",
    "whole": "{}",
}


class Till(gym.Env[str, str]):
    """One word is right; what the observation shows is that word, or any other one."""

    def __init__(self, form: str, *, leaks: bool = True, wins: bool = True, turns: int = 1) -> None:
        self.form, self.leaks, self.wins, self.turns = form, leaks, wins, turns
        self.observation_space, self.action_space = AnyText(), AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.answer, other = (str(word) for word in self.np_random.choice(WORDS, 2))
        self.left = self.turns
        return self.form.format(self.answer if self.leaks else other), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        right = action == self.answer and not self.left
        info: dict[str, Any] = {"action_valid": action in WORDS}
        if self.wins:
            info["success"] = right
        return "And now?", float(right), not self.left, False, info

    def random_policy(self, seed: int) -> Any:
        rng = np.random.default_rng(seed)
        return lambda observation: str(rng.choice(WORDS))


def copied(make: Callable[[], gym.Env[Any, Any]]) -> Finding:
    with Plays(make, episodes=40, seconds=5.0) as plays:
        return CARD_CHECKS["answer in the observation"](Evidence(plays))


@pytest.mark.parametrize("wins", [True, False])
@pytest.mark.parametrize("shown", SHOWN)
def test_an_answer_in_the_observation_is_found_without_a_solver(shown: str, wins: bool) -> None:
    found = copied(lambda: Till(SHOWN[shown], wins=wins))
    assert found.verdict == WARNING, found
    assert ("solves 1.000" if wins else "returns 1.000") in found.got


@pytest.mark.parametrize("wins", [True, False])
@pytest.mark.parametrize("shown", SHOWN)
def test_a_word_in_the_observation_that_is_no_answer_is_no_finding(shown: str, wins: bool) -> None:
    found = copied(lambda: Till(SHOWN[shown], leaks=False, wins=wins))
    assert found.verdict == OK, found


@given(st.sampled_from(sorted(SHOWN)), st.integers(2, 4), st.booleans())
@examples(15)
def test_an_answer_that_only_the_first_observation_shows_is_found(shown: str, turns: int, leaks: bool) -> None:
    found = copied(lambda: Till(SHOWN[shown], turns=turns, leaks=leaks))
    assert found.verdict == (WARNING if leaks else OK), found


class Numbers(gym.Env[Any, Any]):
    """Shows a value of its own space; right is the same value, or another one that is drawn."""

    def __init__(self, space: spaces.Space[Any], *, leaks: bool) -> None:
        self.observation_space = self.action_space = space
        self.leaks = leaks

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.action_space.seed(seed)
        self.answer, other = self.action_space.sample(), self.action_space.sample()
        return (self.answer if self.leaks else other), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        won = bool(np.allclose(action, self.answer, atol=1e-3))
        return self.answer, float(won), True, False, {"success": won}


class Named(Numbers):
    """Names its actions, and shows one of the names in a sentence."""

    action_names = ("go left", "go right", "jump", "stand still", "turn round", "lie down")

    def __init__(self, *, leaks: bool) -> None:
        super().__init__(spaces.Discrete(6), leaks=leaks)
        self.observation_space = AnyText()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        shown, info = super().reset(seed=seed)
        return f"They all say {self.action_names[shown]} when it thunders.", info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        _, *others = super().step(action)
        return "Over.", *others  # type: ignore[return-value]


@pytest.mark.parametrize("leaks", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda leaks: Numbers(spaces.Discrete(12), leaks=leaks),
        lambda leaks: Numbers(spaces.Discrete(12, start=4), leaks=leaks),
        lambda leaks: Numbers(spaces.MultiDiscrete([5, 6]), leaks=leaks),
        lambda leaks: Numbers(spaces.Box(0, 9, (2,), np.int64), leaks=leaks),
        lambda leaks: Named(leaks=leaks),
    ],
    ids=["Discrete", "Discrete from 4", "MultiDiscrete", "Box", "names"],
)
def test_values_that_give_the_answer_away_are_found_in_spaces_of_numbers(make: Any, leaks: bool) -> None:
    found = copied(lambda: make(leaks))
    assert found.verdict == (WARNING if leaks else OK), found


class AlwaysSame(Till):
    """Right is one word in nearly all tasks."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        started = super().reset(seed=seed)
        self.answer = "fern" if self.np_random.random() < 0.97 else "iris"
        return started


def test_a_constant_that_always_wins_is_a_problem_without_a_solver() -> None:
    with Plays(lambda: AlwaysSame("Say amber, birch, fern or iris."), episodes=40, seconds=5.0) as plays:
        found = CARD_CHECKS["constant action"](Evidence(plays, search_steps=4_000, seconds=80.0))
    assert found.verdict == PROBLEM, found


@given(st.text(max_size=60))
@examples(200)
def test_parts_of_any_text_can_be_copied(text: str) -> None:
    assert parts(text).keys() <= set(NAMES)
    assert all(parts(text).values())
