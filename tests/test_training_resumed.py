"""A training that was killed, interrupted or stopped goes on as if nothing had happened."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import fused_game
from support.fused_game import (
    FILES,
    FUSED,
    LEVELS,
    learnt,
    options,
    played,
    registered,
    silent,
    steps,
    summary,
)

from gym_trl.errors import ConfigError
from gym_trl.training.run import resume, train
from gym_trl.training.run_folder import last_checkpoint

pytestmark = pytest.mark.trl


@pytest.fixture(autouse=True)
def _games() -> Iterator[None]:
    with registered():
        yield


def run_alone(folder: Path, *launcher: str, **arguments: Any) -> "subprocess.CompletedProcess[str]":
    """Train in processes of their own, into ``folder / "run"``."""
    shutil.copy(fused_game.__file__, folder)
    (folder / "main.py").write_text(
        "import sys\n"
        "from fused_game import registered\n"
        "from gym_trl.cli.app import main\n"
        "with registered():\n"
        "    sys.exit(main(['train', 'Tests/Fused-v0', *sys.argv[1:]]))\n"
    )
    given = [f"--env-kwargs={name}={value}" for name, value in arguments.items()]
    given += [f"--{name.replace('_', '-')}={value}" for name, value in {**FUSED, "out": "run"}.items()]
    return subprocess.run(
        [sys.executable, *launcher, "main.py", "--grpo=save_steps=3", *given],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.full
def test_a_killed_run_goes_on_as_if_nothing_had_happened(finished: Path, tmp_path: Path, fuse: Path) -> None:
    # 8 held-out episodes of the model, four steps, and a bit of the fifth.
    ran = run_alone(tmp_path, does="SIGKILL", fuse=fuse, burns=43)
    assert ran.returncode == -signal.SIGKILL, ran.stderr
    assert "Traceback" not in ran.stderr
    folder = tmp_path / "run"
    assert steps(folder) == [1, 2, 3, 4]
    assert summary(folder)["interrupted"]
    with (folder / "metrics.jsonl").open("a") as torn:
        torn.write('{"step": 5, "lo')

    checkpoint = last_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == 3
    resume(folder, console=silent())
    assert learnt(folder) == learnt(finished)
    assert {entry.name for entry in folder.iterdir()} == FILES
    for name in ("success_before", "return_before", "return_after", "return_after_greedy"):
        assert summary(folder)[name] == summary(finished)[name]


@pytest.mark.full
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP SIGHUP"])
def test_a_signal_stops_after_the_step_and_leaves_a_folder_that_can_be_resumed(
    finished: Path, tmp_path: Path, fuse: Path, name: str
) -> None:
    folder, handlers = tmp_path / "run", [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    told = train(options(env_kwargs={"does": name, "fuse": str(fuse), "burns": 27}), out=folder, console=silent())
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert (told["steps"], told["interrupted"]) == (3, True)
    assert told == summary(folder)
    assert {f"success_{level}" for level in LEVELS} <= set(told)
    assert {entry.name for entry in folder.iterdir()} == FILES
    assert steps(folder) == [1, 2, 3]

    assert not resume(folder, console=silent())["interrupted"]
    assert learnt(folder) == learnt(finished)


@pytest.mark.full
@pytest.mark.processes
def test_all_processes_stop_after_the_same_step_and_only_the_first_one_writes(tmp_path: Path, fuse: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    # In the second process: 4 held-out episodes, one step, and a bit of the second.
    ran = run_alone(tmp_path, *launcher, does="SIGINT", fuse=fuse, burns=10, rank=1)
    folder = tmp_path / "run"
    assert "Interrupted after 2 steps" in ran.stdout, ran.stdout + ran.stderr
    assert ran.stdout.count("before") == 1
    assert {entry.name for entry in folder.iterdir()} == FILES
    assert steps(folder) == [1, 2]
    assert not fuse.exists()


@pytest.mark.full
def test_a_second_interrupt_aborts_and_the_last_checkpoint_remains(tmp_path: Path, fuse: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        train(
            options(env_kwargs={"does": "SIGINT SIGINT", "fuse": str(fuse), "burns": 35}), out=folder, console=silent()
        )
    assert summary(folder)["interrupted"]
    assert resume(folder, console=silent())["steps"] == 5
    assert steps(folder) == [1, 2, 3, 4, 5]


def test_a_run_without_a_checkpoint_begins_again_and_keeps_no_record_twice(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.rmtree(folder / "checkpoints")
    (folder / "summary.json").unlink()
    resume(folder, console=silent())
    assert learnt(folder) == learnt(finished)
    assert played(folder) == played(finished)


@pytest.mark.full
def test_a_finished_run_goes_on_only_to_a_later_step(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    with pytest.raises(ConfigError, match="finished at step 5; give more --steps"):
        resume(folder, console=silent())
    assert resume(folder, steps=6, console=silent())["steps"] == 6
    assert steps(folder) == [1, 2, 3, 4, 5, 6]


@pytest.mark.full
def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(finished: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    whole = last_checkpoint(folder)
    assert whole is not None
    assert whole.step == 5
    (folder / "checkpoints" / "checkpoint-5" / "trainer_state.json").write_text("{")
    torn = last_checkpoint(folder)
    assert torn is not None
    assert torn.step == 4


def test_what_is_no_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run: it has no config\.json"):
        resume(tmp_path, console=silent())
    (tmp_path / "config.json").write_text('{"options": {"steps": 3}}')
    with pytest.raises(ConfigError, match="is not the configuration of a run"):
        resume(tmp_path, console=silent())
