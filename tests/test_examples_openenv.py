"""TRL's OpenEnv example and its page: each trains the tiny model for two steps on a real OpenEnv server."""

import contextlib
import re
from pathlib import Path

import pytest
from support import openenv_run, warm
from support.warm import free_port

from gym_trl.testing import save_tiny

pytest.importorskip("openenv", reason="openenv is not installed: make test-full does it")
pytestmark = pytest.mark.needs(package="openenv")

TESTS = Path(__file__).parent
SMALL = [
    *("--max_steps=2", "--per_device_train_batch_size=4", "--gradient_accumulation_steps=2", "--num_generations=4"),
    *("--use_cpu=true", "--bf16=false", "--disable_tqdm=true", "--logging_steps=1", "--report_to=none"),
    # The tiny model ends its turn by chance, and an action that is cut off is not executed.
    *("--save_strategy=no", "--max_completion_length=1024"),
]


@pytest.fixture
def run(tmp_path):
    """Return a function that runs a script on a server's Echo and returns what it prints."""
    save_tiny(tmp_path / "tiny")
    with openenv_run.zoo() as url, contextlib.chdir(tmp_path):

        def run(script, *more):
            own = {"model": tmp_path / "tiny", "output_dir": tmp_path / "out", "base_url": f"{url}/echo"}
            arguments = [f"--{name}={value}" for name, value in own.items()]
            done = warm.run(str(script), *arguments, *more, env={"TRL_EXPERIMENTAL_SILENCE": "1"})
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout

        yield run


def test_the_example_takes_two_steps_and_every_episode_is_scored(run):
    printed = run(TESTS.parent / "examples" / "openenv_echo.py", *SMALL)
    assert logged(printed, "env/unscored") == [0, 0]
    assert logged(printed, "env/turns") == [1, 1]
    assert len(logged(printed, "loss")) == 2
    assert max(logged(printed, "reward_std")) > 0


def test_the_example_of_trls_page_trains_on_the_rewards_of_echo(run):
    printed = run(TESTS / "compat" / "openenv_page.py", f"--generate_url=http://127.0.0.1:{free_port()}/generate/")
    rewards = logged(printed, "rewards/reward_from_env/mean")
    lengths = logged(printed, "completions/mean_length")
    assert len(rewards) == 2
    for reward, length in zip(rewards, lengths, strict=True):
        assert 0 < reward <= 0.1 * length + 1e-6  # a tenth for every character, and special tokens have none


def logged(printed, name):
    return [float(value) for value in re.findall(rf"'{name}': '?([^',]+)", printed)]
