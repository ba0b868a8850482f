"""Law 26: data is data. What a record or a run names is not imported, unless the user repeats the environment's id."""

import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from support.lanes import examples

from gym_trl.cli import main
from gym_trl.errors import GymTRLError, UntrustedError
from gym_trl.evaluation import evaluate
from gym_trl.records import read_records
from gym_trl.registration import EXTERNAL, GAMES
from gym_trl.setting import Setting
from gym_trl.testing import save_tiny

ECHO = "TrlEnv/Echo-v0"
STRANGER = """
from pathlib import Path
Path(__file__).with_name("mark").touch()
from gym_trl.envs.echo import Echo
class Game(Echo):
    pass
def won(*given):
    return True
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a module whose import leaves this file behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "stranger.py").write_text(STRANGER, encoding="utf-8")
    yield tmp_path / "mark"
    sys.modules.pop("stranger", None)


def write_run(folder: Path, **fields: Any) -> Path:
    """Write the folder of a run with a model."""
    save_tiny(folder / "model")
    (folder / "model" / "gym_trl.json").write_text(json.dumps({"env": ECHO, **fields}), encoding="utf-8")
    return folder


@pytest.mark.parametrize("env", [*GAMES, *EXTERNAL, "FrozenLake-v1"])
def test_registered_ids_with_numbers_are_used(env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Setting, "__post_init__", lambda self: None)  # some need packages
    fields = {"env": env, "env_kwargs": {"size": 3, "slippery": False, "seats": [1, None]}}
    (tmp_path / "gym_trl.json").write_text(json.dumps(fields), encoding="utf-8")
    assert Setting.beside(tmp_path).env == env


@pytest.mark.parametrize(
    ("env", "arguments"),
    [
        ("TrlEnv/OpenEnv-v0", {"base_url": "localhost"}),
        ("TrlEnv/QA-v0", {"verify": "stranger:won"}),
        ("TrlEnv/CodeAgent-v0", {"difficulty": "hard"}),
        ("External/PettingZoo-v0", {"game": "stranger:make"}),
        ("GymV26Environment-v0", {"make_kwargs": {"id": ["stranger:Game-v0"]}}),
        ("CartPole-v1", {"config": [{"vehicles_type": "os.system"}]}),
    ],
)
def test_texts_for_an_environment_that_may_reach_outside_are_refused(
    env: str, arguments: Any, mark: Path, tmp_path: Path
) -> None:
    (tmp_path / "gym_trl.json").write_text(json.dumps({"env": env, "env_kwargs": arguments}), encoding="utf-8")
    with pytest.raises(UntrustedError):
        Setting.beside(tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("fields", [{"env": "stranger:Game"}, {"success": "stranger:won"}, {"env": "x\x1b[2J:y"}])
def test_a_command_imports_nothing_of_a_run(
    fields: dict[str, Any], mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(Path("run"), **fields)
    capsys.readouterr()
    assert main(["eval", "--model", "run", "--episodes", "2"]) == 2
    out, err = capsys.readouterr()
    assert err.strip().isprintable()
    assert "Loading" not in out + err
    assert not mark.exists()


def test_a_run_whose_id_is_repeated_is_used(mark: Path) -> None:
    run = write_run(Path("run"), env="stranger.py:Game", success="stranger:won", action_format="open")
    with pytest.raises(UntrustedError):
        evaluate(model=run, episodes=2)
    found = evaluate("stranger.py:Game", model=run, episodes=2, max_tokens_per_turn=2, references=())
    assert found.scores[0].mean().mean == 1.0
    assert mark.exists()


def test_what_records_name_is_shown_and_not_used(mark: Path, tmp_path: Path) -> None:
    evaluate(ECHO, model="solver", episodes=2, references=(), out=tmp_path / "run")
    file = tmp_path / "run" / "rollouts.jsonl"
    first, second = (json.loads(line) for line in file.read_text("utf-8").splitlines())
    first["spec"], second["task"]["env_id"] = {"success": "stranger:won", "observe": "stranger:won"}, "stranger:Game"
    file.write_text(f"{json.dumps(first)}\n{json.dumps(second)}\n", "utf-8")
    assert [one["task"]["env_id"] for one in read_records(file)] == [ECHO, "stranger:Game"]
    assert main(["view", "run"]) == 0
    assert not mark.exists()


# ---------------------------------------------------------------------------------------------------------------------
# Damaged files
# ---------------------------------------------------------------------------------------------------------------------

_VALUES: list[Any] = [None, True, -1, 1e400, 10**400, "", "\ud800", "\0", [], {}, [[[]]], {"": 0}]


@st.composite
def damaged(draw: st.DrawFn, whole: dict[str, Any]) -> bytes:
    """Draw lines of JSON: cut off, with a value of another type somewhere, nested too deeply, or not UTF-8."""
    value = json.loads(json.dumps(whole))
    holder: Any = value
    while True:
        name = draw(st.sampled_from(sorted(holder) if isinstance(holder, dict) else range(len(holder))))
        if not isinstance(holder[name], dict | list) or not holder[name] or draw(st.booleans()):
            break
        holder = holder[name]
    holder[name] = draw(st.sampled_from(_VALUES))
    if draw(st.booleans()) and isinstance(holder, dict):
        del holder[name]
    line = json.dumps(value).encode()
    line = draw(st.sampled_from([line, line[: len(line) // 2], b"[" * 10_000, b"\xff\xfe" + line, b"[]", b"", b"1"]))
    return line + draw(st.sampled_from([b"", b"\n", b"\n" + line + b"\n"]))


@examples(60)
@given(data=st.data())
def test_damaged_records_are_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("spoilt")
    evaluate(ECHO, model="solver", episodes=2, references=(), out=folder)
    file = folder / "rollouts.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + data.draw(damaged(json.loads(lines[1]))))
    with suppress(GymTRLError):
        assert len(list(read_records(file))) >= 1
        assert len(evaluate(ECHO, model="solver", episodes=3, references=(), out=folder).scores[0].records) == 3


@examples(60)
@given(data=st.data())
def test_a_damaged_setting_is_read_or_refused(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("spoilt")
    whole = Setting(ECHO, env_kwargs={"turns": 2}, history=3, success=0.5).as_dict()
    (folder / "gym_trl.json").write_bytes(data.draw(damaged(whole)))
    with suppress(GymTRLError, TypeError):
        Setting.beside(folder).tasks(2)
