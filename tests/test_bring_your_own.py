# mypy: allow-untyped-defs
"""The guide's blocks run from top to bottom, and train the environment that it writes."""

import doctest
import os
from pathlib import Path

import gymnasium as gym
import pytest

GUIDE = Path(__file__).parent.parent / "docs" / "bring_your_own.md"


@pytest.mark.trl
def test_the_guides_environment_is_trained(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.chdir(tmp_path)
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109 -- the run folder must not land in the checkout
    result = doctest.testfile(str(GUIDE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 10
    assert result.failed == 0
    del gym.registry["Warmer-v0"]
