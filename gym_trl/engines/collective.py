"""Generation with a model that is distributed over several processes, which must all take the same steps."""

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias
from zlib import crc32

from gym_trl.engines.admission import check_new
from gym_trl.engines.protocol import Engine
from gym_trl.errors import EngineError
from gym_trl.types import Completion, Request

_PAUSE_S = 0.001
"""Seconds between two rounds of a group in which no process has a running request."""


class Exchange(Protocol):
    """Exchange of Python objects between the processes of a group."""

    rank: int
    """Rank of this process."""

    def __call__(self, message: Any) -> list[Any]:
        """Send ``message`` to all processes and return what all of them sent, in the order of their ranks.

        Returns when every process of the group has called it the same number of times. ``None`` is cheap.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Left:
    """News of a process that needs no more steps, or with an ``error``, that it cannot continue."""

    error: str | None


_News: TypeAlias = Request | str | _Left
"""One thing that a process did: submitted a request, cancelled the request of this id, or left."""


class CollectiveEngine(Engine):
    """Engine for a model that is distributed over a group of processes; each plays its own episodes.

    ::

        with CollectiveEngine(VLLMEngine(llm), TorchExchange(group)) as engine:
            results = run_episodes(episodes, pool=pool, engine=engine)

    Every process has its own engine, and all engines must receive the same requests in the same order and take the same
    steps. Each ``collect`` is one such round, or if ``block``, as many as needed: the processes exchange the requests
    and cancellations since the last round, each applies all of them in the order of the ranks, and their engines step
    once. A process keeps the completions of its own requests.

    A process without requests still has to take part. For this, ``shared`` makes ``run_episodes`` call ``collect``
    continuously, and the end of the ``with`` block continues until every process has reached it. Environments that are
    stepped in threads (``executor="thread"``) do not delay the group; those that are stepped inline delay it, as they
    delay an engine of a single process.

    If one process fails, all do: the exception propagates in the process that raised it, and in the others the round
    raises an ``EngineError`` with the process and the reason. No engine has running requests afterwards, so a program
    that handles the error can start another rollout. If a process is killed, or interrupted while it waits for the
    others, they find out by the group's own timeout.

    Args:
        engine: Must be deterministic across processes: the same model, options and seeds.
        exchange: Exchange between the processes, not used for anything else at the same time.

    Raises:
        EngineError: another process failed or was lost, or the engines returned different completions.
    """

    shared = True

    def __init__(self, engine: Engine, exchange: Exchange) -> None:
        self._engine = engine
        self._exchange = exchange
        self._news: list[_News] = []  # since the last round
        self._own: set[str] = set()
        self._running: set[str] = set()  # of all processes, by the engine's ids
        self._left: set[int] = set()  # ranks that need no more steps
        self._over = False
        self._failed = False
        self._checksum = 0  # of what finished in the last round

    def __exit__(self, *raised: Any) -> None:
        """Take part in rounds until all processes have finished, or report that this process cannot continue."""
        try:
            self._leave(raised[1])
        except BaseException as failure:  # the engine failed in a round for the others
            self._leave(failure)
            raise

    def submit(self, request: Request) -> None:
        """Accept a request; it is in the batch of the next step on every process."""
        if self._over:
            raise EngineError("the rollout of the group has ended; make a new CollectiveEngine")
        check_new(request, self._own)
        self._own.add(request.id)
        self._news.append(request)

    def collect(self, *, block: bool) -> list[Completion]:
        """Take one step with all processes, or if ``block``, as many as needed for a request of this process."""
        if self._over:
            raise EngineError("the rollout of the group has ended; make a new CollectiveEngine")
        finished = self._round()
        while block and self._own and not finished:
            finished = self._round()
        return finished

    def cancel(self, request_id: str) -> None:
        """Drop a request and free its slot on every process, before the next step."""
        if request_id in self._own:
            self._own.remove(request_id)
            self._news.append(request_id)

    def meet(self) -> None:
        """Take part in rounds until every process of the group has called this.

        Afterwards no process has a running request, and all may do something else together before they go on: a process
        that waited elsewhere for one that needs its steps would wait forever.
        """
        self._leave(None)
        self._left.clear()
        self._over = False

    def _leave(self, error: BaseException | None) -> None:
        if self._over:
            return
        for request_id in sorted(self._own):
            self.cancel(request_id)
        self._failed = error is not None
        self._news.append(_Left(f"{type(error).__name__}: {error}" if error else None))
        while not self._over:
            self._round()

    def _round(self) -> list[Completion]:
        everyone = self._ask()
        failures = [
            f"process {rank} of the group ended its rollout: {one.error}"
            for rank, (_, news) in enumerate(everyone)
            for one in news
            if isinstance(one, _Left) and one.error
        ]
        if failures:
            self._end(failures[0])
        elif len({checksum for checksum, _ in everyone}) > 1:
            self._end("the processes of the group sampled different answers to the same requests")
        for rank, (_, news) in enumerate(everyone):
            for one in () if self._over else news:
                self._do(rank, one)
        self._over = self._over or len(self._left) == len(everyone)
        return [] if self._over else self._step()

    def _ask(self) -> list[tuple[int, Sequence[_News]]]:
        """Return the message of each process: a checksum of its completions, and its news."""
        message = (self._checksum, self._news)
        self._news, self._checksum = [], 0
        try:
            everyone = self._exchange(message if any(message) else None)
        except Exception as error:
            self._end(f"the group lost a process: {type(error).__name__}: {error}", error)
            return []  # this process has failed itself and reports its own error
        except BaseException:  # interrupted: the state of the exchange is undefined
            self._end(None)
            raise
        return [heard or (0, ()) for heard in everyone]

    def _do(self, rank: int, what: _News) -> None:
        """Apply the news of one process, as every other process does now."""
        if isinstance(what, _Left):
            self._left.add(rank)
        elif isinstance(what, Request):
            request = replace(what, episode_id=f"{rank}:{what.episode_id}")
            self._running.add(request.id)
            self._engine.submit(request)
        else:
            self._running.discard(f"{rank}:{what}")
            self._engine.cancel(f"{rank}:{what}")

    def _step(self) -> list[Completion]:
        if not self._running:
            time.sleep(_PAUSE_S)
            return []
        finished = self._engine.collect(block=False)
        if finished:
            self._checksum = crc32(repr([(one.request_id, one.ids, one.finish.value) for one in finished]).encode())
        self._running -= {one.request_id for one in finished}
        mine = f"{self._exchange.rank}:"
        own = [
            replace(one, request_id=one.request_id.removeprefix(mine))
            for one in finished
            if one.request_id.startswith(mine)
        ]
        self._own -= {one.request_id for one in own}
        return own

    def _end(self, error: str | None, cause: Exception | None = None) -> None:
        """Cancel everything; every process of the group does so at the same time."""
        self._over = True
        for request_id in sorted(self._running):
            self._engine.cancel(request_id)
        self._running.clear()
        self._own.clear()
        if error is not None and not self._failed:
            raise EngineError(error) from cause


class TorchExchange:
    """``Exchange`` between the processes of a ``torch.distributed`` group that can send CPU tensors.

    ::

        exchange = TorchExchange(torch.distributed.new_group(backend="gloo"))

    Args:
        group: A group of the ``gloo`` backend.
    """

    def __init__(self, group: Any) -> None:
        import torch.distributed

        self._group = group
        self._size: int = torch.distributed.get_world_size(group)
        self.rank: int = torch.distributed.get_rank(group)

    def __call__(self, message: Any) -> list[Any]:
        """Send ``message`` to all processes and return what all of them sent."""
        import torch

        # Like all_gather_object, but without the second collective call if every message is None.
        payload = b"" if message is None else pickle.dumps(message)
        lengths = [int(length) for length in self._gather(torch.tensor([len(payload)]))]
        if not max(lengths):
            return [None] * len(lengths)
        padded = bytearray(payload.ljust(max(lengths), b"\0"))
        rows = self._gather(torch.frombuffer(padded, dtype=torch.uint8))
        return [
            pickle.loads(row.numpy()[:length].tobytes()) if length else None  # noqa: S301 -- from the same program
            for row, length in zip(rows, lengths, strict=True)
        ]

    def _gather(self, row: Any) -> list[Any]:
        import torch

        rows = [torch.empty_like(row) for _ in range(self._size)]
        torch.distributed.all_gather(rows, row, group=self._group)
        return rows
