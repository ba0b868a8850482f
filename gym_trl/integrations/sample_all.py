"""Completions of several requests at once, without episodes."""

import asyncio
from collections.abc import Sequence

from gym_trl.engines.protocol import AsyncEngine, Engine
from gym_trl.errors import EngineError
from gym_trl.rollout import asking, run
from gym_trl.types import Completion, FinishReason, Request


def sample_all(engine: Engine | AsyncEngine, requests: Sequence[Request]) -> list[Completion]:
    """Sample a completion for each request, and return them in the order of the requests.

    >>> from gym_trl.engines.scripted import ScriptedEngine
    >>> engine = ScriptedEngine(lambda request: [request.seed], delay=lambda request: request.seed)
    >>> requests = [Request("a", [0], 9, seed=5), Request("b", [0], 9, seed=4)]
    >>> [completion.ids for completion in sample_all(engine, requests)]
    [[5], [4]]

    Raises:
        EngineError: A request failed.
    """

    async def sample() -> list[Completion]:
        async with asking(engine) as ask:
            return await asyncio.gather(*map(ask, requests))

    completions = run(sample())
    for completion in completions:
        if completion.finish is FinishReason.ERROR:
            raise EngineError(f"a prompt was not answered: {completion.error}")
    return completions
