"""Tests of the declared structure: the picture of the rooms is current, and pages name files that exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ["docs/concepts/architecture.md", "CONTRIBUTING.md"]


def test_the_picture_of_the_rooms_is_current() -> None:
    drawn = subprocess.run([sys.executable, "docs/make_rooms.py", "--check"], cwd=ROOT, check=False)
    assert drawn.returncode == 0, "run python docs/make_rooms.py"


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:gym_trl|wrappers|envs|tests|docs|benchmarks)/[\w./]*)`", text))
    assert named, f"{page} names no files"
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
