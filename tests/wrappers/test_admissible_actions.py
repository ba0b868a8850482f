from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, strategies as st

from gym_trl.envs.guess_number import GuessNumber
from gym_trl.spaces import AnyText
from gym_trl.wrappers import AdmissibleActions, as_text
from gym_trl.wrappers.admissible_actions import listed_actions


class Door(gym.Env[str, str]):
    """Says in ``info`` what it is told to say; the second action ends it."""

    observation_space = AnyText(20)
    action_space = AnyText(20)

    def __init__(self, info: dict[str, Any]) -> None:
        self.info = info
        self.left = 2

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 2
        return "A door.", self.info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return f"You {action}.", 1.0, not self.left, not self.left, self.info


@pytest.mark.parametrize(
    "info",
    [
        {"admissible_actions": ["open", "go in"]},
        {"admissible_commands": ("open", "go in")},
        {"valid_actions": np.array(["open", "go in"])},
        {"available_actions": ["open", "go in"], "secret": "key"},
    ],
)
def test_what_is_listed_is_said_below_every_observation_but_the_last(info: dict[str, Any]) -> None:
    env = AdmissibleActions(Door(info))
    assert env.reset()[0] == "A door.\nPossible actions: open, go in"
    assert env.step("open")[0] == "You open.\nPossible actions: open, go in"
    assert env.step("wait")[:4] == ("You wait.", 1.0, True, False)


def test_sets_are_said_in_the_same_order_in_every_process() -> None:
    assert listed_actions(Door({}), {"valid_actions": {"b", "c", "a"}}) == ["a", "b", "c"]


@pytest.mark.parametrize("info", [{}, {"admissible_actions": []}, {"valid_actions": "all"}, {"action_mask": [1, 1]}])
def test_nothing_is_said_where_nothing_is_listed(info: dict[str, Any]) -> None:
    assert AdmissibleActions(Door(info)).reset()[0] == "A door."


def test_masks_are_said_with_the_names_of_the_actions() -> None:
    env = AdmissibleActions(as_text(gym.make("Taxi-v4")))
    observation, info = env.reset(seed=0)
    assert observation.endswith(f"Possible actions: {', '.join(info['admissible_actions'])}")
    assert 0 < len(info["admissible_actions"]) < 6


def test_actions_without_names_are_said_by_their_numbers() -> None:
    numbered: Any = gym.wrappers.TransformAction(Door({}), str, gym.spaces.Discrete(3, start=4))
    assert listed_actions(numbered, {"action_mask": np.array([1, 0, 1])}) == ["4", "6"]


@given(st.lists(st.text(min_size=1), min_size=1), st.integers(1, 40))
def test_a_list_that_is_too_long_is_cut_between_two_actions_and_counted(actions: list[str], limit: int) -> None:
    env = AdmissibleActions(Door({"admissible_actions": actions}), max_length=limit)
    observation = env.reset()[0]
    assert observation in env.observation_space
    shown = observation.removeprefix("A door.\nPossible actions: ")
    whole = ", ".join(actions)
    if len(whole) <= limit:
        assert shown == whole
    else:
        fitting = max(count for count in range(len(actions) + 1) if len(", ".join(actions[:count])) <= limit)
        assert shown == f"{', '.join(actions[:fitting])} and {len(actions) - fitting} more".strip()


def test_a_game_that_lists_nothing_is_left_as_it_is() -> None:
    assert AdmissibleActions(GuessNumber()).reset(seed=1) == GuessNumber().reset(seed=1)
