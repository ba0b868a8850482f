"""Number of examples of property tests in the lane that runs: few in the fast one, more elsewhere."""

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
    settings.load_profile("fast" if "not slow" in marks else "full")


def examples(number: int) -> settings:
    """Return settings of a property test that tries so many examples, and a fifth of them in the fast lane.

    Neither is more than the most of its lane.
    """
    if settings.get_current_profile_name() == "fast":
        return settings(max_examples=max(2, min(number // 5, FAST_EXAMPLES)))
    return settings(max_examples=min(number, FULL_EXAMPLES))
