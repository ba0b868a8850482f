"""Engines: token ids in, sampled ids and logprobs out, without strings or environments."""

from abc import abstractmethod
from typing import Protocol, Self

from gym_trl.bases import Closing
from gym_trl.types import Completion, Request


class Engine(Closing):
    """Base class of engines that are stepped in the caller's thread; an engine of your own inherits from it.

    ``collect`` returns every submitted request exactly once, completed or with an error, unless it was cancelled.
    """

    @abstractmethod
    def submit(self, request: Request) -> None:
        """Accept a request; return at once.

        Raises:
            EngineError: This request cannot be answered; it fails alone.
        """

    @abstractmethod
    def collect(self) -> list[Completion]:
        """Do a small piece of work, such as a step, and return what has finished, which may be nothing yet."""

    @abstractmethod
    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot; unknown and finished ids are ignored."""

    def close(self) -> None:
        """Release everything that the engine holds."""


class AsyncEngine(Protocol):
    """Engine whose work is done elsewhere, such as on a server."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *_: object) -> None: ...

    async def sample(self, request: Request) -> Completion:
        """Return the completion of a request, with the error if it failed; cancelling it frees its slot."""
        ...
