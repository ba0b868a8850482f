"""The benchmarks say what they measured."""

import json
from pathlib import Path

import bench_credit
import bench_gpu
import goals
import numpy as np
import pytest
import report
import suite
from typer.testing import CliRunner

from gym_trl.cli.app import app

RESULTS = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    assert report.with_tables(page) == page.read_text(encoding="utf-8"), "run python benchmarks/report.py"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_every_table_of_a_result_has_its_place_on_one_page(file):
    pages = [page.read_text(encoding="utf-8") for page in report.PAGES]
    for table in json.loads(file.read_text(encoding="utf-8"))["tables"]:
        assert sum(f"<!-- table: {table['name']} -->" in page for page in pages) == 1


@pytest.mark.parametrize("name", [benchmark.name for benchmark in suite.SUITE])
def test_every_benchmark_of_the_suite_has_a_result_and_a_table(name):
    [file] = [file for file in RESULTS if file.stem == name]
    assert json.loads(file.read_text(encoding="utf-8"))["tables"]


def test_a_published_result_has_figures_a_table_and_a_picture(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "HERE", tmp_path)
    monkeypatch.setattr(report, "PAGES", (tmp_path / "README.md",))
    (tmp_path / "results").mkdir()
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    report.PAGES[0].write_text("# Speed\n\n<!-- table: speed -->\nold\n<!-- /table -->\n\nThe end.\n", encoding="utf-8")
    table = report.Table("speed", ["who", "steps"], [["ours", 139], ["others", 303.04]])
    report.publish(
        "speed", {"steps": [139, 303.04]}, tables=[table], picture=lambda figure: figure.subplots().plot([1, 2])
    )
    readme = report.PAGES[0].read_text(encoding="utf-8")
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
    monkeypatch.setattr(report, "PAGES", (tmp_path / "README.md",))
    report.PAGES[0].write_text("# Speed\n", encoding="utf-8")
    with pytest.raises(SystemExit, match="<!-- table: speed -->"):
        report.publish("speed", {}, tables=[report.Table("speed", ["who"], [["ours"]])])
    assert (tmp_path / "results" / "speed.json").exists()


def test_a_benchmark_without_its_needs_is_left_out_and_no_failure(tmp_path, monkeypatch, capsys):
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
    monkeypatch.setattr("sys.argv", ["suite.py", "pages"])
    assert suite.main() == 0
    said = " ".join(capsys.readouterr().out.split())  # which is as wide as a terminal
    assert "left out: it needs no-such-browser and no_such_package, not found on this machine" in said


def test_a_missed_goal_has_its_figures_in_bold_and_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    goal = goals.Goal("two games", "games", lambda found: found["ratios"], 1.1, at_least=True, reason="no time")
    assert goals.row(goal)[2:] == ["not measured", "", ""]
    for ratios, cells in {
        (1.1, 1.25): ["1.1, 1.25", "2026-11-23", ""],
        (1.05, 1.25): ["**1.05, 1.25**", "2026-11-23", "no time"],
    }.items():
        (tmp_path / "games.json").write_text(json.dumps({"ratios": ratios, "date": "2026-11-23"}), encoding="utf-8")
        assert goals.row(goal) == ["two games", "at least 1.1", *cells]


def test_every_goal_finds_its_figures_in_the_published_results():
    assert [goal.what for goal in goals.GOALS if goals.row(goal)[2] == "not measured"] == []


def test_a_section_that_fails_is_written_down_and_the_others_go_on(monkeypatch):
    def fail(folder):
        raise RuntimeError("no room")

    monkeypatch.setattr(bench_gpu, "SECTIONS", {"server": fail, "fidelity": lambda folder: {"rows": [], "of": folder}})
    written = []
    figures = bench_gpu.measure("model", ["server", "fidelity"], lambda found: written.append(dict(found)))
    of = {"model": "model"}
    assert figures == {"server": of | {"failed": "no room"}, "fidelity": of | {"rows": [], "of": "model"}}
    assert [list(found) for found in written] == [["server"], ["server", "fidelity"]]


@pytest.mark.parametrize(
    ("gpu", "words", "said"),
    [
        (None, ["model"], "needs a GPU, and PyTorch finds none"),
        ("NVIDIA H100", [], r"give one model: make bench-gpu MODEL=FOLDER"),
        ("NVIDIA H100", ["one", "two"], r"got \['one', 'two'\]"),
    ],
)
def test_what_cannot_be_measured_is_said_in_a_line(gpu, words, said, monkeypatch):
    monkeypatch.setattr(bench_gpu, "gpu_name", lambda: gpu)
    monkeypatch.setattr("sys.argv", ["bench_gpu.py", *words])
    with pytest.raises(SystemExit, match=said) as ended:
        bench_gpu.main()
    assert "\n" not in str(ended.value)


@pytest.mark.parametrize("one", bench_gpu.REFERENCES.values(), ids=list(bench_gpu.REFERENCES))
def test_the_options_of_a_published_training_are_accepted(one):
    """A machine with a GPU would show a wrong one after the model has been loaded from the hub."""
    done = CliRunner().invoke(app, ["train", *one.env.split(), *one.options.split(), "--print-config"])
    assert done.exit_code == 0, done.stderr
    assert all(0 <= success <= 1 for _, success in one.published)


def test_the_enumeration_of_a_game_has_its_optimum_and_exact_advantages():
    [game] = [game for game in bench_credit.GAMES if game.name == "GuessNumber"]
    model = bench_credit.Model(game)
    assert model.exact(model.untrained).value == pytest.approx(1 - (7 / 8) ** 4)  # four guesses that forget the others
    half = model.trained(0.5)
    value, advantages, gradient = model.exact(half)
    assert model.best > 0.99
    assert value == pytest.approx((1 - (7 / 8) ** 4 + model.best) / 2, abs=0.05)  # the first step beyond
    assert (model.probabilities(half)[model.seen] * advantages).sum(axis=1) == pytest.approx(0, abs=1e-9)
    step = 1e-6 * np.random.default_rng(0).normal(size=half.shape)
    assert model.exact(half + step).value - value == pytest.approx((gradient * step).sum(), rel=1e-3)


def test_the_exact_advantages_have_no_bias():
    [game] = [game for game in bench_credit.GAMES if game.name == "TowerOfHanoi"]
    model = bench_credit.Model(game)
    found = bench_credit.compare(model, model.trained(0.5), groups=160)["exact"]
    assert found.correlation == pytest.approx(1.0)
    assert (found.cosine, found.length) == pytest.approx((1.0, 1.0), abs=0.1)
    assert 0.5 * found.signal_to_noise < found.accuracy <= found.signal_to_noise
