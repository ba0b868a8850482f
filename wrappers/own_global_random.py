"""Separate states of the process-wide random generators, for environments that use these."""

import random
from threading import RLock
from typing import Any

import numpy as np

_LOCK = RLock()


class OwnGlobalRandom:
    """Context manager that replaces the state of Python's and NumPy's global generators by its own.

    >>> own = OwnGlobalRandom(seed=0)
    >>> random.seed(5)
    >>> with own:
    ...     first = random.random()
    >>> with own:
    ...     second = random.random()
    >>> random.random() == random.Random(5).random()
    True
    >>> [first, second] == [rng.random() for rng in [random.Random(0)] for _ in range(2)]
    True

    Many environments seed and draw from the global generators: interleaved, they would draw each other's numbers and
    overwrite the trainer's state. The state is kept from block to block. Only one block at a time runs in a process.
    The overhead is some tens of microseconds.
    """

    def __init__(self, seed: int) -> None:
        self._own: tuple[Any, Any] = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()
        self._outside: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        """Save the global states and set this object's."""
        _LOCK.acquire()
        self._outside.append(_states())
        _set_states(self._own)

    def __exit__(self, *raised: object) -> None:
        """Keep this object's states and restore the global ones."""
        self._own = _states()
        _set_states(self._outside.pop())
        _LOCK.release()


def _states() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _set_states(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
