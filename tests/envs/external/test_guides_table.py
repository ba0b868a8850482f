"""The guide's table of other people's environments is true."""

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from gym_trl import GymSpec

pytestmark = pytest.mark.external

PAGE = (Path(__file__).parents[3] / "docs" / "bring_your_own.md").read_text(encoding="utf-8")


def rows():
    table = PAGE.partition("| suite | id | version |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.fixture
def folder(request, tmp_path, monkeypatch):
    """Prepare a place in which the lines find what they name."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_version_is_the_one_that_is_tested_and_the_line_makes_it(row, folder, request):
    package = row[0].partition(" (")[0].partition(",")[0]
    try:
        assert version(package) == row[2].partition(" ")[0]
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if package == "TextWorld":
        (folder / "game.z8").write_bytes((request.getfixturevalue("textworld_games") / "1.z8").read_bytes())
    spec: Any = eval(row[4].strip("`"), {"GymSpec": GymSpec})  # the page is ours
    task = next(spec.tasks("train"))
    assert task.env_id.rpartition(":")[2] in gym.registry


def test_every_external_id_is_in_the_table():
    listed = "".join(row[1] for row in rows())
    assert [env_id for env_id in gym.registry if env_id.startswith("External/") and env_id not in listed] == []
