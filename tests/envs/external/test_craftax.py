from collections import deque
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytest.importorskip("craftax.craftax_env", reason="Craftax is not installed")
pytestmark = [pytest.mark.external, pytest.mark.timeout(600)]  # JAX compiles for half a minute

make: Any = gym.make  # whose type knows only its own arguments
STEPS = {"left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
FREE = {"grass", "sand", "path"}


def way_to(env: Any, wanted: str) -> list[str]:
    """Return the directions of the shortest way that ends in facing a block."""
    start = tuple(int(part) for part in env._state.player_position)
    ways, seen = deque([(start, list[str]())]), {start}
    while ways:
        (row, column), way = ways.popleft()
        for direction, (down, right) in STEPS.items():
            place = row + down, column + right
            if env._at(*place) == wanted:
                return [*way, direction]
            if env._at(*place) in FREE and place not in seen:
                seen.add(place)
                ways.append((place, [*way, direction]))
    return []


def play(env: Any, goal: str, wanted: str, more: list[str]) -> tuple[float, dict[str, Any]]:
    """Go to a block and do something there, until the goal is reached or 150 actions are over."""
    for _ in range(150):
        way = way_to(env.unwrapped, wanted)
        actions = [way[0]] if len(way) > 1 else [*way, *more]
        for action in actions:
            shown, reward, over, _, info = env.step(action)
            assert info["action_valid"]
            if over:
                assert not reward or shown.startswith(f"Achieved: {goal.replace('_', ' ')}.")
                return reward, info
    return 0.0, info


@pytest.mark.parametrize(("goal", "wanted"), [("collect_wood", "tree"), ("collect_drink", "water")])
def test_a_walk_to_what_gives_it_reaches_a_goal(goal, wanted):
    env = make("External/CraftaxClassic-v0", goal=goal)
    results = []
    for seed in range(4):
        env.reset(seed=seed)
        reward, info = play(env, goal, wanted, ["do"])
        results.append((reward, info["success"]))
    assert results.count((1.0, True)) >= 3  # a zombie can be in the way


def test_the_whole_game_pays_each_achievement_once_and_declares_nothing():
    env = make("External/CraftaxClassic-v0")
    env.reset(seed=2)
    rewards = []
    for _ in range(60):
        way = way_to(env.unwrapped, "tree")
        _, reward, over, _, info = env.step(way[0])
        rewards.append(reward)
        assert "success" not in info
        if len(way) == 1:
            rewards += [env.step("do")[1] for _ in range(4)]
            break
        assert not over
    assert [reward for reward in rewards if reward] == [pytest.approx(1 / 22)]
    assert "wood" in env.step("noop")[0].splitlines()[-1]


def test_what_is_no_action_takes_no_time_and_names_can_be_written_in_several_ways():
    env = make("External/CraftaxClassic-v0", goal="place_table")
    shown, info = env.reset(seed=0)
    assert len(info["admissible_actions"]) == 17
    for action in ("", "dance", "left left", "1", "\ud800"):
        _, reward, over, _, info = env.step(action)
        assert (reward, over, info["action_valid"], info["success"]) == (0.0, False, False, False)
    assert env.unwrapped._state.timestep == 0
    assert env.step(" Place_Table\n")[4]["action_valid"]
    assert [len(line) for line in shown.splitlines()[:7]] == [9] * 7
    assert shown.splitlines()[3][4] == "@"


def test_random_play_dies_and_rarely_reaches_a_goal():
    env = make("External/CraftaxClassic-v0", goal="make_wood_pickaxe")
    for seed in range(3):
        shown, _ = env.reset(seed=seed)
        policy, over, turns, reward = env.unwrapped.random_policy(seed), False, 0, 0.0
        while not over:
            shown, reward, over, _, _ = env.step(policy(shown))
            turns += 1
        assert reward == 0.0
        assert 10 < turns < 5_000


def test_a_goal_that_does_not_exist_is_said():
    with pytest.raises(ConfigError, match="goal must be None or one of"):
        make("External/CraftaxClassic-v0", goal="fly")
