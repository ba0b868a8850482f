"""Shared parts: base classes, and a function that runs a coroutine."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self, TypeVar

T = TypeVar("T")


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, also in a notebook, where the thread has a running loop."""

    def in_own_loop() -> T:
        with asyncio.Runner() as runner:  # whose own run would let Ctrl-C wait until a policy or a step returns
            return runner.get_loop().run_until_complete(coroutine)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        running = False
    else:
        running = True
    if not running:
        return in_own_loop()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(in_own_loop).result()


class Closing(ABC):
    """Base class of objects that a ``with`` block closes.

    >>> class Door(Closing):
    ...     def close(self):
    ...         print("closed")
    >>> with Door() as door:
    ...     pass
    closed
    """

    def __enter__(self) -> Self:
        """Return the object, which the ``with`` block closes."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the object."""
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Release everything that the object holds."""


class Settling:
    """Base class of environments and wrappers that say by ``owes`` if their settlement can differ from that inside.

    >>> class Stakes(Settling):
    ...     settlement, owes = 0.0, False
    >>> class Higher(Stakes):
    ...     settlement = -3.0
    >>> Stakes().owes, Higher().owes
    (False, True)

    A class that settles otherwise than its base class owes, unless it defines ``owes`` again.
    """

    @property
    def owes(self) -> bool:
        """True if its part of the settlement (``gym_trl.wrappers.settlement``) can differ from 0."""
        return False

    def __init_subclass__(cls, **options: Any) -> None:
        """Let a class that defines how it settles owe, unless it says otherwise."""
        super().__init_subclass__(**options)
        if vars(cls).keys() & {"settle", "settlement"} and "owes" not in vars(cls):
            cls.owes = True  # type: ignore[method-assign, assignment]  # a constant, in place of a property
