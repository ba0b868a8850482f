"""Measure start-up time and installed size of gym-trl and similar packages.

$ python benchmarks/bench_import.py [--quick]

Each package is installed with its dependencies (no extras) in a folder of its own: those of
``benchmarks/peers/alone-*.txt``, which ``make bench`` installs from PyPI, and ours as this checkout's wheel. A bare
interpreter (``-I -S``) with this folder on its path is timed: processor time, medians, bytecode compiled before. Sizes
are without bytecode. A missing or failing package has gaps in its row; the reason is printed and is in the results.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import Distribution, distributions
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from report import QUICK, Column, Table, publish, run

ROOT = Path(__file__).parents[1]
FOLDERS = ROOT / ".venv" / ".bench"
REPEATS = 3


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
    "skyrl-gym": Package("alone-skyrl-gym", "skyrl_gym"),
    "openenv": Package("alone-openenv", "openenv", "openenv"),
    "verifiers": Package("alone-verifiers", "verifiers", "vf-eval"),
    "eval-protocol": Package("alone-eval-protocol", "eval_protocol", "eval-protocol"),
    # It needs what TRL needs, torch and its CUDA among it: nothing but its own size is measured.
    "trl-env": Package("../.peers/trl-env", "trl_env"),
}  # fmt: skip
TIMED = """
import sys, time
sys.path.insert(0, {folder!r})
{before}
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
    [point] = [point for point in found.entry_points if point.group == "console_scripts" and point.name == command]
    return point.module, point.attr


def megabytes(files: Iterable[Path]) -> float:
    """Return the size of files except bytecode."""
    return sum(file.stat().st_size for file in files if file.suffix != ".pyc" and file.is_file()) / 1e6


def measure(name: str, package: Package) -> dict[str, Any]:
    """Return one row; failures are in its ``errors``."""
    folder = FOLDERS / package.folder
    if name == OURS:
        shutil.rmtree(folder, ignore_errors=True)
        words = ["install", "--quiet", "--no-warn-conflicts", "--target", str(folder), str(ROOT)]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True, timeout=600, capture_output=True, text=True)
    here = {found.metadata["Name"].lower(): found for found in distributions(path=[str(folder)])}
    if (found := here.get(name)) is None:
        return {"errors": {"install": f"{folder} has {len(here)} packages and not this one: delete it, and make bench"}}
    errors: dict[str, str] = {}
    row: dict[str, Any] = {"version": found.version, "errors": errors}
    row["own_mb"] = megabytes(Path(str(found.locate_file(file))) for file in found.files or ())
    if len(here) == 1:  # without its dependencies
        return row
    row["all_mb"], row["distributions"] = megabytes(folder.rglob("*")), len(here)
    ways = {"import": TIMED.format(folder=str(folder), before="", code=f"import {package.module}")}
    if package.command:
        module, function = entry_point(found, package.command)
        argv = [package.command, "--help"]
        ways["help"] = SCRIPT.format(folder=str(folder), argv=argv, module=module, function=function)
    if package.first:
        ways["first"] = TIMED.format(folder=str(folder), before="", code=package.first)
    for way, code in ways.items():
        try:
            row[f"{way}_s"], row[f"{way}_modules"] = timed(code)
        except RuntimeError as error:
            errors[way] = str(error)
    return row


def imported(code: str, before: str = "") -> dict[str, Any]:
    """Return the figures of an import from the folder of ours, after another one that is not counted."""
    folder = str(FOLDERS / PACKAGES[OURS].folder)
    seconds, modules = timed(TIMED.format(folder=folder, before=before, code=code))
    return {"import_s": seconds, "import_modules": modules, "errors": {}}


def main() -> None:
    names = [OURS] if QUICK else list(PACKAGES)
    rows = {name: measure(name, PACKAGES[name]) for name in names}
    rows["gymnasium alone"] = imported("import gymnasium")  # which every Gymnasium environment includes
    rows["gym-trl after gymnasium"] = imported("import gym_trl", "import gymnasium")
    for name, row in rows.items():
        for way, error in row["errors"].items():
            print(f"{name}: {way}: {error}", flush=True)

    def milliseconds(way: str) -> Callable[[dict[str, Any]], float | None]:
        return lambda row: 1000 * row[f"{way}_s"] if f"{way}_s" in row else None

    columns: list[Column] = [
        ("", lambda row: f"{row['name']} {row['version']}" if "version" in row else row["name"]),
        ("import: ms", milliseconds("import")),
        ("modules", "import_modules"),
        ("to a game's first observation: ms", milliseconds("first")),
        ("`--help`: ms", milliseconds("help")),
        ("own MB", "own_mb"),
        ("MB with its needs", "all_mb"),
    ]
    table = Table.of("import", columns, [{"name": name, **row} for name, row in rows.items()])
    publish("import", {"rows": rows}, tables=[table])


if __name__ == "__main__":
    run(main)
