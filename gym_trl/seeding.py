"""Derived seeds, the same on every rank and in every process, and separate states of the global generators."""

import random
from hashlib import blake2b
from operator import index
from threading import RLock
from typing import Any, SupportsIndex

import numpy as np
from numpy.random import Generator

_SPLITS = {"train": 0, "eval": 1}
_LOCK = RLock()


def derive_seed(*parts: SupportsIndex | str) -> int:
    """Return a seed computed from ``parts``, the same everywhere and independent for different parts.

    >>> derive_seed(0, "train", 3) == derive_seed(0, "train", 3)
    True
    >>> derive_seed(0, "train", 3) == derive_seed(0, "train", 4)
    False

    Returns:
        An integer in [0, 2**63), valid for torch, vLLM and NumPy.
    """
    plain = tuple([part if isinstance(part, str) else index(part) for part in parts])  # not NumPy's repr
    return int.from_bytes(blake2b(repr(plain).encode(), digest_size=8).digest(), "big") >> 1


def task_seed(base: int, split: str, number: int) -> int:
    """Return the seed of task ``number``, different from that of every other task and of the other split.

    Multiplying by an odd number and adding permutes the integers modulo a power of two, so no two numbers collide; the
    last bit is the split.

    >>> task_seed(0, "train", 5) % 2, task_seed(0, "eval", 5) % 2
    (0, 1)

    Returns:
        An integer in [0, 2**31), valid for every environment.
    """
    step = derive_seed(base, "step") | 1
    return (derive_seed(base, "start") + step * number) % 2**30 * 2 + _SPLITS[split]


def generator_key(generator: Generator) -> tuple[int, int, int]:
    """Return the state of a generator of NumPy's default kind, which decides all that it will draw.

    >>> import numpy as np
    >>> one, other = np.random.default_rng(3), np.random.default_rng(3)
    >>> _ = one.random()
    >>> generator_key(one) == generator_key(other)
    False
    >>> _ = other.random()
    >>> generator_key(one) == generator_key(other)
    True
    """
    state: Any = generator.bit_generator.state
    return state["state"]["state"], state["has_uint32"], state["uinteger"]


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
    """

    def __init__(self, seed: int) -> None:
        self._own: tuple[Any, Any] = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()
        self._outside: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        """Save the global states and set this object's."""
        _LOCK.acquire()
        self._outside.append(self._swapped(self._own))

    def __exit__(self, *raised: object) -> None:
        """Keep this object's states and restore the global ones."""
        self._own = self._swapped(self._outside.pop())
        _LOCK.release()

    def _swapped(self, states: tuple[Any, Any]) -> tuple[Any, Any]:
        before = random.getstate(), np.random.get_state()
        random.setstate(states[0])
        np.random.set_state(states[1])
        return before
