"""The engine for systems that sample one response at a time and leave the batching to their server.

SkyRL and TextArena have a server or an actor in front of the engine, which batches what their episodes ask for at the
same time. Here the requests go to the engine of this process, without a connection in between.
"""

from itertools import count
from typing import Any

from systems import Game
from systems.generator import Generator


class SharedEngine:
    """Requests of concurrent episodes: each is a future that an engine step completes."""

    def __init__(self, game: Game, generator: Generator, logprobs: int | None) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self._engine = generator.llm.llm_engine
        self._ids = count()
        self._params = SamplingParams(
            temperature=1.0,
            top_p=1.0,
            top_k=-1,
            max_tokens=game.tokens_per_turn,
            logprobs=logprobs,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self.futures: dict[str, Any] = {}

    def submit(self, prompt_ids: list[int], future: Any) -> None:
        """Add a request; its output becomes the result of a future of asyncio or of threads."""
        request_id = f"shared-{next(self._ids)}"
        try:
            self._engine.add_request(request_id, {"prompt_token_ids": prompt_ids}, self._params)
        except ValueError as refused:
            future.set_exception(refused)  # or its episode would wait forever
        else:
            self.futures[request_id] = future

    def step(self) -> None:
        for output in self._engine.step():
            if output.finished:
                self.futures.pop(output.request_id).set_result(output)
