"""A run of the tests leaves no process behind, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

LEAVES_ONE = """
import os, subprocess, time
from pathlib import Path

def test_that_leaves_processes_behind():
    # One in a session of its own, whose parent ends at once: no process group and no parent leads to it.
    orphan = "import subprocess as s; print(s.Popen(['sleep', '60'], start_new_session=True, stdout=-3, stderr=-3).pid)"
    orphaned = subprocess.run(["python3", "-c", orphan], capture_output=True, text=True, check=True).stdout
    child = subprocess.Popen(["sleep", "60"])
    Path("new").write_text(f"{child.pid} {orphaned}")
    Path("new").rename("pids")
    time.sleep(float(os.environ["TEST_SECONDS"]))
"""


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.parametrize("seconds", [0, 60], ids=["ended", "terminated"])
def test_no_process_started_by_a_test_outlives_the_run(tmp_path, seconds):
    (tmp_path / "test_leaves.py").write_text(LEAVES_ONE, encoding="utf-8")
    run = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.no_process_left"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent), "TEST_SECONDS": str(seconds)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 60
        while not (told := tmp_path / "pids").exists():
            assert run.poll() is None, run.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        if seconds:
            run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=30)
    finally:
        run.kill()
        run.communicate()
    pids = [int(pid) for pid in told.read_text(encoding="utf-8").split()]
    assert len(pids) == 2
    assert not [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
    assert said.count(b"a test left a process behind") == 2
