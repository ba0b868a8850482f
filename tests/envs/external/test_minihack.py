from importlib.util import find_spec
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytestmark = [
    pytest.mark.external,
    # Importing them registers their environments, so that they are not looked for that way.
    pytest.mark.skipif(
        any(find_spec(name) is None for name in ("minihack", "nle", "pkg_resources")),
        reason="MiniHack, or the old setuptools that it imports, is not installed",
    ),
]

make: Any = gym.make  # whose type knows only its own arguments
DOWN, RIGHT = {-1: "north", 0: "", 1: "south"}, {-1: "west", 0: "", 1: "east"}


def place_of(screen: str, letter: str) -> tuple[int, int]:
    """Return the line and column of a letter on the map."""
    return next((row, line.index(letter)) for row, line in enumerate(screen.splitlines()) if letter in line)


def sign(number: int) -> int:
    return (number > 0) - (number < 0)


def walk(env: Any, screen: str) -> tuple[float, dict[str, Any], int]:
    """Walk straight to the stairs down of an empty room."""
    for turn in range(1, 40):
        (row, column), (goal_row, goal_column) = place_of(screen, "@"), place_of(screen, ">")
        direction = DOWN[sign(goal_row - row)] + RIGHT[sign(goal_column - column)]
        screen, reward, over, _, info = env.step(direction)
        assert info["action_valid"]
        if over:
            return reward, info, turn
    raise AssertionError(screen)


@pytest.mark.parametrize("task", ["MiniHack-Room-Random-5x5-v0", "MiniHack-Room-15x15-v0"])
def test_a_walk_to_the_stairs_is_a_success(task):
    env = make("External/MiniHack-v0", task=task)
    firsts = set()
    for seed in range(8):
        screen, _ = env.reset(seed=seed)
        firsts.add(screen)
        reward, info, turns = walk(env, screen)
        assert (reward, info["success"]) == (1.0, True)
        assert turns <= 15
    assert len(firsts) > 1
    env.close()


def test_what_is_no_action_does_not_reach_the_game_and_nothing_is_taken():
    env = make("External/MiniHack-v0")
    _, info = env.reset(seed=0)
    assert info["admissible_actions"][:4] == ["north", "east", "south", "west"]
    for action in ("", "dance", "far north", "\ud800"):
        shown, reward, over, _, info = env.step(action)
        assert (shown, reward, over, info["action_valid"]) == ("That is no action.", 0.0, False, False)
    total = sum(env.step("north")[1] for _ in range(10))  # a wall takes no time
    assert total in (0.0, 1.0)
    env.close()


def test_random_play_rarely_leaves_a_maze_and_is_cut_off():
    env = make("External/MiniHack-v0", task="MiniHack-MazeWalk-9x9-v0")
    env.reset(seed=0)
    policy, over, cut, turns = env.unwrapped.random_policy(0), False, False, 0
    while not (over or cut):
        _, _, over, cut, info = env.step(policy(""))
        turns += 1
    assert cut or info["success"]
    assert turns <= 200
    env.close()


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("MiniHack-Nowhere-v0", "MiniHack has no task"),
        ("MiniHack-Boxoban-Hard-v0", "cannot be made: ModuleNotFoundError"),
        ("MiniHack-Skill-Custom-v0", "cannot be made: TypeError"),
    ],
)
def test_a_task_that_cannot_be_made_is_said(task, message):
    with pytest.raises(ConfigError, match=message):
        make("External/MiniHack-v0", task=task)
