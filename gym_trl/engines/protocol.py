"""Engine protocol: token ids in, sampled ids and logprobs out, without strings or environments."""

from collections.abc import Sequence
from typing import Protocol

from gym_trl.errors import EngineError
from gym_trl.types import Completion, FinishReason, Request


class Engine(Protocol):
    """Interface of engines, which sample continuations of token ids.

    ``collect`` returns every submitted request exactly once, completed or with an error, unless it was cancelled. An
    engine that other processes also wait for has a true attribute ``shared``: a rollout then calls ``collect``
    continuously, even if it has no request. One whose requests may have images has a true attribute ``takes_images``.
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


def sample_all(engine: Engine, requests: Sequence[Request]) -> list[Completion]:
    """Sample a completion for each request, and return them in the order of the requests.

    >>> from gym_trl.engines.scripted import ScriptedEngine
    >>> engine = ScriptedEngine(lambda request: [request.seed], delay=lambda request: request.seed)
    >>> requests = [Request("a", [0], 9, seed=5), Request("b", [0], 9, seed=4)]
    >>> [completion.ids for completion in sample_all(engine, requests)]
    [[5], [4]]

    Raises:
        EngineError: A request failed.
    """
    for request in requests:
        engine.submit(request)
    done: dict[str, Completion] = {}
    while len(done) < len(requests):
        for completion in engine.collect(block=True):
            if completion.finish not in (FinishReason.STOP, FinishReason.LENGTH):
                raise EngineError(f"a prompt was not answered: {completion.error or completion.finish.value}")
            done[completion.request_id] = completion
    return [done[request.id] for request in requests]
