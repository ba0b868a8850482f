"""Notebooks of examples/ run from first to last cell, and are pages of the documentation."""

import json
import runpy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LEARNED = {"quickstart": ("success", "model")}
"""Texts of the outputs of each notebook."""


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_the_repository_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert [cell["outputs"] for cell in code] == [[]] * len(code)
    assert {cell["execution_count"] for cell in code} == {None}


@pytest.mark.slow
@pytest.mark.skipif(not (find_spec("nbclient") and find_spec("ipykernel")), reason="make test-full installs nbclient")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_is_a_page(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    pages: dict[str, Any] = runpy.run_path(str(ROOT / "docs" / "notebook_pages.py"))
    notebook = pages["executed"](path)
    shown = pages["page_of"](path, notebook)
    assert all(text in shown for text in LEARNED[path.stem])
    assert "<iframe" in shown
