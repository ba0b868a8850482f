# mypy: allow-untyped-defs
"""The benchmarks say what they measured."""

import json
from pathlib import Path

import pytest
import report
import suite

RESULTS = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("*.json"))


def test_the_tables_of_the_readme_are_those_of_the_results():
    readme = report.README.read_text(encoding="utf-8")
    assert report.with_tables(readme) == readme, "run python benchmarks/report.py"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_result_says_where_how_and_when_it_was_measured(file):
    result = json.loads(file.read_text(encoding="utf-8"))
    for known in ("machine", "cores", "python", "versions", "command", "date"):
        assert result[known], known


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_table_of_a_result_has_its_place_in_the_readme(file):
    readme = report.README.read_text(encoding="utf-8")
    for table in json.loads(file.read_text(encoding="utf-8"))["tables"]:
        assert f"<!-- table: {table['name']} -->" in readme


@pytest.mark.parametrize("name", [benchmark.name for benchmark in suite.SUITE])
def test_every_benchmark_of_the_suite_has_a_result_and_a_table(name):
    [file] = [file for file in RESULTS if file.stem == name]
    assert json.loads(file.read_text(encoding="utf-8"))["tables"]


def test_a_published_result_has_figures_a_table_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "HERE", tmp_path)
    monkeypatch.setattr(report, "README", tmp_path / "README.md")
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.README.write_text("# Speed\n\n<!-- table: speed -->\nold\n<!-- /table -->\n\nThe end.\n", encoding="utf-8")
    table = report.Table("speed", ["who", "steps"], [["ours", 139], ["others", 303.04]])
    report.publish(
        "speed", {"steps": [139, 303.04]}, tables=[table], picture=lambda figure: figure.subplots().plot([1, 2])
    )
    readme = report.README.read_text(encoding="utf-8")
    assert "old" not in readme
    assert readme.endswith(
        "| ours | 139 |\n| others | 303 |\n\n![speed](results/speed.png)\n<!-- /table -->\n\nThe end.\n"
    )
    assert json.loads((tmp_path / "results" / "speed.json").read_text())["steps"] == [139, 303.04]
    assert (tmp_path / "results" / "speed.png").read_bytes().startswith(b"\x89PNG")
    assert "| ours | 139 |" in capsys.readouterr().out


def test_a_table_without_a_place_is_an_error_that_says_what_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "HERE", tmp_path)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(report, "README", tmp_path / "README.md")
    report.README.write_text("# Speed\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="<!-- table: speed -->"):
        report.publish("speed", {}, tables=[report.Table("speed", ["who"], [["ours"]])])
    assert (tmp_path / "results" / "speed.json").exists()


def test_a_benchmark_that_cannot_run_here_says_what_it_needs_and_is_no_failure(tmp_path, monkeypatch, capsys):
    (tmp_path / "bench_pages.py").write_text(
        "from report import require\nrequire(programs=['no-such-browser'], packages=['no_such_package'])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(report.HERE))
    for name, value in {
        "HERE": tmp_path,
        "LOGS": tmp_path / "logs",
        "SUITE": (suite.Benchmark("pages", "How long does a page take?"),),
    }.items():
        monkeypatch.setattr(suite, name, value)
    monkeypatch.setattr("sys.argv", ["suite.py"])
    assert suite.main() == 0
    said = " ".join(capsys.readouterr().out.split())  # which is as wide as a terminal
    assert "left out: it needs no-such-browser and no_such_package, not found on this machine" in said


def test_cells_are_shown_with_three_digits():
    assert [report.shown(cell) for cell in ("a", 1234.5, 0.0123, 16384, 2.0, None)] == [
        "a", "1,230", "0.0123", "16,384", "2", "",
    ]  # fmt: skip
