"""Generation with a model that is spread over several processes, all of which must step alike."""

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, ClassVar, Protocol, Self, TypeAlias
from zlib import crc32

from gym_trl.engines.protocol import Engine
from gym_trl.errors import EngineError
from gym_trl.types import Completion, Request

_PAUSE_S = 0.001
"""How long a group waits in which nobody generates before its members ask each other again."""


class Exchange(Protocol):
    """Tells the processes of a group what each of them has to say."""

    rank: int
    """The place of this process."""

    def __call__(self, said: Any) -> list[Any]:
        """Give ``said`` to everybody and return what everybody said, in the order of their ranks.

        Returns when every process of the group has called it as often as this one. ``None`` is cheap.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Left:
    """That a process needs no more answers, or with an ``error`` that it cannot go on."""

    error: str | None


_News: TypeAlias = Request | str | _Left
"""What one process did: took a request, cancelled the one of this id, or left."""


class CollectiveEngine:
    """Samples with an engine whose model is spread over a group of processes, each of which plays its own episodes.

    ::

        with CollectiveEngine(VLLMEngine(llm), TorchExchange(group)) as engine:
            trajectories = run_episodes(episodes, pool=pool, engine=engine)

    Every process has an engine of its own, and all engines must be given the same requests in the same order and take
    the same steps. Each ``collect`` is such a round, or with ``block`` as many as it takes: the processes tell each
    other what they took and cancelled since the last one, each does all of it in the order of the ranks, and their
    engines step once. A process keeps the completions of its own requests.

    A process that has nothing to ask for still has to take part. That is what ``shared`` tells ``run_episodes``, and
    what the end of the ``with`` block does until every process has come to its own. Environments that are stepped in
    threads (``executor="thread"``) keep nobody waiting; those that are stepped inline keep the group waiting, as they
    do an engine that has the process for itself.

    Where one process fails, all do: the exception goes on where it was raised, and everywhere else the round raises an
    ``EngineError`` that names the process and the reason. Nothing is left running in any engine, so a program that
    survives that can begin another rollout. A process that is killed, or interrupted while it waits for the others,
    leaves it to the group's own time-out to tell them.

    Args:
        engine: Has to do the same on every process when it is asked for the same: the same model, options and seeds.
        exchange: Between the processes, and not used for anything else at the same time.

    Raises:
        EngineError: another process failed or is gone, or the engines returned different answers.
    """

    shared: ClassVar[bool] = True

    def __init__(self, engine: Engine, exchange: Exchange) -> None:
        self._engine = engine
        self._exchange = exchange
        self._news: list[_News] = []  # since the last round
        self._own: set[str] = set()
        self._running: set[str] = set()  # of everybody, by the ids that the engine knows
        self._left: set[int] = set()  # the ranks that need nothing more
        self._over = False
        self._failed = False
        self._checksum = 0  # of what finished in the last round

    def __enter__(self) -> Self:
        """Use the engine in a ``with`` block that ends when every process of the group has come to its end."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Work for the others until all have finished, or tell them that this process cannot go on."""
        try:
            self._leave(error)
        except BaseException as failure:  # of the engine, while it worked for the others
            self._leave(failure)
            raise

    def submit(self, request: Request) -> None:
        """Take a request; every process has it in the batch of the next step."""
        if self._over:
            raise EngineError("the group has ended its rollout: make a new CollectiveEngine")
        if request.id in self._own:
            raise ValueError(f"request {request.id!r} is already running")
        self._own.add(request.id)
        self._news.append(request)

    def collect(self, *, block: bool) -> list[Completion]:
        """Take one step with all others, or with ``block`` as many as it takes for a request of this process."""
        if self._over:
            raise EngineError("the group has ended its rollout: make a new CollectiveEngine")
        finished = self._round()
        while block and self._own and not finished:
            finished = self._round()
        return finished

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its slot on every process, before the next step."""
        if request_id in self._own:
            self._own.remove(request_id)
            self._news.append(request_id)

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
        """What everybody has to say: a checksum of what they saw, and what they did."""
        said = (self._checksum, self._news)
        self._news, self._checksum = [], 0
        try:
            everyone = self._exchange(said if any(said) else None)
        except Exception as error:
            self._end(f"the group lost a process: {type(error).__name__}: {error}", error)
            return []  # this process has failed itself, and says of what
        except BaseException:  # interrupted: nobody knows how far the exchange had come
            self._end(None)
            raise
        return [heard or (0, ()) for heard in everyone]

    def _do(self, rank: int, what: _News) -> None:
        """Do what a process did, as every other process does now."""
        if isinstance(what, _Left):
            self._left.add(rank)
        elif isinstance(what, Request):
            request_id = f"{rank}:{what.id}"
            self._running.add(request_id)
            self._engine.submit(replace(what, id=request_id))
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
        """Leave nothing running; every process of the group does so at the same time."""
        self._over = True
        for request_id in sorted(self._running):
            self._engine.cancel(request_id)
        self._running.clear()
        self._own.clear()
        if error is not None and not self._failed:
            raise EngineError(error) from cause


class TorchExchange:
    """An ``Exchange`` between the processes of a ``torch.distributed`` group that can send what is in main memory.

    ::

        exchange = TorchExchange(torch.distributed.new_group(backend="gloo"))

    Args:
        group: Of the ``gloo`` backend.
    """

    def __init__(self, group: Any) -> None:
        import torch.distributed

        self._group = group
        self._size: int = torch.distributed.get_world_size(group)
        self.rank: int = torch.distributed.get_rank(group)

    def __call__(self, said: Any) -> list[Any]:
        """Give ``said`` to everybody and return what everybody said."""
        import torch

        # As all_gather_object does, which takes its second turn also where nobody has anything to say.
        payload = b"" if said is None else pickle.dumps(said)
        lengths = [int(length) for length in self._gather(torch.tensor([len(payload)]))]
        if not max(lengths):
            return [None] * len(lengths)
        padded = bytearray(payload.ljust(max(lengths), b"\0"))
        rows = self._gather(torch.frombuffer(padded, dtype=torch.uint8))
        return [
            pickle.loads(row.numpy()[:length].tobytes()) if length else None  # noqa: S301 -- from this very program
            for row, length in zip(rows, lengths, strict=True)
        ]

    def _gather(self, row: Any) -> list[Any]:
        import torch

        rows = [torch.empty_like(row) for _ in range(self._size)]
        torch.distributed.all_gather(rows, row, group=self._group)
        return rows
