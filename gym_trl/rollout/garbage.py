"""Python's garbage collection while episodes are played."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

FULL_COLLECTIONS = 100
"""Number of collections of the middle generation before a full one; Python's default is 10."""
_lock = Lock()
_thresholds: list[tuple[int, int, int]] = []  # in effect before each running rollout


@contextmanager
def rare_full_collections() -> Iterator[None]:
    """Make Python's full garbage collections less frequent.

    Thousands of episodes are millions of long-lived objects without cycles; scanning them repeatedly takes a quarter of
    the loop's time. Collections of young objects are unchanged.
    """
    with _lock:
        young, middle, old = gc.get_threshold()
        _thresholds.append((young, middle, old))
        gc.set_threshold(young, middle, max(old, FULL_COLLECTIONS))
    try:
        yield
    finally:
        with _lock:
            before = _thresholds.pop()
            if not _thresholds:  # other threads may still run rollouts
                gc.set_threshold(*before)
