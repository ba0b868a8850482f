import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import gym_trl  # noqa: F401 -- registers the ids
from gym_trl.errors import ConfigError

pytest.importorskip("fast_downward", reason="the planner of TextWorld's games in PDDL is not installed")
pytest.importorskip("alfworld", reason="ALFWorld is not installed")
from support.alfworld_games import write_games

pytestmark = pytest.mark.external

make: Any = gym.make  # whose type knows only its own arguments


@pytest.fixture(scope="module")
def games(tmp_path_factory):
    return write_games(tmp_path_factory.mktemp("alfworld"))


def test_the_solver_does_every_task_that_can_be_done(games):
    env = make("External/ALFWorld-v0", path=games)
    assert env.unwrapped.num_instances == 5
    firsts = set()
    for number in range(5):
        shown, _ = env.reset(seed=0, options={"instance": number})
        firsts.add(shown)
        solver, over, rewards, info = env.unwrapped.solver(), False, list[float](), dict[str, Any]()
        while not over:
            action = solver(shown)
            shown, reward, over, _, info = env.step(action)
            rewards.append(reward)
            assert info["action_valid"], (number, action, shown)
        assert (rewards[-1], sum(rewards), info["success"]) == (1.0, 1.0, True)
        assert len(rewards) >= 4
    assert len(firsts) == 4  # the fork's game is marked as unsolvable
    env.close()


def test_the_first_observation_is_the_room_and_the_task(games):
    env = make("External/ALFWorld-v0", path=games, kind="pick_cool_then_place_in_recep")
    shown, info = env.reset(seed=3)
    assert shown.startswith("You are in the middle of a room. Looking quickly around you, you see a countertop 1,")
    assert shown.endswith("Your task is to: put a cool egg in countertop.")
    assert "go to fridge 1" in info["admissible_actions"]
    shown, reward, over, _, info = env.step(" GO to  drawer 1\n")
    assert (shown, reward, over) == ("You arrive at drawer 1. The drawer 1 is closed.", 0.0, False)
    assert info["action_valid"]
    assert env.step("open drawer 1")[0].endswith("In it, you see a egg 1.")
    env.close()


def test_what_does_not_work_changes_nothing(games):
    arguments, output = list(sys.argv), sys.stdout
    env = make("External/ALFWorld-v0", path=games)
    _, before = env.reset(seed=0)
    for action in ("", "dance", "take apple 1 from fridge 1", "go to fridge 2", "look\nlook", "\ud800", "a" * 100_000):
        shown, reward, over, _, info = env.step(action)
        assert (shown, reward, over, info["action_valid"]) == ("Nothing happens.", 0.0, False, False)
        assert info["admissible_actions"] == before["admissible_actions"]
    env.close()
    assert (sys.argv, sys.stdout) == (arguments, output)  # the reader of the games changes them


def test_an_episode_is_cut_off_after_its_turns(games):
    env = make("External/ALFWorld-v0", path=games, max_turns=3)
    env.reset(seed=0)
    ends = [env.step(action)[1:4] for action in ("look", "dance", "dance", "look")]
    assert ends == [(0.0, False, False), (0.0, False, False), (0.0, False, True), (0.0, False, True)]
    env.reset(seed=0)
    assert env.step("look")[1:4] == (0.0, False, False)
    env.close()


def test_random_play_rarely_does_a_task(games):
    env = make("External/ALFWorld-v0", path=games, kind="pick_heat_then_place_in_recep")
    done = 0.0
    for seed in range(4):
        shown, _ = env.reset(seed=seed)
        policy = env.unwrapped.random_policy(seed)
        for _ in range(30):
            shown, reward, over, _, info = env.step(policy(shown))
            assert info["action_valid"]
            done += reward
            if over:
                break
    assert done <= 1
    env.close()


@pytest.mark.parametrize(
    "hidden", ["{open('made', 'w')}", "{o.name.__class__}", r"\u007bexit()}", r"{\"\".join(o)}", "{o + ' ' + exit()}"]
)
def test_a_game_that_has_python_is_played_only_on_trust(games, hidden, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    game = json.loads(next(games.rglob("game.tw-pddl")).read_text())
    game["grammar"] = game["grammar"].replace("You are in the middle", f"{hidden} You are in the middle")
    (tmp_path / "game.tw-pddl").write_text(json.dumps(game))
    env = make("External/ALFWorld-v0", path=tmp_path / "game.tw-pddl")
    with pytest.raises(ConfigError, match="which TextWorld would run as Python: pass trusted=True"):
        env.reset(seed=0)
    assert not (tmp_path / "made").exists()
    env.close()


def test_mistakes_in_arguments_and_files_are_said(games, tmp_path: Path):
    for arguments, message in (
        ({"path": games, "split": "test"}, "split must be one of"),
        ({"path": games, "kind": "sleep"}, "kind must be None or one of"),
        ({"path": games, "kind": "pick_two_obj_and_place"}, "there are no games of the kind pick_two_obj_and_place"),
        ({"path": tmp_path}, "there are no games in .*: run alfworld-download"),
    ):
        with pytest.raises(ConfigError, match=message):
            make("External/ALFWorld-v0", **arguments)
    broken = tmp_path / "game.tw-pddl"
    broken.write_text("[]")
    with pytest.raises(ConfigError, match="is no game of ALFWorld"):
        make("External/ALFWorld-v0", path=broken).reset(seed=0)
