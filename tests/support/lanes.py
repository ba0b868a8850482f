"""Amount of work that a test does in the lane that runs: little in the fast one, everything elsewhere."""

from typing import Any

from hypothesis import settings

FAST_EXAMPLES, FULL_EXAMPLES = 12, 40
"""Most examples of a property test in the lanes, which are the same each time."""
# The duration of an example depends on the load of the machine. The lanes try the same examples each time, so that a
# failure is that of a change.
_OPTIONS: dict[str, Any] = {"deadline": None, "derandomize": True}
settings.register_profile("full", **_OPTIONS, max_examples=FULL_EXAMPLES)
settings.register_profile("fast", **_OPTIONS, max_examples=FAST_EXAMPLES)


def choose(marks: str) -> None:
    """Choose the lane that an expression of ``pytest -m`` selects; to be called before tests are imported."""
    settings.load_profile("fast" if "not full" in marks else "full")


def in_full(number: int, *, fast: int) -> int:
    """Return ``fast`` in the fast lane, else ``number``; the test is marked ``both``, to run in the full lane too."""
    return fast if settings.get_current_profile_name() == "fast" else number


def examples(number: int) -> settings:
    """Return settings of a property test that tries so many examples, and a fifth of them in the fast lane.

    Neither is more than the most of its lane.
    """
    fast = max(2, min(number // 5, FAST_EXAMPLES))
    return settings(max_examples=in_full(min(number, FULL_EXAMPLES), fast=fast))
