from typing import Any

import gymnasium as gym
import pytest

from gym_trl import GymSpec, as_text

minigrid = pytest.importorskip("minigrid", reason="MiniGrid is not installed")
pytestmark = pytest.mark.slow

make: Any = gym.make  # whose type knows only its own arguments


def test_it_says_the_mission_what_is_seen_where_and_what_is_carried():
    env: Any = as_text(make("MiniGrid-DoorKey-6x6-v0"))
    assert env.reset(seed=3)[0].splitlines() == [
        "Mission: use the key to open the door and then get to the goal",
        "You face south and carry nothing.",
        "Ahead: 1 step free, then a wall. Left: 1 step free, then a wall. Right: a wall.",
        "You see nothing else.",
    ]
    env.step("left")
    turned = env.step("left")[0]
    assert "You face north" in turned
    assert "a yellow key, 1 ahead" in turned
    assert "carry a yellow key" in env.step("pickup")[0]


def test_places_are_those_of_the_grid():
    env: Any = as_text(make("BabyAI-GoToRedBall-v0"))
    shown = env.reset(seed=3)[0]
    raw: Any = env.unwrapped
    ahead, right = raw.dir_vec, raw.right_vec
    for told in shown.splitlines()[-1].removeprefix("You see: ").rstrip(".").split("; "):
        thing, place = told.split(", ")
        numbers = {part.split()[1]: int(part.split()[0]) for part in place.split(" and ")}
        steps_right = numbers.get("right", 0) - numbers.get("left", 0)
        cell = raw.grid.get(*(raw.agent_pos + numbers.get("ahead", 0) * ahead + steps_right * right))
        assert thing.split()[-2:] == [cell.color, cell.type]


@pytest.mark.parametrize("env_id", ["MiniGrid-LavaGapS5-v0", "BabyAI-GoToLocal-v0", "MiniGrid-Fetch-5x5-N2-v0"])
def test_one_line_makes_it_trainable(env_id):
    spec = GymSpec(f"minigrid:{env_id}", num_tasks=4, num_eval_tasks=0)
    env = spec.make(f"minigrid:{env_id}")
    first, _ = env.reset(seed=1)
    assert first.startswith("Mission: ")
    assert env.step("<action>forward</action>")[4]["action_valid"]


def test_whoever_walks_to_the_goal_is_paid():
    env: Any = as_text(make("MiniGrid-Empty-5x5-v0"))
    env.reset(seed=0)
    results = [env.step(action) for action in ("forward", "forward", "right", "forward", "forward")]
    assert results[-1][1] > 0.9
    assert results[-1][2]
