"""TRL's OpenEnv examples, rebuilt: each trains the tiny model for two steps on a real OpenEnv server."""

import contextlib
import re
from pathlib import Path

import pytest
from support import openenv_run, warm
from support.free_port import free_port

from gym_trl.testing import save_tiny

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = [pytest.mark.openenv, pytest.mark.trl, pytest.mark.processes]

EXAMPLES = Path(__file__).parent.parent / "examples"
NAMES = ("echo", "wordle", "catch", "sudoku")
TURNS = {"echo": (1, 1), "wordle": (1, 6), "catch": (9, 9), "sudoku": (3, 40)}
"""The fewest and the most that an episode can have."""
SMALL = [
    *("--max_steps=2", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2", "--num_generations=4"),
    *("--use_cpu=true", "--bf16=false", "--disable_tqdm=true", "--logging_steps=1", "--report_to=none"),
    "--save_strategy=no",
    # The tiny model hardly ever ends its turn by itself, and an action that is cut off is not executed.
    '--generation_kwargs={"sequence_bias": [[[1], 5.0]]}',
]
LENGTH = {"echo": 32, "sudoku": 500}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """Return the output of each example."""
    folder = tmp_path_factory.mktemp("examples")
    save_tiny(folder / "tiny")
    url = openenv_run.shared_zoo()
    runs = [
        [
            str(EXAMPLES / f"openenv_{name}.py"),
            f"--model={folder / 'tiny'}",
            f"--output_dir={folder / name}",
            f"--base_url={url}/{name}",
            f"--max_completion_length={LENGTH.get(name, 1000)}",
            *SMALL,
        ]
        for name in NAMES
    ]
    generate_url = f"http://127.0.0.1:{free_port()}/generate/"
    own = {"model": folder / "tiny", "output_dir": folder / "page", "base_url": f"{url}/echo"}
    page = [f"--{name}={value}" for name, value in {**own, "generate_url": generate_url}.items()]
    runs.append([str(Path(__file__).parent / "compat" / "openenv_page.py"), *page])
    printed = {}
    with contextlib.chdir(folder):
        for name, run in zip((*NAMES, "page"), runs, strict=True):
            done = warm.run(*run, env={"TRL_EXPERIMENTAL_SILENCE": "1"})
            assert done.returncode == 0, done.stderr[-3000:]
            printed[name] = done.stdout
    return printed


@pytest.mark.parametrize("name", NAMES)
def test_an_example_takes_two_steps_and_every_episode_is_scored(printed, name):
    assert logged(printed[name], "env/unscored") == [0, 0]
    fewest, most = TURNS[name]
    assert all(fewest <= turns <= most for turns in logged(printed[name], "env/turns"))
    assert len(logged(printed[name], "loss")) == 2
    assert max(logged(printed[name], "reward_std")) > 0 or name in ("wordle", "sudoku")  # which nobody solves so soon


def test_the_example_of_trls_page_trains_on_the_rewards_of_echo(printed):
    rewards = logged(printed["page"], "rewards/reward_from_env/mean")
    lengths = logged(printed["page"], "completions/mean_length")
    assert len(rewards) == 2
    for reward, length in zip(rewards, lengths, strict=True):
        assert 0 < reward <= 0.1 * length + 1e-6  # a tenth for every character, and special tokens have none


def logged(printed, name):
    return [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", printed)]
