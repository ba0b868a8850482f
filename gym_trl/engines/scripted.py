"""Engine that answers from a script on a simulated clock, for tests of scheduling without a model."""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count

from gym_trl.engines.protocol import Engine
from gym_trl.types import Completion, FinishReason, Request, TokenIds

_LOGPROB = -1.0


class ScriptedEngine(Engine):
    """Engine that answers every request with ``answer(request)`` after ``delay(request)`` ticks of its clock.

    A tick is one engine step. At most ``slots`` requests run at once and the others wait, as in a real engine;
    ``steps`` counts the ticks with running requests. ``requests`` lists all submitted requests.

    >>> engine = ScriptedEngine(lambda request: [7, 8], delay=lambda request: 2)
    >>> engine.submit(Request("a", [1, 2], max_tokens=1, seed=0))
    >>> engine.collect()
    []
    >>> engine.collect()
    [Completion(request_id='a', ids=[7], logprobs=[-1.0], finish=<FinishReason.LENGTH: 'length'>, error=None)]
    >>> engine.steps
    2

    ``answer`` may also return a ``Completion``, to simulate failures.
    """

    def __init__(
        self,
        answer: Callable[[Request], TokenIds | Completion],
        *,
        delay: Callable[[Request], int] = lambda _: 1,
        slots: int | None = None,
    ) -> None:
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self.steps = 0
        self._answer = answer
        self._delay = delay
        self._slots = slots
        self._waiting: deque[Request] = deque()
        self._running: list[tuple[int, int, Request]] = []  # a heap of (tick it is due, order of arrival, request)
        self._order = count()

    def submit(self, request: Request) -> None:
        """Accept a request."""
        self.requests.append(request)
        self._waiting.append(request)

    def collect(self) -> list[Completion]:
        """Advance the clock by one tick."""
        while self._waiting and (self._slots is None or len(self._running) < self._slots):
            request = self._waiting.popleft()
            heappush(self._running, (self.steps + max(1, self._delay(request)), next(self._order), request))
        if not self._running:
            return []
        self.steps += 1
        finished = []
        while self._running and self._running[0][0] <= self.steps:
            finished.append(self._complete(heappop(self._running)[2]))
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot."""
        pending = len(self._running) + len(self._waiting)
        self._running = sorted(entry for entry in self._running if entry[2].id != request_id)
        self._waiting = deque(request for request in self._waiting if request.id != request_id)
        if len(self._running) + len(self._waiting) < pending:
            self.cancelled.append(request_id)

    def _complete(self, request: Request) -> Completion:
        answer = self._answer(request)
        if isinstance(answer, Completion):
            return answer
        ids = answer[: request.max_tokens]
        finish = FinishReason.STOP if len(ids) == len(answer) else FinishReason.LENGTH
        return Completion(request.id, ids, [_LOGPROB] * len(ids), finish)
