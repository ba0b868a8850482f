"""The guides describe other libraries' environments as they are."""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from gym_trl import GymSpec
from gym_trl.wrappers import Opponent, Seats

pytestmark = pytest.mark.slow

DOCS = Path(__file__).parents[3] / "docs"
MATE = ["f2f3", "e7e5", "g2g4", "d8h4"]


def rows() -> list[list[str]]:
    page = (DOCS / "environments.md").read_text(encoding="utf-8")
    table = page.partition("| suite | id | version |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_the_version_of_the_table_is_tested_and_its_line_makes_it(
    row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    package = row[0].partition(" (")[0].partition(",")[0]
    try:
        assert version(package) == row[2].partition(" ")[0]
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if package == "TextWorld":
        Path("game.z8").write_bytes((request.getfixturevalue("textworld_games") / "1.z8").read_bytes())
    spec: Any = eval(row[4].strip("`"), {"GymSpec": GymSpec})  # the page is ours
    assert next(spec.tasks("train")).env_id.rpartition(":")[2] in gym.registry


def test_every_external_id_is_in_the_table() -> None:
    listed = "".join(row[1] for row in rows())
    assert [env_id for env_id in gym.registry if env_id.startswith("External/") and env_id not in listed] == []


def test_the_guides_adapter_is_found_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("chess")
    page = (DOCS / "extend.md").read_text(encoding="utf-8")
    code = re.findall(r'```python title="boards.py"\n(.*?)```', page, re.DOTALL)[0]
    assert len(code.strip().splitlines()) <= 45
    (tmp_path / "boards.py").write_text(code, encoding="utf-8")
    (metadata := tmp_path / "boards-1.0.dist-info").mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: boards\nVersion: 1.0\nRequires-Dist: gym-trl\n")
    (metadata / "entry_points.txt").write_text("[gymnasium.envs]\nBoards = boards:register\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        env = GymSpec("Boards/Chess-v0", seats="self", action_format="plain", num_tasks=1).make("Boards/Chess-v0")
        assert env.reset(seed=0)[1]["to_move"] == 0
        assert not env.step("e2e5")[4]["action_valid"]
        made: Any = gym.make("Boards/Chess-v0").unwrapped
        made.reset(seed=0)
        made.board.set_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1")
        *_, (_, reward, over, _, info) = [made.step(move) for move in MATE]
        assert (reward, over, info["payoffs"], info["success"]) == (1.0, True, (-1.0, 1.0), True)
        for wrapped in (Seats(gym.make("Boards/Chess-v0")), Opponent(gym.make("Boards/Chess-v0"), "random")):
            wrapped.reset(seed=3)
            assert not wrapped.step("a2a3")[2]
    finally:
        gym.registry.pop("Boards/Chess-v0", None)
        sys.modules.pop("boards", None)
