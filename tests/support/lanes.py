"""Amount of work that a test does in the lane that runs: little in the fast one, everything elsewhere."""

import os
import time
from collections.abc import Callable
from typing import Any

from hypothesis import settings

FAST_EXAMPLES, FULL_EXAMPLES = 12, 40
"""Most examples of a property test in the lanes, which are the same each time; ``make fuzz`` tries new ones."""
FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
"""Time for all tests that are marked ``fuzz`` together; 0 for the number of examples of their lane."""
# The duration of an example depends on the load of the machine. The lanes try the same examples each time, so that a
# failure is that of a change; a search for a time tries new ones, and first those that failed before.
_OPTIONS: dict[str, Any] = {"deadline": None, "derandomize": not FUZZ_SECONDS}
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


_share = FUZZ_SECONDS


def share_among(tests: int) -> None:
    """Divide the time of ``FUZZ_SECONDS`` among tests; to be called before they run."""
    global _share  # noqa: PLW0603 -- of the process, as the lane is
    _share = FUZZ_SECONDS / max(tests, 1)


def search(check: Callable[[], None], number: int) -> None:
    """Run a property test with the examples of ``examples(number)``, or again and again for its share of the time."""
    end, tried = time.monotonic() + _share, settings(examples(number))(check)
    tried()
    while time.monotonic() < end:
        tried()
