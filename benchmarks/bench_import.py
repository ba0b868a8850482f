"""Measure start-up time and installed size of gym-trl and similar packages.

$ python benchmarks/bench_import.py [--quick]

Each package is installed with its dependencies (no extras) in a folder of its own: those of
``benchmarks/peers/alone-*.txt``, which ``make bench`` installs from PyPI, and ours as this checkout's wheel. A bare
interpreter (``-I -S``) sees that folder only; bytecode is compiled, files are in the system's cache; processor time,
medians. Sizes are without bytecode. What is not installed, or cannot be imported or started, has a gap in its row; the
reason is printed and is in the results.
"""

import shutil
import subprocess
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from report import QUICK, Table, publish

ROOT = Path(__file__).parents[1]
FOLDERS = ROOT / ".venv" / ".bench"
REPEATS = 2


class Package(NamedTuple):
    """Import, command and location of a package."""

    folder: str
    module: str
    command: str | None = None
    """Console script that is run with ``--help``."""
    first: str | None = None
    """Python code that prints a number game's first observation, if the package has one."""


OURS = "gym-trl"
PACKAGES = {
    OURS: Package(
        "gym-trl", "gym_trl", "gym-trl",
        "import gymnasium, gym_trl; gymnasium.make('TrlEnv/GuessNumber-v0').reset(seed=0)",
    ),
    "gem-llm": Package(
        "alone-gem-llm", "gem", None, "import gem; gem.make('game:GuessTheNumber-v0-easy').reset()",
    ),
    "textarena": Package(
        "alone-textarena", "textarena", None,
        "import textarena; e = textarena.make('GuessTheNumber-v0'); e.reset(num_players=1); e.get_observation()",
    ),
    "openenv": Package("alone-openenv", "openenv", "openenv"),
    "verifiers": Package("alone-verifiers", "verifiers", "vf-eval"),
    "eval-protocol": Package("alone-eval-protocol", "eval_protocol", "eval-protocol"),
    # It needs what TRL needs, torch and its CUDA among it: nothing but its own size is measured.
    "trl-env": Package("../.peers/trl-env", "trl_env"),
}  # fmt: skip
TIMED = """
import sys, time
sys.path.insert(0, {folder!r})
known, began = set(sys.modules), time.process_time()
{code}
print("measured", time.process_time() - began, len(set(sys.modules) - known))
"""
SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
sys.argv = {argv!r}
began = time.process_time()
try:
    from {module} import {function} as main
    main()
except SystemExit as end:
    if end.code:
        raise
sys.stdout.flush()
print("\\nmeasured", time.process_time() - began, len(sys.modules))
"""


def install_ours(folder: Path) -> None:
    """Install this checkout's wheel with its dependencies."""
    shutil.rmtree(folder, ignore_errors=True)
    words = ["install", "--quiet", "--no-warn-conflicts", "--target", str(folder), str(ROOT)]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600, capture_output=True, text=True)


def timed(code: str) -> tuple[float, int]:
    """Return the median seconds of processor time, and the number of loaded modules."""
    made = []
    for attempt in range(REPEATS + 1):
        words = [sys.executable, "-I", "-S", "-W", "ignore", "-c", code]
        ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False, cwd=FOLDERS)
        if ran.returncode:
            raise RuntimeError((ran.stderr.strip().splitlines() or ["no reason given"])[-1])
        if attempt:  # the first compiles
            _, seconds, modules = ran.stdout.strip().splitlines()[-1].split()
            made.append((float(seconds), int(modules)))
    return median(seconds for seconds, _ in made), made[-1][1]


def entry_point(found: Distribution, command: str) -> tuple[str, str]:
    """Return the module and the function of a console script."""
    [point] = [point for point in found.entry_points if point.group == "console_scripts" and point.name == command]
    return point.module, point.attr


def own_size(found: Distribution) -> int:
    """Return the bytes of a distribution's own files."""
    files = [Path(str(found.locate_file(file))) for file in found.files or ()]
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file())


