"""Each leaf of the library can be deleted with its modules and its row in ``gym_trl/leaves.py``."""

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import grimp
import pytest

from gym_trl.leaves import LEAVES, Kind, load, offered

ROOT = Path(__file__).parents[1]
MODULES = {name: [f"gym_trl.{module}" for module in leaf.modules] for name, leaf in LEAVES.items()}
SHARED = {
    f"gym_trl.envs.external.{name}" for name in ("adapter", "java", "nethack_game", "own_global_random", "tool_calls")
}
"""Modules in rooms of leaves that several leaves or the core import."""


def test_nothing_imports_a_leaf() -> None:
    graph = grimp.build_graph("gym_trl", cache_dir=None)
    importing = []
    for modules in MODULES.values():
        inside = {*modules}.union(*map(graph.find_descendants, modules))
        importers = {name: graph.find_modules_that_directly_import(name) - inside for name in inside}
        importing += [f"{importer} imports {name}" for name, outside in importers.items() for importer in outside]
    assert importing == []


def test_every_adapter_integration_and_command_has_one_row() -> None:
    rooms = [ROOT / "gym_trl" / "integrations", ROOT / "envs" / "external"]
    parts = [
        f"gym_trl.{room.relative_to(ROOT)}".replace("gym_trl.gym_trl/", "gym_trl.").replace("/", ".") for room in rooms
    ]
    leaves = {
        f"{part}.{path.stem}"
        for part, room in zip(parts, rooms, strict=True)
        for path in room.iterdir()
        if path.stem[0] != "_"
    }
    leaves |= {
        f"gym_trl.cli.{path.stem}"
        for path in (ROOT / "gym_trl" / "cli").glob("*.py")
        if "\nEXAMPLES = " in path.read_text()
    }
    listed = Counter(module for modules in MODULES.values() for module in modules)
    assert leaves - SHARED - {*listed} == set()
    assert [module for module, rows in listed.items() if rows > 1] == []


@pytest.mark.parametrize("kind", ["commands", "importers", "exporters", "containers", "displays"])
def test_what_a_leaf_offers_exists(kind: Kind) -> None:
    assert all(load(kind, name) is not None for name in offered(kind))


@pytest.mark.full
@pytest.mark.trl
@pytest.mark.timeout(900)
def test_the_rest_imports_lists_and_trains_without_each_leaf(tmp_path: Path) -> None:
    script = [sys.executable, "-W", "ignore", str(ROOT / "tests" / "without_leaves.py"), str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr[-4_000:]
    table = (tmp_path / "all_leaves" / "gym_trl" / "leaves.py").read_text()
    assert ast.literal_eval(table.split("LEAVES: dict[str, Leaf] = ")[1].split('\n"""')[0]) == {}
