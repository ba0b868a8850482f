"""Isolation of programs in tests on this machine."""

import sys

import pytest

from gym_trl.sandbox import Isolation
from gym_trl.sandbox.isolation import bubblewrap_problem

PROBLEM = bubblewrap_problem()
"""Reason why bubblewrap cannot be used here, or ``None``."""
ISOLATION: Isolation = "bubblewrap" if PROBLEM is None else "limits"
shut_in = pytest.mark.skipif(PROBLEM is not None, reason=f"bubblewrap does not work here: {PROBLEM}")
BOTH = [
    pytest.param("limits", marks=pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there is no filter")),
    pytest.param("bubblewrap", marks=[pytest.mark.code, shut_in]),
]
"""Parameters of tests in each isolation."""