def size(folder: Path) -> int:
    """Return the bytes of all files except bytecode."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc")


def measure(name: str, package: Package) -> dict[str, Any]:
    """Return one row; failures are in its ``errors``."""
    errors: dict[str, str] = {}
    row: dict[str, Any] = {"errors": errors}
    folder = FOLDERS / package.folder
    if name == OURS:
        install_ours(folder)
    if not folder.exists():
        return {"errors": {"install": "it is not there: make bench installs it"}}
    here = {found.metadata["Name"].lower(): found for found in distributions(path=[str(folder)])}
    if (found := here.get(name)) is None:
        return {"errors": {"install": f"{folder} has {len(here)} packages and not this one: delete it, and make bench"}}
    row["version"], row["own_mb"] = found.version, own_size(found) / 1e6
    if len(here) == 1:  # without what it needs
        return row
    row["all_mb"], row["distributions"] = size(folder) / 1e6, len(here)
    ways = {"import": TIMED.format(folder=str(folder), code=f"import {package.module}")}
    if package.command:
        module, function = entry_point(found, package.command)
        commands = {"help": ["--help"], **({"list": ["list"]} if name == OURS else {})}
        for way, words in commands.items():
            argv = [package.command, *words]
            ways[way] = SCRIPT.format(folder=str(folder), argv=argv, module=module, function=function)
    if package.first:
        ways["first"] = TIMED.format(folder=str(folder), code=package.first)
    for way, code in ways.items():
        try:
            row[f"{way}_s"], row[f"{way}_modules"] = timed(code)
        except RuntimeError as error:
            errors[way] = str(error)
    return row


def floor() -> dict[str, Any]:
    """Return the figures of Gymnasium alone, which every Gymnasium environment includes."""
    folder = str(FOLDERS / PACKAGES[OURS].folder)
    seconds, modules = timed(TIMED.format(folder=folder, code="import gymnasium"))
    return {"import_s": seconds, "import_modules": modules, "errors": {}}


def draw(figure: Any, rows: dict[str, dict[str, Any]]) -> None:
    """Draw bars for seconds and megabytes."""
    names = [name for name in rows if "own_mb" in rows[name]]
    panels = {"import_s": "import: seconds", "help_s": "--help: seconds", "all_mb": "installed: MB"}
    for axes, (key, title) in zip(figure.subplots(1, 3, sharey=True), panels.items(), strict=True):
        values = [rows[name].get(key, 0) for name in names]
        bars = axes.barh(names, values, color=["tab:blue" if name == OURS else "tab:gray" for name in names])
        axes.bar_label(bars, [f"{value:.3g}" if value else "" for value in values], padding=2)
        axes.set_title(title)
        axes.margins(x=0.2)
        axes.invert_yaxis()


def main() -> None:
    """Measure, and write the table."""
    names = [OURS] if QUICK else list(PACKAGES)
    rows = {name: measure(name, PACKAGES[name]) for name in names}
    rows["gymnasium alone"] = floor()
    for name, row in rows.items():
        for way, error in row["errors"].items():
            print(f"{name}: {way}: {error}", flush=True)

    def cells(name: str, row: dict[str, Any]) -> list[Any]:
        called = f"{name} {row['version']}" if "version" in row else name
        times = [None if f"{way}_s" not in row else 1000 * row[f"{way}_s"] for way in ("import", "first", "help")]
        return [called, times[0], row.get("import_modules"), *times[1:], *map(row.get, ("own_mb", "all_mb"))]

    header = ["", "import: ms", "modules", "to a game's first observation: ms", "`--help`: ms", "own MB"]
    publish(
        "import",
        {"rows": rows},
        tables=[Table("import", [*header, "MB with its needs"], [cells(name, row) for name, row in rows.items()])],
        picture=lambda figure: draw(figure, rows),
    )
    print(f"gym-trl list: {1000 * rows[OURS].get('list_s', 0):.0f} ms")


if __name__ == "__main__":
    main()
