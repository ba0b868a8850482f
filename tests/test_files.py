"""Files are replaced whole and through no link, a full disk costs nothing, and a closed terminal is no error."""

import errno
import os
import pty
import re
import resource
import signal
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.command_line import run_command_line

from gym_trl.files import open_to_append, open_to_change, replace_text, replaced
from gym_trl.records.json_lines import JsonLinesWriter, read_json_lines, write_json_lines
from gym_trl.training.process import Interrupt
from gym_trl.training.progress import Display, lasting_console


def test_view_replaces_no_file_that_a_link_in_the_folder_points_to(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    run.mkdir()
    victim.write_text("precious")
    (run / "rollouts.jsonl").write_text('{"version": 1, "task": {}, "turns": []}\n')
    for name in (".view.html.new", "view.html"):
        (run / name).symlink_to(victim)
    assert run_command_line(["view", str(run)]).exit_code == 0
    assert victim.read_text() == "precious"
    assert (run / "view.html").read_text().startswith("<!doctype html>")
    assert not (run / "view.html").is_symlink()


def test_a_replaced_file_has_the_permissions_that_the_umask_leaves(tmp_path: Path) -> None:
    for mask in (0o022, 0o077, 0o002):
        before = os.umask(mask)
        try:
            replace_text(tmp_path / "file", "new")
            (tmp_path / "ordinary").unlink(missing_ok=True)
            (tmp_path / "ordinary").write_text("new")
        finally:
            os.umask(before)
        modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("file", "ordinary")]
        assert modes[0] == modes[1] == 0o666 & ~mask


def test_a_failed_replacement_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)  # no room for a longer name beside it
    replace_text(path, "old")

    def fail() -> None:
        with replaced(path) as file:
            file.write(b"half of the new one")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_a_file_that_many_replace_at_once_is_always_one_of_theirs(tmp_path: Path) -> None:
    path, texts = tmp_path / "view.html", [str(number) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(len(texts)) as threads:
        for _ in range(5):
            for done in [threads.submit(replace_text, path, text) for text in texts]:
                done.result()
            assert path.read_text() in texts
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_no_file_is_opened_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").touch()
    for target in ("victim", "nothing"):
        path = tmp_path / f"to_{target}"
        path.symlink_to(tmp_path / target)
        for opened in (open_to_append, open_to_change):
            with pytest.raises(OSError, match=path.name):
                opened(path)
    assert not (tmp_path / "nothing").exists()


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let no more bytes than these be written: the error of a disk that is full, but for its number."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_the_error_of_a_disk_without_room_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with files_of_at_most(1000), JsonLinesWriter(path) as log:
        log.write({"text": "x" * (1000 - len('{"text": ""}\n'))})
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EFBIG))) as appended:
            log.write({"text": "y"})
        with pytest.raises(OSError, match=re.escape(os.strerror(errno.EFBIG))) as replacing:
            write_json_lines([{"text": "z" * 2000}], path)
    assert appended.value.filename == replacing.value.filename == str(path)
    assert path.read_text().count("x") > 900


def test_an_evaluation_on_a_full_disk_says_so_in_one_line_and_resumes(tmp_path: Path) -> None:
    words = ["eval", "TrlEnv/Echo-v0", "--policy", "random", "--episodes", "100", "--out", str(tmp_path / "e")]
    with files_of_at_most(30_000):
        full = run_command_line(words)
    assert full.exit_code == 2
    assert full.stderr.splitlines()[-1].startswith("Error: ")
    assert "Traceback" not in full.stderr
    before = list(read_json_lines(tmp_path / "e" / "rollouts.jsonl"))
    assert 0 < len(before) < 100
    assert run_command_line(words).exit_code == 0
    after = list(read_json_lines(tmp_path / "e" / "rollouts.jsonl"))
    assert after[: len(before)] == before
    assert len({(one["task"]["id"], one["attempt"]) for one in after}) == len(after) == 100


def test_a_bar_on_a_terminal_that_is_closed_is_no_error() -> None:
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


def test_nohup_keeps_the_terminals_end_away() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupt(speaks=False, patience_s=0.0) as interrupt:
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
            assert not interrupt.requested
    finally:
        signal.signal(signal.SIGHUP, before)
