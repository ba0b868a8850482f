"""Other people's environments train from one line."""

import contextlib
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import warm

import gym_trl

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).parent / "train_from_specs.py"
TRAINED: dict[str, tuple[dict[str, Any], str]] = {
    "FrozenLake": ({"env": "FrozenLake-v1", "observe": "render"}, "[S|on red]FFF"),
    "TextArena": (
        {"env": "External/TextArena-v0", "env_kwargs": {"game": "GuessTheNumber-v0"}},
        "You are Player 0. You are playing Guess The Number",
    ),
    "TextWorld": ({"env": "External/TextWorld-v0", "env_kwargs": {"path": "1.z8"}}, "-= "),
}
# Their package, and what the first observation shows.
PLAYED: dict[str, tuple[str, dict[str, Any], str]] = {
    "BabyAI": ("minigrid", {"env": "minigrid:BabyAI-GoToRedBallNoDists-v0"}, "Mission: "),
    "GEM": (
        "gem",
        {"env": "External/GEM-v0", "env_kwargs": {"game": "game:GuessTheNumber-v0-easy"}, "action_format": None},
        "Guess The Number",
    ),
    "PettingZoo": (
        "pettingzoo",
        {"env": "External/PettingZoo-v0", "env_kwargs": {"game": "classic/rps-v2"}, "seats": "self"},
        "You are player_0.\n3",
    ),
    "reasoning-gym": (
        "reasoning_gym",
        {"env": "External/ReasoningGym-v0", "env_kwargs": {"dataset": "leg_counting"}},
        "Your task is to",
    ),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """Return the logs and episodes by name, all trained in one process."""
    for package in ("textworld", "textarena"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    folder = tmp_path_factory.mktemp("trained")
    with contextlib.chdir(request.getfixturevalue("textworld_games")):
        done = warm.run(SCRIPT, folder, json.dumps([spec for spec, _ in TRAINED.values()]), timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(TRAINED, json.loads((folder / "runs.json").read_text()), strict=True))


@pytest.mark.parametrize("name", TRAINED)
def test_it_trains_for_some_steps_and_every_episode_is_scored(runs, name):
    steps = [entry for entry in runs[name]["logs"] if "env/return" in entry]
    assert [entry["env/unscored"] for entry in steps] == [0.0, 0.0, 0.0]
    assert all(not episode["error"] and episode["turns"] for episode in runs[name]["episodes"])
    assert all(TRAINED[name][1] in episode["first"] for episode in runs[name]["episodes"])


@pytest.mark.parametrize("name", TRAINED)
def test_a_group_begins_the_same_game(runs, name):
    episodes = runs[name]["episodes"]
    assert len(episodes) == 12
    for start in range(0, 12, 2):
        assert len({(one["task"], one["first"]) for one in episodes[start : start + 2]}) == 1


@pytest.mark.parametrize("name", PLAYED)
def test_its_spec_plays_tasks_whose_members_are_the_same_game(name):
    package, arguments, shown = PLAYED[name]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    spec = gym_trl.GymSpec(**{"action_format": "plain", "num_tasks": 4, "num_eval_tasks": 0, **arguments}, turn_limit=3)
    for task in spec.tasks("train"):
        members: list[list[Any]] = []
        for _ in range(2):
            env: Any = spec.make(task.env_id)
            members.append([env.reset(seed=task.seed, options=dict(task.options) or None)])
            while len(members[-1]) == 1 or not (members[-1][-1][2] or members[-1][-1][3]):
                members[-1].append(env.step("1"))
            env.close()
        assert members[0] == members[1]
        assert shown in members[0][0][0]
        assert all(isinstance(step[1], float | int) for step in members[0][1:])
