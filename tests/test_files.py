"""Nothing is written through what somebody has planted in a folder, and a folder that cannot be written can be read."""

import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gym_trl.cli.app import app
from gym_trl.files import open_to_append, replace_text, replaced
from gym_trl.records.json_lines import JsonLinesWriter, mend


def test_view_replaces_no_file_that_a_link_in_the_folder_points_to(tmp_path: Path) -> None:
    victim, run = tmp_path / "victim", tmp_path / "run"
    run.mkdir()
    victim.write_text("precious")
    (run / "rollouts.jsonl").write_text('{"return": 1.0, "turns": []}\n')
    for name in (".view.html.new", "view.html"):
        (run / name).symlink_to(victim)
    assert CliRunner().invoke(app, ["view", str(run)]).exit_code == 0
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


def test_a_folder_that_is_a_link_is_written_like_any_other(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "runs").symlink_to("disk")
    replace_text(tmp_path / "runs" / "config.json", "{}")
    with JsonLinesWriter(tmp_path / "runs" / "log.jsonl") as log:
        log.write({"step": 1})
    assert sorted(entry.name for entry in (tmp_path / "disk").iterdir()) == ["config.json", "log.jsonl"]


@pytest.mark.parametrize("opened", [open_to_append, mend, JsonLinesWriter], ids=lambda one: one.__name__)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, opened: object) -> None:
    os.mkfifo(tmp_path / "log.jsonl")
    assert callable(opened)
    with pytest.raises(OSError, match=r"log\.jsonl is a pipe, not a file: remove it"):
        opened(tmp_path / "log.jsonl")
