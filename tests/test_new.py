"""Packages that ``gym-trl new`` writes: each is complete, and its ids are found once it is installed."""

import importlib
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium as gym
import pytest
from support.command_line import Result, run_command_line

from gym_trl.cli.new import TEMPLATES, write_package
from gym_trl.env_checker.inspection import inspect_env
from gym_trl.registration import load_plugins, make_env
from gym_trl.report import PROBLEM as BROKEN

ROOT = Path(__file__).parent.parent
PATIENCE_S = 240.0
NAMES = ["a", "tower-of-thirty-characters-long"[:30]]
NEEDS = {"code": [pytest.mark.code]}
EACH = [pytest.param(name, marks=NEEDS.get(name, [])) for name in TEMPLATES]
# The way of a package is the same for all templates: two go it in the full lane, the others in nightly runs.
WHOLE_WAY = [
    pytest.param(name, marks=[*NEEDS.get(name, []), *([] if name in ("game", "openenv") else [pytest.mark.nightly])])
    for name in TEMPLATES
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder; what is registered and imported from it is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    registered, modules = dict(gym.registry), set(sys.modules)
    yield tmp_path
    gym.registry.clear()
    gym.registry.update(registered)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    load_plugins.cache_clear()


def new(*arguments: str) -> Result:
    return run_command_line(["new", *arguments])


def run(folder: Path, *arguments: str, **environment: str) -> str:
    """Run Python in a folder; only this library, and what the environment names, can be imported besides."""
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200", "NO_COLOR": "1", **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, f"{arguments}:\n{ran.stdout}{ran.stderr}"
    return ran.stdout


@pytest.mark.parametrize("template", EACH)
def test_a_written_environment_needs_nothing_more(folder: Path, template: str) -> None:
    result = new("my-task", "--template", template)
    assert result.exit_code == 0, result.output
    assert "gym-trl validate my_task:MyTask/MyTask-v0" in result.stdout
    sys.path.insert(0, str(folder / "my-task"))
    module = importlib.import_module("my_task")
    assert module.ENV_ID == "MyTask/MyTask-v0"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = inspect_env(lambda: gym.make(module.ENV_ID), name=module.ENV_ID, episodes=4, search_steps=0)
    assert report.count(BROKEN) == 0, [one for one in report.findings if one.verdict == BROKEN]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("template", TEMPLATES)
def test_ruff_finds_nothing_to_change_whatever_the_name(folder: Path, template: str, name: str) -> None:
    write_package(name, folder / "it", template)
    run(folder / "it", "-m", "ruff", "check", "--no-cache", ".")
    run(folder / "it", "-m", "ruff", "format", "--no-cache", "--check", ".")
    readme = (folder / "it" / "README.md").read_text(encoding="utf-8")
    assert f"| id | `{name.title().replace('-', '')}/" in readme
    written = [file.read_text(encoding="utf-8") for file in (folder / "it").rglob("*") if file.is_file()]
    assert not any("$" in text.replace("\n$ ", "") for text in written), "a placeholder is left"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["MyGame"], "NAME must be lower-case letters, digits and hyphens and begin with a letter, got 'MyGame'; did "
         "you mean my-game?"),
        (["3d"], "begin with a letter, got '3d'"),
        (["a/b"], "got 'a/b'"),
        (["x" * 31], "NAME must have at most 30 characters, got 31"),
        (["class"], "NAME cannot be 'class'"),
        (["json"], "NAME cannot be 'json'"),
        (["numpy"], "a module numpy is installed or in this folder"),
        (["trl-env"], "the namespace TrlEnv is taken by TrlEnv/2048-v0"),
        (["lift", "--template", "gane"], "--template must be one of game, "),
        (["lift", "--out", "."], ". exists; name another folder with --out"),
    ],
)  # fmt: skip
def test_what_cannot_be_written_is_refused_with_a_reason(
    folder: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if arguments == ["trl-env"]:  # the name as it would be capitalised
        monkeypatch.setitem(gym.registry, "TrlEnv/2048-v0", gym.registry["TrlEnv/2048-v0"])
    result = new(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert list(folder.iterdir()) == []


def plugin(monkeypatch: pytest.MonkeyPatch, *entries: tuple[str, str]) -> None:
    """Let these be the plugins that are installed."""
    monkeypatch.setattr(
        "importlib.metadata.entry_points", lambda group: [EntryPoint(name, value, group) for name, value in entries]
    )
    load_plugins.cache_clear()


def test_an_id_of_an_installed_package_is_found_without_its_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_package("found-alone", folder / "it", "game")
    sys.path.insert(0, str(folder / "it"))
    plugin(monkeypatch, ("FoundAlone", "found_alone:register"))
    assert make_env("FoundAlone/FoundAlone-v0").reset(options={"instance": 0})[0] == "Floor 0, goal 1."


def test_a_namespace_is_added_where_the_package_names_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import gymnasium as gym\ndef register():\n    gym.register('Bare-v0', 'gym_trl.envs.echo:Echo')\n"
    (folder / "bare.py").write_text(text, encoding="utf-8")
    sys.path.insert(0, str(folder))
    plugin(monkeypatch, ("Spaced", "bare:register"))
    assert load_plugins() == frozenset()  # it requires nothing, so it does not build on this library
    assert "Spaced/Bare-v0" in gym.registry


def test_a_package_that_cannot_be_loaded_is_reported_and_hides_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import gymnasium as gym\ndef register():\n    gym.register('Whole-v0', 'gym_trl.envs.echo:Echo')\n"
    (folder / "whole.py").write_text(text, encoding="utf-8")
    (folder / "broken.py").write_text("1 / 0", encoding="utf-8")
    sys.path.insert(0, str(folder))
    plugin(monkeypatch, ("Broken", "broken:register"), ("__root__", "whole:register"))
    with pytest.warns(UserWarning, match="installed broken:register, which raised ZeroDivisionError"):
        load_plugins()
    assert "Whole-v0" in gym.registry


@pytest.mark.full
@pytest.mark.processes
@pytest.mark.trl
@pytest.mark.timeout(900)
@pytest.mark.parametrize("template", WHOLE_WAY)
def test_a_new_package_passes_its_tests_installs_and_is_found_by_commands(tmp_path: Path, template: str) -> None:
    written, site, empty, env_id = tmp_path / "it", tmp_path / "site", tmp_path / "empty", "MyTask/MyTask-v0"
    empty.mkdir()
    values = write_package("my-task", written, template)
    assert " passed" in run(written, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error::UserWarning")
    pip = ["-m", "pip", "--disable-pip-version-check", "--quiet"]
    run(written, *pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(tmp_path), ".")
    [wheel] = tmp_path.glob("my_task-0.1.0-*.whl")
    run(empty, *pip, "install", "--no-deps", "--no-index", "--target", str(site), str(wheel))
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{site}"}
    assert env_id in run(empty, "-m", "gym_trl", "list", **paths)
    assert " ok" in run(empty, "-m", "gym_trl", "validate", env_id, "--search-steps", "0", "--episodes", "2", **paths)
    run(empty, "-c", f"import gymnasium as gym, my_task; gym.make({env_id!r}).reset(seed=0)", **paths)
    small = ["--steps", "1", "--episodes-per-step", "16", "--eval-episodes", "16", "--out", "run"]
    run(empty, "-m", "gym_trl", "train", env_id, *values["train"].split(), *small, **paths)
    assert (empty / "run" / "summary.json").is_file()
