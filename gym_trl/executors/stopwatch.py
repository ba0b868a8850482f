"""Time of a reset or step, divided into computing and waiting."""

import time
from collections.abc import Iterable
from typing import NamedTuple

try:
    from resource import RUSAGE_THREAD, getrusage
except ImportError:  # Windows, and systems that count for the whole process only
    getrusage = None  # type: ignore[assignment]

WAITS_S = 0.003
"""Seconds of waiting in a step or reset from which on threads pay off."""
COMPUTES_S = 0.005
"""Seconds of computing in a step or reset from which on processes pay off."""
_MOSTLY = 10
LOOKS = 3
"""Number of calls in a measurement; the fastest counts."""


class Spent(NamedTuple):
    """Seconds of a call in the calling thread.

    >>> Spent.least([Spent(0.5, 0.1), Spent(0.1, 0.4)])
    Spent(computing=0.1, waiting=0.1)
    >>> Spent(0.001, 0.003).waits, Spent(0.1, 2.0).waits, Spent(0.1, 0.2).waits
    (True, True, False)
    """

    computing: float
    waiting: float

    @classmethod
    def least(cls, calls: Iterable["Spent"]) -> "Spent":
        """Return the least computing and the least waiting of several calls."""
        computing, waiting = zip(*calls, strict=True)
        return cls(min(computing), min(waiting))

    @property
    def waits(self) -> bool:
        """True if threads pay off. A call that computes may have waited for a busy processor only."""
        return self.waiting >= WAITS_S and (self.computing < COMPUTES_S or self.waiting > _MOSTLY * self.computing)

    @property
    def computes(self) -> bool:
        """True if processes pay off."""
        return self.computing >= COMPUTES_S and not self.waits


class Stopwatch:
    """Measurement of the calling thread from the moment in which it is made.

    >>> Stopwatch().spent().computes
    False
    """

    def __init__(self) -> None:
        self._began, self._computed, self._switches = time.perf_counter(), time.thread_time(), _switches()

    def spent(self) -> Spent:
        """Return computing and waiting time; one that never gave its processor away has waited for nothing else."""
        computing = time.thread_time() - self._computed
        waiting = time.perf_counter() - self._began - computing
        if getrusage is not None and _switches() == self._switches:
            waiting = 0.0
        return Spent(computing, max(0.0, waiting))


def _switches() -> int:
    """Return how often the thread has given its processor away to wait; 0 if the system does not count it."""
    return 0 if getrusage is None else getrusage(RUSAGE_THREAD).ru_nvcsw
