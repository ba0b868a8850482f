"""Calls of policies that wait for something else, such as a server, each in a thread."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import TypeAlias

from gym_trl.errors import raise_interrupt
from gym_trl.types import Answer

_AT_ONCE = 64
"""Maximum number of policies that are called at once."""

_Call: TypeAlias = "Future[str | Answer]"


class PolicyThreads:
    """Calls of policies by the indices of their games.

    >>> threads = PolicyThreads()
    >>> threads.ask(3, lambda: "7")
    >>> [*threads.responses(wait=None)], bool(threads)
    ([(3, '7')], False)
    >>> threads.close()
    """

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._ended: SimpleQueue[tuple[int, _Call]] = SimpleQueue()
        self._threads: ThreadPoolExecutor | None = None

    def __bool__(self) -> bool:
        return bool(self._calls)

    def ask(self, index: int, policy: Callable[[], str | Answer]) -> None:
        """Begin a call for the game with this index."""
        self._threads = self._threads or ThreadPoolExecutor(_AT_ONCE, "gym-trl-policy")
        self._calls[index] = call = self._threads.submit(policy)
        call.add_done_callback(lambda ended: self._ended.put((index, ended)))

    def drop(self, index: int) -> None:
        """Forget the call of a game that has been stopped."""
        self._calls.pop(index, None)

    def responses(self, *, wait: float | None) -> Iterator[tuple[int, str | Answer | BaseException]]:
        """Generate the responses that there are, or the exceptions of their calls, by the indices of the games.

        For the first one it waits so many seconds, or, without a number, until there is one.
        """
        while self._calls:
            try:
                index, call = self._ended.get(timeout=wait)
            except Empty:
                return
            if self._calls.get(index) is not call:  # its game was stopped
                continue
            wait = 0.0
            del self._calls[index]
            error = call.exception()
            if error is not None:
                raise_interrupt(error)
            yield index, call.result() if error is None else error

    def close(self) -> None:
        """Cancel the calls that have not begun."""
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
