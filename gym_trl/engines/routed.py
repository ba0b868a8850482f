"""Several engines as one: each request goes to the engine of its model."""

from collections.abc import Callable
from time import perf_counter, sleep

from gym_trl.engines.protocol import Engine
from gym_trl.types import Completion, Request

_IDLE_S = 0.001


class RoutedEngine(Engine):
    """Engine that sends each request to the engine of ``Request.model``.

    >>> from gym_trl.engines.sample_all import sample_all
    >>> from gym_trl.engines.scripted import ScriptedEngine
    >>> others = {"old": ScriptedEngine(lambda request: [8])}
    >>> engine = RoutedEngine(ScriptedEngine(lambda request: [7]), others.__getitem__)
    >>> requests = [Request("a", [0], 9, seed=1), Request("b", [0], 9, seed=2, model="old")]
    >>> [completion.ids for completion in sample_all(engine, requests)]
    [[7], [8]]

    Engines that have requests take turns: ``collect`` runs a small piece of work of each until one has finished.

    Args:
        own: Engine of requests that name no model; ``None`` if all of them name one.
        others: Function that returns the engine of a model; called once for each.
    """

    def __init__(self, own: Engine | None, others: Callable[[str], Engine]) -> None:
        self._others = others
        self._engines: dict[str, Engine] = {} if own is None else {"": own}
        self._running: dict[str, str] = {}  # model of each request

    def submit(self, request: Request) -> None:
        """Accept a request."""
        if request.model not in self._engines:
            self._engines[request.model] = self._others(request.model)
        self._running[request.id] = request.model
        self._engines[request.model].submit(request)

    def collect(self, *, block: bool) -> list[Completion]:
        """Advance all engines that have requests, until one has finished if ``block``."""
        while True:
            began = perf_counter()
            busy = set(self._running.values())
            alone = block and len(busy) == 1
            completions = [one for name in sorted(busy) for one in self._engines[name].collect(block=alone)]
            for completion in completions:
                self._running.pop(completion.request_id, None)
            if completions or not block or not self._running:
                return completions
            if perf_counter() - began < _IDLE_S:  # all of them wait for something else
                sleep(_IDLE_S)

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot."""
        if (model := self._running.pop(request_id, None)) is not None:
            self._engines[model].cancel(request_id)
