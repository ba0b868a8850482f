"""The seam to whatever samples tokens: ids in, sampled ids and logprobs out, no strings and no environments."""

from typing import Protocol

from gym_trl.types import Completion, Request


class Engine(Protocol):
    """Samples continuations of token ids.

    Every submitted request comes back from ``collect`` exactly once, finished or with the reason why not, unless it
    was cancelled before. An engine that others wait for, too, has a true attribute ``shared``: a rollout then calls
    ``collect`` all the time, also when it has no request.
    """

    def submit(self, request: Request) -> None:
        """Take a request; returns at once."""
        ...

    def collect(self, *, block: bool) -> list[Completion]:
        """Advance generation and return what has finished since the last call.

        With ``block`` it returns at least one completion if a request is pending; without, it returns after one
        small piece of work (an engine step, some milliseconds), possibly with nothing.
        """
        ...

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot; unknown and finished ids are ignored."""
        ...
