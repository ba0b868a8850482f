import os
import subprocess
import sys
from pathlib import Path

import pytest

import gym_trl

HEAVY = ("torch", "transformers", "trl", "datasets", "vllm", "accelerate", "rich", "jsonargparse")


def fresh(script: str) -> str:
    """Return the output of ``script`` in an interpreter of its own."""
    path = str(Path(gym_trl.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    return ran.stdout.strip()


def test_importing_loads_nothing_heavy() -> None:
    modules = "gym_trl, gym_trl.envs, gym_trl.wrappers, gym_trl.check"
    assert fresh(f"import sys, {modules}; print([name for name in {HEAVY!r} if name in sys.modules])") == "[]"


def test_importing_registers_the_games_once() -> None:
    script = (
        "import importlib, gymnasium as gym, gym_trl\n"
        "before = {key for key in gym.registry if key.startswith('TrlEnv/')}\n"
        "importlib.reload(gym_trl)\n"
        "assert before == {key for key in gym.registry if key.startswith('TrlEnv/')}\n"
        "print(gym.make('TrlEnv/Echo-v0').reset(seed=0)[0])"
    )
    assert fresh(script) == "woadw"


def test_public_names_are_sorted_and_loaded_when_touched() -> None:
    assert sorted(gym_trl.__all__) == gym_trl.__all__
    assert set(gym_trl.__all__) <= set(dir(gym_trl))
    assert fresh("import gym_trl; print(gym_trl.StopReason.ENDED, gym_trl.__version__[0])") == "ended 0"


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'GymSpeck'"):
        getattr(gym_trl, "GymSpeck")  # noqa: B009 -- type checkers would refuse the attribute
