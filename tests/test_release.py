"""The wheel describes itself, installs by itself, plays and trains a step."""

import re
import sys
import tomllib

import pytest
import release

PROJECT = tomllib.loads((release.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_changelog_begins_with_the_version_of_the_project():
    newest = re.search(r"^## (\S+)", (release.ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] in {PROJECT["version"].partition(".dev")[0], "Unreleased"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_is_installed_plays_and_trains(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_CONSTRAINT", str(release.ROOT / "constraints.txt"))  # which has PyTorch's build for CPUs
    _, wheel = release.build(tmp_path)
    fields, readme = release.metadata(wheel)
    assert fields["Version"] == [PROJECT["version"]]
    assert fields["Description-Content-Type"] == ["text/markdown"]
    assert set(fields["Provides-Extra"]) == set(PROJECT["optional-dependencies"])
    assert release.relative_links(readme) == []
    assert "TrlEnv/Wordle-v0" in release.try_wheel(wheel, sys.executable, train=True)
