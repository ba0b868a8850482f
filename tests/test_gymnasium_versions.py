"""The oldest Gymnasium works as the newest does; `make test-full` puts it beside the newest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
CHECKS = [
    *("test_vector.py", "wrappers/test_as_text.py", "wrappers/test_every_wrapper.py", "grpo/test_spec.py"),
    "envs/test_every_env.py::test_an_environment_is_rebuilt_from_its_spec_and_is_small",
]
PROGRAM = """
import sys

import gymnasium as gym
import pytest
from gymnasium.utils.env_checker import check_env

from gym_trl.registration import GAMES
from gym_trl.sandbox import bubblewrap_problem

assert gym.__version__ == sys.argv[1]
for env_id in GAMES:
    if env_id != "TrlEnv/CodeAgent-v0" or bubblewrap_problem() is None:
        check_env(gym.make(env_id).unwrapped, skip_render_check=True)
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow", *sys.argv[2:]]))
"""
"""Law 11, and then other tests."""


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.1.0"])
def test_games_words_wrappers_vectors_and_specs_work_with(version: str) -> None:
    folder = Path(sys.prefix) / f"gymnasium-{version}"
    if not folder.is_dir():
        pytest.skip(f"make test-full installs gymnasium {version}")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM, version, *(str(TESTS / check) for check in CHECKS)],
        env={**os.environ, "PYTHONPATH": str(folder), "TRL_EXPERIMENTAL_SILENCE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
