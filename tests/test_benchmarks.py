# mypy: allow-untyped-defs
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

RESULTS = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("*.json"))


@pytest.mark.parametrize("page", report.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    assert report.with_tables(page) == page.read_text(encoding="utf-8"), "run python benchmarks/report.py"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: file.stem)
def test_a_result_says_where_how_and_when_it_was_measured(file):
    result = json.loads(file.read_text(encoding="utf-8"))
    for known in ("machine", "cores", "python", "versions", "command", "date"):
        assert result[known], known


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
    monkeypatch.setattr("sys.argv", ["suite.py", "pages"])
    assert suite.main() == 0
    said = " ".join(capsys.readouterr().out.split())  # which is as wide as a terminal
    assert "left out: it needs no-such-browser and no_such_package, not found on this machine" in said


def test_a_goal_has_its_figures_in_bold_and_a_reason_if_one_of_them_misses_it(tmp_path, monkeypatch):
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


def test_cells_are_shown_with_three_digits():
    assert [report.shown(cell) for cell in ("a", 1234.5, 0.0123, 16384, 2.0, None)] == [
        "a", "1,230", "0.0123", "16,384", "2", "",
    ]  # fmt: skip


GPU_FIGURES = {
    "colocated": {
        "rows": [
            {
                "latency_ms": 100,
                "continuous": {"tokens_per_s": 900.0, "turns_per_s": 30.0, "steps": 139},
                "lockstep": {"tokens_per_s": 450.0, "turns_per_s": 15.0, "steps": 303},
            }
        ]
    },
    "server": {"tokens_per_s": {"ours": 95.0, "bare": 100.0, "by turns": 80.0}},
    "fidelity": {
        "engine": "bfloat16",
        "rows": [{"trainer": "float32", "mean": 0.0123, "max": 0.5, "tokens": 800}],
    },
    "learning": {
        "steps": 2,
        "seconds": 50.0,
        "success_before": 0.25,
        "success_random": None,
        "success_after": 0.5,
        "ratio_mean_lowest": 0.999,
        "curve": [{"step": 1, "success": 0.25}, {"step": 2, "success": None}],
    },
    "learning-server": {"left_out": "one GPU"},
    "more": {"failed": "Traceback ...\nRuntimeError: no | room"},
}


def test_the_results_of_a_gpu_are_named_after_it_and_have_a_row_for_each_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    monkeypatch.setattr(report, "PAGES", (tmp_path / "README.md",))
    monkeypatch.setattr(bench_gpu, "gpu_name", lambda: "NVIDIA H100 80GB HBM3")
    report.PAGES[0].write_text("<!-- table: gpu -->\n<!-- /table -->\n", encoding="utf-8")
    bench_gpu._write("NVIDIA H100 80GB HBM3", "models/qwen", GPU_FIGURES, part=False)
    result = json.loads((tmp_path / "gpu-nvidia-h100-80gb-hbm3.json").read_text(encoding="utf-8"))
    assert (result["gpu"], result["model"], result["sections"]) == ("NVIDIA H100 80GB HBM3", "qwen", GPU_FIGURES)
    assert (tmp_path / "gpu-nvidia-h100-80gb-hbm3.png").read_bytes().startswith(b"\x89PNG")
    rows = [" ".join(map(report.shown, row)) for row in result["tables"][0]["rows"]]
    assert "colocated tokens/s, environments of 100 ms 900 lockstep: 450" in rows
    assert "server tokens/s 95 bare: 100, by turns: 80" in rows
    assert "learning success after 2 steps 0.5 before: 0.25" in rows
    assert "learning seconds of a step 25 " in rows
    assert "learning-server left out: one GPU  " in rows
    assert "more failed: RuntimeError: no / room  " in rows


def test_a_section_that_fails_is_written_down_and_the_others_go_on(monkeypatch):
    def fail(folder):
        raise RuntimeError("no room")

    monkeypatch.setattr(bench_gpu, "SECTIONS", {"server": fail, "fidelity": lambda folder: {"rows": [], "of": folder}})
    written = []
    figures = bench_gpu.measure("model", ["server", "fidelity"], lambda found: written.append(dict(found)))
    assert figures == {"server": {"failed": "no room"}, "fidelity": {"rows": [], "of": "model"}}
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


def test_the_enumeration_of_a_game_knows_its_optimum_and_the_advantages_of_a_policy():
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
