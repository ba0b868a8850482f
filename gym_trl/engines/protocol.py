"""Engine protocol: token ids in, sampled ids and logprobs out, without strings or environments."""

from typing import Protocol

from gym_trl.types import Completion, Request


class Engine(Protocol):
    """Interface of engines, which sample continuations of token ids.

    ``collect`` returns every submitted request exactly once, completed or with an error, unless it was cancelled. An
    engine that other processes also wait for has a true attribute ``shared``: a rollout then calls ``collect``
    continuously, even if it has no request.
    """

    def submit(self, request: Request) -> None:
        """Accept a request; return at once."""
        ...

    def collect(self, *, block: bool) -> list[Completion]:
        """Advance generation and return what has finished since the last call.

        If ``block`` and a request is pending, return at least one completion. Otherwise return after a small piece of
        work (an engine step, some milliseconds), possibly with an empty list.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot; unknown and finished ids are ignored."""
        ...
