# mypy: allow-untyped-defs
"""Every Python block of the README runs, in one go from top to bottom."""

import doctest
import os
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.trl
def test_the_readmes_blocks_run_and_say_what_they_print(tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    monkeypatch.chdir(tmp_path)
    assert os.getcwd() == str(tmp_path)  # noqa: PTH109 -- the run folder must not land in the checkout
    result = doctest.testfile(str(README), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert result.attempted > 10
    assert result.failed == 0
