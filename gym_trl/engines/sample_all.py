"""Completions of several requests at once, without episodes."""

from collections.abc import Sequence

from gym_trl.engines.protocol import Engine
from gym_trl.errors import EngineError
from gym_trl.types import Completion, FinishReason, Request


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
