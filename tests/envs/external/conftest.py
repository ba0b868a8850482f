"""Imports of packages that warn of their own syntax, which would be an error in whichever test comes first."""

import warnings
from contextlib import suppress
from importlib import import_module

import pytest


@pytest.fixture(scope="session", autouse=True)
def imported_in_silence() -> None:
    for name in ("gem.envs", "reasoning_gym"):
        with warnings.catch_warnings(action="ignore"), suppress(ImportError):
            import_module(name)
