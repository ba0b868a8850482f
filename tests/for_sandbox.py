"""Isolation of programs in tests on this machine."""

from gym_trl.sandbox import Isolation
from gym_trl.sandbox.isolation import bubblewrap_problem

PROBLEM = bubblewrap_problem()
"""Reason why bubblewrap cannot be used here, or ``None``."""
ISOLATION: Isolation = "bubblewrap" if PROBLEM is None else "limits"
