"""Completions of several prompts at once, without episodes."""

import asyncio
from collections.abc import Sequence
from typing import Any

from gym_trl.engines.protocol import AsyncEngine, Engine
from gym_trl.errors import EngineError
from gym_trl.rollout import asking, run
from gym_trl.seeding import derive_seed
from gym_trl.types import Completion, FinishReason, Request, TokenIds


def sample_all(
    engine: Engine | AsyncEngine, prompts: Sequence[TokenIds], n: int, max_tokens: int, *seed: Any
) -> list[Completion]:
    """Sample ``n`` completions of each prompt, with seeds derived from ``seed``, and return them prompt by prompt.

    >>> from gym_trl.engines.scripted import ScriptedEngine
    >>> engine = ScriptedEngine(lambda request: request.prompt_ids, delay=lambda request: -request.prompt_ids[0])
    >>> [completion.ids for completion in sample_all(engine, [[5], [6]], 2, 9, "x")]
    [[5], [5], [6], [6]]

    Raises:
        EngineError: A request failed.
    """

    async def sample() -> list[Completion]:
        async with asking(engine) as ask:
            return await asyncio.gather(
                *(
                    ask(Request(str(place), prompts[place // n], max_tokens, derive_seed(*seed, place)))
                    for place in range(len(prompts) * n)
                )
            )

    completions = run(sample())
    for completion in completions:
        if completion.finish is FinishReason.ERROR:
            raise EngineError(f"a prompt was not answered: {completion.error}")
    return completions
