"""How programs are kept apart in tests on this machine."""

from gym_trl.sandbox import Isolation
from gym_trl.sandbox.isolation import bubblewrap_problem

PROBLEM = bubblewrap_problem()
"""Why bubblewrap cannot be used here, or ``None``."""
ISOLATION: Isolation = "bubblewrap" if PROBLEM is None else "limits"
