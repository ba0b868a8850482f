import json
import re
from pathlib import Path

import pytest
from support.command_line import run_command_line
from support.viewer_runs import played, write_run

from gym_trl.errors import ConfigError
from gym_trl.records.schema import as_record
from gym_trl.viewer.page import policy, write_page


def test_the_page_is_one_file_that_names_no_other_place(tmp_path: Path) -> None:
    counts = write_page(write_run(tmp_path / "run"), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert counts == {"episodes": 32, "chunks": 1, "broken": 0, "bytes": len(text.encode())}
    assert re.findall(r"(?:src|href)=\"([^#\"][^\"]*)", text) == []
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}
    assert "[[" not in re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)


def test_the_policy_allows_its_one_script_and_no_requests() -> None:
    assert "default-src 'none'; script-src 'sha256-" in policy()
    assert "connect-src 'none'" in policy()
    assert "unsafe" not in policy()


def test_chunks_end_before_they_are_large(tmp_path: Path) -> None:
    record = as_record(played(turns=1, observation="x" * 400_000))
    (tmp_path / "rollouts.jsonl").write_text(f"{json.dumps(record)}\n" * 9)
    counts = write_page(tmp_path, tmp_path / "page.html")
    assert (counts["episodes"], counts["chunks"]) == (9, 3)
    assert counts["bytes"] < 200_000


def test_a_page_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text(
        '{"version": 1, "task": {}, "turns": []}\n{"version": 9, "task": {}, "turns": []}\n'
    )
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(ConfigError, match="version 9"):
        write_page(tmp_path, tmp_path / "page.html")
    assert {file.name for file in tmp_path.iterdir()} == {"rollouts.jsonl", "page.html"}
    assert (tmp_path / "page.html").read_text() == "old"


def test_the_same_run_makes_the_same_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("one.html", "two.html"):
        write_page(folder, tmp_path / name)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


@pytest.mark.parametrize("name", ["rollouts.jsonl", "rollouts.html"])
def test_records_are_never_replaced_by_what_is_made_of_them(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes((write_run(tmp_path / "run") / "rollouts.jsonl").read_bytes())
    before, file = (tmp_path / name).read_bytes(), str(tmp_path / name)
    ran = run_command_line(["view", file, "--out", file])
    assert ran.exit_code == 2
    assert "has the records that are read; choose another --out" in ran.stderr
    assert (tmp_path / name).read_bytes() == before
    if name.endswith(".html"):
        assert run_command_line(["view", file]).exit_code == 2
        assert (tmp_path / name).read_bytes() == before
