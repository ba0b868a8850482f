import json
import re
from pathlib import Path

import pytest
from support.viewer_runs import played, write_run

from gym_trl.errors import ConfigError
from gym_trl.records import append, record_of
from gym_trl.viewer.frame import show
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
    record = record_of(played(turns=1, observation="x" * 400_000))
    (tmp_path / "rollouts.jsonl").write_text(f"{json.dumps(record)}\n" * 9)
    counts = write_page(tmp_path, tmp_path / "page.html")
    assert (counts["episodes"], counts["chunks"]) == (9, 3)
    assert counts["bytes"] < 200_000


def test_a_page_is_whole_or_not_there(tmp_path: Path) -> None:
    (tmp_path / "rollouts.jsonl").write_text(
        '{"version": 1, "task": {}, "turns": []}\n{"version": 9, "task": {}, "turns": []}\n'
    )
    (tmp_path / "page.html").write_text("old")
    with pytest.raises(ConfigError):
        write_page(tmp_path, tmp_path / "page.html")
    assert {file.name for file in tmp_path.iterdir()} == {"rollouts.jsonl", "page.html"}
    assert (tmp_path / "page.html").read_text() == "old"


def test_a_notebook_gets_the_page_in_a_frame_with_an_origin_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    frame = show(write_run(tmp_path / "run"))
    assert frame.src.startswith("data:text/html;base64,")
    assert (tmp_path / "run" / "view.html").is_file()
    with pytest.raises(ConfigError):
        show(tmp_path)


def test_the_same_run_makes_the_same_page(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("one.html", "two.html"):
        write_page(folder, tmp_path / name)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_records_are_never_replaced_by_what_is_made_of_them(tmp_path: Path) -> None:
    file = write_run(tmp_path / "run") / "rollouts.jsonl"
    before = file.read_bytes()
    with pytest.raises(ConfigError):
        write_page(file, file)
    assert file.read_bytes() == before


def test_a_page_that_is_watched_asks_for_itself_again(tmp_path: Path) -> None:
    write_page(write_run(tmp_path / "run"), tmp_path / "page.html", refresh=10)
    assert '<meta http-equiv="refresh" content="10">' in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_of_five_thousand_episodes_keeps_their_words_in_chunks(tmp_path: Path) -> None:
    append(tmp_path / "rollouts.jsonl", [record_of(played(seed=seed)) for seed in range(5_000)])
    counts = write_page(tmp_path, tmp_path / "page.html")
    assert counts["episodes"] == 5_000
    assert counts["chunks"] == 40
