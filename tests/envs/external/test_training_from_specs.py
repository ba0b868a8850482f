# mypy: allow-untyped-defs, allow-untyped-calls, allow-any-generics
"""Other people's environments train from one line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.external, pytest.mark.trl, pytest.mark.processes]

SCRIPT = Path(__file__).parent / "train_from_specs.py"
SHOWN = ["*FFF", "Mission: ", "You are Player 0. You are playing Guess The Number", "Your task is to", "-= "]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    for package in ("textworld", "textarena", "minigrid", "reasoning_gym"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("trained")
    program, game = str(Path(sys.executable).with_name("tw-make")), str(folder / "game.z8")
    size = ["--world-size", "1", "--nb-objects", "3", "--quest-length", "1", "--seed", "5"]
    subprocess.run([program, "custom", *size, "--output", game], check=True, capture_output=True, timeout=120)
    specs = [
        {"env": "FrozenLake-v1"},
        {"env": "minigrid:BabyAI-GoToRedBallNoDists-v0"},
        {"env": "External/TextArena-v0", "env_kwargs": {"game": "GuessTheNumber-v0"}},
        {"env": "External/ReasoningGym-v0", "env_kwargs": {"dataset": "leg_counting"}},
        {"env": "External/TextWorld-v0", "env_kwargs": {"path": game}},
    ]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(folder), json.dumps(specs)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "runs.json").read_text())


@pytest.mark.parametrize("number", range(5))
def test_it_trains_for_some_steps_and_every_episode_is_scored(runs, number):
    run = runs[number]
    steps = [entry for entry in run["logs"] if "env/return" in entry]
    assert [entry["env/unscored"] for entry in steps] == [0.0, 0.0]
    assert all(not episode["error"] and episode["turns"] for episode in run["episodes"])
    assert all(SHOWN[number] in episode["first"] for episode in run["episodes"])


@pytest.mark.parametrize("number", range(5))
def test_a_group_begins_the_same_game(runs, number):
    episodes = runs[number]["episodes"]
    assert len(episodes) == 16
    for start in range(0, 16, 4):
        assert len({(one["task"], one["first"]) for one in episodes[start : start + 4]}) == 1
