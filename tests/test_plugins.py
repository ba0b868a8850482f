"""Environments of installed packages, which name a function that registers them."""

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import gymnasium as gym
import pytest

from gym_trl.registration import load_plugins, make_env

REGISTERS = "import gymnasium as gym\ndef register():\n    gym.register({!r}, 'gym_trl.envs.echo:Echo')\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of modules; what is registered and imported from it is forgotten."""
    monkeypatch.syspath_prepend(tmp_path)
    registered, modules = dict(gym.registry), set(sys.modules)
    yield tmp_path
    gym.registry.clear()
    gym.registry.update(registered)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
    load_plugins.cache_clear()


def install(monkeypatch: pytest.MonkeyPatch, **entries: str) -> None:
    """Let these be the plugins that are installed."""
    points = [EntryPoint(name, value, "gymnasium.envs") for name, value in entries.items()]
    monkeypatch.setattr("importlib.metadata.entry_points", lambda group: points)
    load_plugins.cache_clear()


def test_an_id_of_an_installed_package_is_found_without_its_import(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "alone.py").write_text(REGISTERS.format("Alone/Alone-v0"), encoding="utf-8")
    install(monkeypatch, Alone="alone:register")
    assert make_env("Alone/Alone-v0").reset(seed=0)[0]


def test_a_namespace_is_added_where_the_package_names_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "bare.py").write_text(REGISTERS.format("Bare-v0"), encoding="utf-8")
    install(monkeypatch, Spaced="bare:register")
    assert load_plugins() == frozenset()  # it requires nothing, so it does not build on this library
    assert "Spaced/Bare-v0" in gym.registry


def test_a_package_that_cannot_be_loaded_is_reported_and_hides_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "whole.py").write_text(REGISTERS.format("Whole-v0"), encoding="utf-8")
    (folder / "broken.py").write_text("1 / 0", encoding="utf-8")
    install(monkeypatch, Broken="broken:register", __root__="whole:register")
    with pytest.warns(UserWarning, match="broken:register"):
        load_plugins()
    assert "Whole-v0" in gym.registry
