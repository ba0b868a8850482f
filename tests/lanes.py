"""Amount of work that a test does in the lane that runs: little in the fast one, everything elsewhere."""

from hypothesis import settings

FAST_EXAMPLES = 12
"""Most examples of a property test in the fast lane; the full lane tries all."""
# The duration of an example depends on the load of the machine.
settings.register_profile("full", deadline=None)
settings.register_profile("fast", deadline=None, max_examples=FAST_EXAMPLES)


def choose(marks: str) -> None:
    """Choose the lane that an expression of ``pytest -m`` selects; to be called before tests are imported."""
    settings.load_profile("fast" if "not full" in marks else "full")


def in_full(number: int, *, fast: int) -> int:
    """Return ``fast`` in the fast lane, else ``number``; the test is marked ``both``, to run in the full lane too."""
    return fast if settings.get_current_profile_name() == "fast" else number


def examples(number: int) -> settings:
    """Return settings of a property test that tries so many examples, and a fifth of them in the fast lane."""
    return settings(max_examples=in_full(number, fast=max(2, min(number // 5, FAST_EXAMPLES))))
