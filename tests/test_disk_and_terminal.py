"""A disk that fills up, a folder that cannot be written and a terminal that is closed cost nothing that was there."""

import errno
import io
import json
import os
import pty
import resource
import select
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.records.json_lines import JsonLinesWriter, read_json_lines
from gym_trl.training.process import Interrupt
from gym_trl.training.progress import Display, lasting_console

TRAIN = ["train", "TrlEnv/Echo-v0", "--episodes-per-step", "8", "--num-generations", "4", "--eval-episodes", "8"]


@contextmanager
def files_of_at_most(size):
    """Let no more bytes than these be written, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def may_mount():
    return (
        shutil.which("unshare")
        and not subprocess.run(
            ["unshare", "-rm", "sh", "-c", "mount -t tmpfs tmpfs /mnt"], capture_output=True, check=False, timeout=30
        ).returncode
    )


class TestAWriter:
    def test_says_so_when_a_line_does_not_fit_and_loses_none_before_it(self, tmp_path):
        path, lines = tmp_path / "log.jsonl", []
        line = {"number": 1234567}
        with files_of_at_most(1010), JsonLinesWriter(path) as log:
            while path.stat().st_size <= 1000 - len('{"number": 1234567}\n'):
                log.write(line)
                lines.append(line)
            with pytest.raises(OSError, match="is the disk full"):
                log.write(line)
        assert lines
        assert list(read_json_lines(path)) == lines
        with JsonLinesWriter(path) as log:
            log.write({"number": -1})
        assert list(read_json_lines(path)) == [*lines, {"number": -1}]

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
    def test_on_a_full_device_raises_what_the_system_says(self):
        with Path("/dev/full").open("ab", buffering=0) as full:
            log = JsonLinesWriter.__new__(JsonLinesWriter)
            log._file, log._path = full, Path("/dev/full")
            with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
                log.write({"number": 0})


class Dead(io.StringIO):
    """A stream that nobody hears."""

    def __init__(self, number):
        super().__init__()
        self.number, self.attempts = number, 0

    def write(self, text):
        self.attempts += 1
        raise OSError(self.number, os.strerror(self.number))


@pytest.mark.parametrize("number", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_what_nobody_hears_any_more_is_no_error(number):
    stream = Dead(number)
    shown = Display(lasting_console(stream))
    shown.begin(0, 3)
    for step in range(1, 4):
        shown.log(step, {"env/success": 0.5})
    shown.note("The end.")
    shown.end()
    assert stream.attempts


def test_a_bar_on_a_terminal_that_is_closed_is_no_error():
    """A real one, whose other end goes away while the bar is moving."""
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        shown = Display(lasting_console(terminal))
        shown.begin(0, 50)
        shown.log(1, {"env/success": 0.5})
        os.close(master)
        for step in range(2, 51):
            shown.log(step, {"env/success": 0.5})
            time.sleep(0.01)
        shown.note("The end.")
        shown.end()


def test_an_evaluation_on_a_full_disk_says_so_in_one_line_and_resumes(tmp_path):
    words = ["eval", "TrlEnv/Echo-v0", "--policy", "random", "--episodes", "100", "--out", str(tmp_path / "e")]
    with files_of_at_most(30_000):
        full = CliRunner().invoke(app, words)
    assert full.exit_code == 2
    assert full.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in full.stderr
    before = list(read_json_lines(tmp_path / "e" / "rollouts.jsonl"))
    assert 0 < len(before) < 100
    assert CliRunner().invoke(app, words).exit_code == 0
    after = list(read_json_lines(tmp_path / "e" / "rollouts.jsonl"))
    assert after[: len(before)] == before
    assert len({(one["task"]["id"], one["attempt"]) for one in after}) == len(after) == 100


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux") or not may_mount(), reason="nothing can be mounted here")
def test_a_training_on_a_full_disk_ends_with_one_line_and_resumes(tmp_path):
    script = Path(__file__).parent / "support" / "train_on_small_disk.py"
    done = subprocess.run(
        ["unshare", "-rm", sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    for name in ("full", "eval full", "read-only", "eval read-only", "view read-only"):
        assert found[name]["status"] == 2, found[name]
        assert found[name]["raised"] == "SystemExit(2)", found[name]
        [line] = [line for line in found[name]["said"].splitlines() if line.startswith("Error: ")]
        expected = (
            ("Read-only file system",) if "read-only" in name else ("is the disk full?", "No space left on device")
        )
        assert any(words in line for words in expected), line
    assert found["finished"]["status"] == found["finished read-only"]["status"] == 0, found
    for name in ("full", "eval full", "view read-only"):  # the file that could not be written
        assert str(tmp_path) in found[name]["said"], found[name]
    full = found["full"]
    assert full["checkpoint"] >= 1
    assert full["steps"][: full["checkpoint"]] == list(range(1, full["checkpoint"] + 1))
    assert found["read-only"]["steps"] == full["steps"]
    assert found["read-only"]["episodes"] == full["episodes"] <= found["live"]  # which shows failures as well
    assert found["room"]["status"] == found["eval room"]["status"] == 0, found
    assert found["room"]["steps"] == [1, 2, 3, 4]
    assert found["eval room"]["episodes"] == found["eval room"]["different"] == 2000


def start(*words, **streams):
    command = [sys.executable, "-m", "gym_trl", *TRAIN, *words]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"}, **streams)


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_training_goes_on_when_the_reader_of_its_pipe_has_gone(tmp_path):
    process = start("--steps", "3", "--out", str(tmp_path / "run"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"Loading PyTorch and TRL\n"
    process.stdout.close()
    process.stdout = None
    try:
        _, said = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, said.decode()
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 3
    assert b"Traceback" not in said


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.processes
def test_a_training_in_a_closed_terminal_stops_after_its_step_and_resumes(tmp_path):
    """A real terminal: its end sends SIGHUP, and every write to it fails from then on."""
    run, (master, slave) = tmp_path / "run", pty.openpty()
    process = start(
        *("--steps", "100000", "--out", str(run)),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(slave)
    deadline = time.monotonic() + 240
    try:
        while not (run / "metrics.jsonl").exists() or not (run / "metrics.jsonl").stat().st_size:
            assert process.poll() is None
            assert time.monotonic() < deadline
            if select.select([master], [], [], 0.05)[0]:
                os.read(master, 65536)
        os.close(master)
        assert process.wait(timeout=max(1.0, deadline - time.monotonic())) == 130
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    told = json.loads((run / "summary.json").read_text())
    assert told["interrupted"]
    assert told["steps"] == [line["step"] for line in read_json_lines(run / "metrics.jsonl")][-1]
    assert (run / "checkpoints" / f"checkpoint-{told['steps']}" / "trainer_state.json").exists()
    assert "success_after_greedy" in told


def take_terminal():
    """In the new process, a session of its own: its standard input is the session's terminal."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_nohup_keeps_the_terminals_end_away():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt(speaks=False, patience_s=0.0) as interrupt:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)
