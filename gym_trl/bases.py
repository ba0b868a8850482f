"""Shared parts: base classes, a function that runs a coroutine, and Python's garbage collections meanwhile."""

import asyncio
import gc
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Any, Self, TypeVar

T = TypeVar("T")
CLOSE_S = 5.0
"""Seconds that something which is given up has to end."""


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, also in a notebook, where the thread has a running loop; Ctrl-C ends it there, too."""
    loop = asyncio.new_event_loop()

    def in_own_loop() -> T:
        task = loop.create_task(coroutine)
        try:
            with asyncio.Runner(loop_factory=lambda: loop):  # its own run would let Ctrl-C wait until a step returns
                return loop.run_until_complete(task)
        finally:
            if task.done() and not task.cancelled():
                task.exception()  # an interrupt is raised by the loop, too: asyncio would log the task's

    try:
        around: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
    except RuntimeError:
        around = None
    if around is None:
        return in_own_loop()

    result: Future[T] = Future()

    def settle() -> None:
        try:
            result.set_result(in_own_loop())
        except BaseException as error:
            result.set_exception(error)

    thread = Thread(target=settle, name="gym-trl run", daemon=True)  # the program may end before it
    try:
        thread.start()  # an interrupt may come before it returns
        return result.result()
    except BaseException:
        with suppress(RuntimeError):  # the loop is closed: the thread has ended
            loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])
            thread.join(CLOSE_S)
        raise


@contextmanager
def outside_of_the_loop() -> Iterator[None]:
    """Hide the running loop from somebody's code in the block, which can then run one of its own (``asyncio.run``)."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    asyncio.tasks._leave_task(loop, task)
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)
        asyncio.tasks._enter_task(loop, task)


_FULL_COLLECTIONS = 100  # number of collections of the middle generation before a full one; Python's default is 10
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
        gc.set_threshold(young, middle, max(old, _FULL_COLLECTIONS))
    try:
        yield
    finally:
        with _lock:
            before = _thresholds.pop()
            if not _thresholds:  # other threads may still run rollouts
                gc.set_threshold(*before)


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
