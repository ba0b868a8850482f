# mypy: allow-untyped-defs, allow-untyped-calls
"""Workers that are forks of a server instead of new interpreters."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil
import pytest

from gym_trl.executors.process import ProcessPool
from gym_trl.executors.worker import Worker, WorkerEnded
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")


class Host:
    """Object that says what surrounds it."""

    def drawn(self):
        return random.random(), float(np.random.random())

    def around(self, name):
        return os.environ.get(name), str(Path.cwd()), list(sys.path)

    def parent(self):
        return os.getppid()

    def run(self, code):
        exec(code)


def told(worker, method, *arguments):
    worker.ask(method, *arguments)
    return worker.answer()


def test_forks_draw_different_numbers_from_the_global_generators():
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker(Host, forked=True))) for _ in range(3)]
        drawn = [number for worker in workers for number in told(worker, "drawn")]
    assert len(set(drawn)) == 6


def test_a_fork_has_the_programs_variables_folder_and_paths_of_its_start(monkeypatch, tmp_path):
    with closing(Worker(Host, forked=True)) as before:
        monkeypatch.setenv("GYM_TRL_TEST_OF_FORKS", "here")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path / "modules"))
        with closing(Worker(Host, forked=True)) as after:
            assert told(before, "parent") == told(after, "parent")
            assert told(before, "around", "GYM_TRL_TEST_OF_FORKS")[0] is None
            variable, folder, paths = told(after, "around", "GYM_TRL_TEST_OF_FORKS")
    assert (variable, folder) == ("here", str(tmp_path))
    assert str(tmp_path / "modules") in paths


def test_a_fork_that_ends_says_how():
    for code, said, by_itself in (
        ("os._exit(3)", "with status 3", True),
        ("os.kill(os.getpid(), 9)", "by signal SIGKILL", False),
        ("os.abort()", "by signal SIGABRT", True),
    ):
        with closing(Worker(Host, forked=True)) as worker:
            with pytest.raises(WorkerEnded, match=said) as caught:
                told(worker, "run", code)
            assert caught.value.by_itself is by_itself


def test_forks_hold_no_pipe_of_each_other():
    with ExitStack() as stack:
        workers = [stack.enter_context(closing(Worker(Host, forked=True))) for _ in range(3)]
        for worker in workers:
            told(worker, "parent")
        workers[0].kill()
        with pytest.raises(WorkerEnded):
            told(workers[0], "parent")
        open_files = psutil.Process(workers[2].pid).num_fds()
        with closing(Worker(Host, forked=True)) as later:
            told(later, "parent")
            assert psutil.Process(later.pid).num_fds() == open_files


def test_when_the_fork_server_is_lost_episodes_fail_and_the_next_ones_are_played_by_another_server():
    with ProcessPool(gym.make, workers=2) as pool:
        pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
        [(_, begun)] = pool.collect(block=True)
        assert isinstance(begun, StepResult)
        with closing(Worker(Host, forked=True)) as worker:
            lost = told(worker, "parent")
            os.kill(lost, signal.SIGKILL)
        deadline = time.monotonic() + 60.0
        while not isinstance(begun, EnvFailure) and time.monotonic() < deadline:
            pool.step("a", "hello")
            [(_, begun)] = pool.collect(block=True)
        assert isinstance(begun, EnvFailure)
        assert begun.reason is StopReason.ENV_ERROR
        pool.release("a")
        pool.reset("b", Task("TrlEnv/Echo-v0", seed=0))
        [(_, begun)] = pool.collect(block=True)
        assert isinstance(begun, StepResult)
    with closing(Worker(Host, forked=True)) as worker:
        assert told(worker, "parent") != lost


def test_a_fork_of_the_program_gets_a_server_of_its_own():
    code = (
        "import os, sys\n"
        "from gym_trl.executors.worker import Worker\n"
        "def parent():\n"
        "    worker = Worker(lambda: __import__('os'), forked=True)\n"
        "    worker.ask('getppid')\n"
        "    found = worker.answer()\n"
        "    worker.close()\n"
        "    return found\n"
        "ours = parent()\n"
        "if child := os.fork():\n"
        "    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) or int(parent() != ours))\n"
        "os._exit(int(parent() == ours))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
