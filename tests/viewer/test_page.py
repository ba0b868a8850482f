"""The page of a run, which is one file."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples
from support.viewer_runs import played, recorded, write_run

from gym_trl.errors import ConfigError
from gym_trl.evaluation import Score
from gym_trl.records import ROLLOUTS, append, read_records, record_of
from gym_trl.types import StopReason
from gym_trl.viewer.page import policy, show, write_page
from gym_trl.viewer.run import Run

JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({*recorded(played()), "advantages"})


def read(path: Path, **options: Any) -> tuple[dict[str, Any], list[Any]]:
    run = Run(path, **options)
    episodes = list(run.episodes())
    return run.index(), episodes


def test_a_run_has_a_row_a_record_and_the_tokens_of_every_episode(tmp_path: Path) -> None:
    index, episodes = read(write_run(tmp_path / "run"))
    columns = index["columns"]
    assert {len(values) for values in columns.values()} == {len(episodes)} == {32}
    assert columns["return"][:4] == [1.0, -0.5, -0.5, -0.5]
    assert columns["turns"][:4] == [1, 2, 3, 1]
    assert columns["same"][:8] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert [one["policy"] for one in index["scores"]] == ["before", "after", "random"]
    record, tokens = episodes[5]
    assert record["turns"][1]["answer"] == "ox 1.5"
    assert "".join(tokens["texts"]) == "ox 1.5Say ox.ox 1.5"
    assert tokens["mask"] == [*[1] * 6, *[0] * 7, *[1] * 6]


def test_lines_that_are_no_records_are_left_out(tmp_path: Path) -> None:
    line = json.dumps(record_of(played()))
    (tmp_path / ROLLOUTS).write_text(f"[1]\nnonsense\n{'[' * 100_000}\n\n{line}\n{line[:40]}")
    assert write_page(tmp_path, tmp_path / "view.html") | {"bytes": 0} == {"episodes": 1, "broken": 4, "bytes": 0}


def test_success_that_others_declare_has_failed_without_a_declaration(tmp_path: Path) -> None:
    """Law 13."""
    append(tmp_path / ROLLOUTS, [record_of(played()) | {"success": None}])
    assert read(tmp_path)[0]["columns"]["success"] == [None]
    append(tmp_path / ROLLOUTS, [record_of(played())])
    index, _ = read(tmp_path)
    assert index["columns"]["success"] == [False, True]
    assert [one["success"]["mean"] for one in index["scores"]] == [0.5]


def test_a_score_is_the_same_number_as_that_of_an_evaluation(tmp_path: Path) -> None:
    """Law 13."""
    records = [record_of(played(seed=seed // 2, reward=seed % 3), policy="solver") for seed in range(24)]
    append(tmp_path / ROLLOUTS, [one | {"success": one["return"] == 2} for one in records])
    [shown] = read(tmp_path)[0]["scores"]
    score = Score("solver", list(read_records(tmp_path)))
    assert [shown["success"], shown["return"]] == [score.mean()._asdict(), score.mean("return")._asdict()]


def test_ids_become_text_by_the_runs_own_tokenizer_or_one_that_is_given(tmp_path: Path) -> None:
    import tokenizers

    folder = tmp_path / "run"
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.add_tokens(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    ids = tokenizer.encode(tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str("né")[0][0]).ids
    record = {**record_of(played()), "completion_ids": [*ids, 9999], "mask": [1] * 4, "logprobs": [-0.5] * 4}
    append(folder / ROLLOUTS, [record])
    assert read(folder)[1][0][1]["texts"] is None
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    pieces = ["n", "", "é", ""]  # the second byte of two has the character
    assert read(folder, tokenizer=tmp_path)[1][0][1]["texts"] == pieces
    (folder / "model").mkdir()
    (tmp_path / "tokenizer.json").replace(folder / "model" / "tokenizer.json")
    assert read(folder)[1][0][1]["texts"] == pieces


def test_the_page_is_one_file_that_names_no_other_place(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    for name in ("one.html", "two.html"):
        write_page(folder, tmp_path / name)
    page = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert re.findall(r"(?:src|href)=\"([^#\"][^\"]*)", page) == []
    assert set(re.findall(r"https?://[^\"' ]+", page)) == {"http://www.w3.org/2000/svg"}
    assert page == (tmp_path / "two.html").read_text(encoding="utf-8")
    assert "unsafe" not in policy()


def test_a_page_is_whole_or_not_there_and_replaces_no_records(tmp_path: Path) -> None:
    file = tmp_path / ROLLOUTS
    file.write_text('{"version": 1, "task": {}, "turns": []}\n{"version": 9, "task": {}, "turns": []}\n')
    (tmp_path / "page.html").write_text("old")
    for run, out in ((tmp_path, tmp_path / "page.html"), (file, file), (tmp_path / "nope", tmp_path / "page.html")):
        with pytest.raises(ConfigError):
            write_page(run, out)
    assert {one.name for one in tmp_path.iterdir()} == {ROLLOUTS, "page.html"}
    assert (tmp_path / "page.html").read_text() == "old"
    assert file.read_text().count("version") == 2


@pytest.mark.slow
def test_a_notebook_gets_the_page_in_a_frame_with_an_origin_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("IPython")
    assert show(write_run(tmp_path / "run")).src.startswith("data:text/html;base64,")
    with pytest.raises(ConfigError):
        show(tmp_path)


def test_every_stop_reason_has_a_colour() -> None:
    style = files("gym_trl.viewer").joinpath("page.css").read_text(encoding="utf-8")
    assert set(re.findall(r'\[data-ended="(\w+)"\]', style)) == {*StopReason, "failed"}


@examples(100)
@given(st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=4), JSON), JSON, JSON)
def test_anything_in_the_files_is_written_or_counted_as_broken(
    tmp_path_factory: pytest.TempPathFactory, changed: dict[str, Any], config: Any, before: Any
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / ROLLOUTS).write_text(json.dumps({**recorded(played()), **changed, "version": 1}) + "\n")
    (folder / "config.json").write_text(json.dumps({"options": config}))
    (folder / "summary.json").write_text(json.dumps({"before": before, "after": {"model": before}}))
    counts = write_page(folder, folder / "view.html") if list(read_records(folder)) else {"episodes": 0, "broken": 1}
    assert counts["episodes"] + counts["broken"] == 1
