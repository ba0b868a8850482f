"""Environments on many machines: actors of a Ray cluster, each with processes that may hang, leak and crash.

Each actor holds a ``ProcessPool`` on its machine, which enforces time limits and replaces processes with all their
children. This module distributes episodes over actors and handles lost actors. A call to an actor transfers tasks and
actions, and returns with available results. Some calls are always open, so that results arrive without polling.
"""

import asyncio
import logging
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import SystemRandom
from threading import Lock
from time import monotonic
from typing import Any, TypeAlias
from weakref import finalize

from gym_trl.errors import needs
from gym_trl.executors.process import ProcessPool, register, registered
from gym_trl.executors.protocol import EnvFactory, TextEnvironment
from gym_trl.executors.worker_pool import ProcessOptions, WorkerPool
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

_START_S = 180.0
_SILENCE_S = 60.0  # an actor returns every second, independent of its environments
_BEAT_S = 1.0
_OPEN_CALLS = 8
_LINGER_S = 0.002
_CLOSE_S = 10.0
_PER_ACTOR = 8
_AVOID_S = 60.0  # Ray may take this long to notice a lost machine
_ERROR_LENGTH = 300
_COLORS = re.compile(r"\x1b\[[0-9;]*m")
_STORE_BYTES = 100_000_000  # hardly used; Ray's default is a third of the memory
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
_PATIENT = {"RAY_raylet_start_wait_time_s": "180", "RAY_agent_register_timeout_ms": "180000"}  # on a busy machine

_Question: TypeAlias = tuple[int, str, Task | str | None]
_Answer: TypeAlias = tuple[int, str, StepResult | EnvFailure]


class RayPool(WorkerPool["_Actor"]):
    """Pool that steps environments in processes on the machines of a Ray cluster.

    ``GymSpec(..., executor="ray")`` makes one, and ``executor=partial(RayPool, address="10.0.0.1:6379")`` one with
    other arguments than the defaults. The cluster is the one that the program is connected to already, else that of
    ``address`` or ``$RAY_ADDRESS``, else a new one on this machine, which ends with the last pool that uses it. Every
    machine needs the same Python, Ray, gym-trl and environments.

    Each process holds the environments of several episodes. A new episode goes to the actor, and there to the process,
    with the fewest episodes. Processes are replaced as in a ``ProcessPool``, with the same stop reasons. If an actor or
    its machine is lost, its episodes end with ``env_error``; an actor that returns nothing for a minute is ended, and
    its episodes end with ``timeout``. Other actors replace it on the remaining machines. An episode has at most one
    call or result in transit, so queues stay short.

    Args:
        make: Makes an environment from its id. Transferred by value, so a lambda is allowed.
        address: Address of the cluster, as in ``ray.init``.
        actor_options: Options of the actors, as in Ray's ``.options()``: ``{"num_cpus": 8}`` reserves CPUs (default:
            none), ``{"resources": {"env": 1}}`` selects machines. An actor has at most 8 processes.
        options: Fields of ``ProcessOptions``; ``workers`` counts processes on all machines together, by default as many
            as the cluster has CPUs.

    Raises:
        MissingDependencyError: Ray is not installed.
        ConfigError: an invalid argument.
        ConnectionError: there is no cluster at the address.
    """

    def __init__(
        self,
        make: EnvFactory,
        *,
        address: str | None = None,
        actor_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._process_options = ProcessOptions(**options)
        _ray()
        super().__init__()
        self._make = make
        self._address = address
        self._options = dict(actor_options or {})
        self._size = self._per_actor = 0  # numbers of actors, and of processes in each; set on connection
        self._avoid: dict[str, float] = {}  # machines where an actor was lost, until this time
        self._sent: _Sent | None = None
        self._actors: list[_Actor] = []
        self._connection: list[bool] = []  # not empty if this pool keeps the connection open
        self._finalizer = finalize(self, _end, self._actors, self._connection)

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        results: list[tuple[str, StepResult | EnvFailure]] = []
        while True:
            for worker in list(self._actors):
                self._call(worker)
            wait = block and not self._failed and bool(self._tickets)
            for worker, call in self._come_back(self._patience() if wait else 0.0):
                self._take(worker, call, results)
            for worker in [worker for worker in self._actors if worker.due <= monotonic()]:
                late = f"did not answer for {_SILENCE_S:g} s" if worker.started else f"did not start in {_START_S:g} s"
                self._retire(worker, f"its actor {late}", StopReason.TIMEOUT)
            results += self._take_failed()
            if results or not block or not self._tickets:
                return results

    def close(self) -> None:
        """Close every instance and end the actors, and the cluster if it was started for them."""
        self._clear()
        _end(self._actors, self._connection)
        self._size = 0

    def _released(self, worker: "_Actor", key: str) -> None:
        worker.questions.append((0, key, None))

    def _send(self, worker: "_Actor", ticket: int, key: str, work: Task | str) -> None:
        worker.questions.append((ticket, key, work))

    def _call(self, worker: "_Actor") -> None:
        """Send pending calls, and keep calls open for results."""
        waiting = min(_OPEN_CALLS, sum(key in self._tickets for key in worker.episodes))
        while worker.questions or len(worker.calls) < waiting:
            questions, worker.questions = worker.questions, []
            try:
                call = worker.handle.converse.remote(worker.number, questions)
            except _ray().exceptions.RayError as error:
                self._retire(worker, _short(error))
                return
            worker.number += 1
            worker.calls[call] = monotonic()

    def _come_back(self, timeout: float | None) -> list[tuple["_Actor", Any]]:
        calls = {call: worker for worker in self._actors for call in worker.calls}
        if not calls:
            return []
        ready, _ = _ray().wait(list(calls), num_returns=1, timeout=timeout)
        if len(calls) > 1:  # and all others that have returned
            ready, _ = _ray().wait(list(calls), num_returns=len(calls), timeout=0)
        return [(calls[call], call) for call in ready]

    def _take(self, worker: "_Actor", call: Any, results: list[tuple[str, StepResult | EnvFailure]]) -> None:
        if call not in worker.calls:  # its actor has just been dropped
            return
        del worker.calls[call]
        try:
            answers: list[_Answer] = _ray().get(call)
        except _ray().exceptions.RayError as error:
            self._retire(worker, _short(error))
            return
        worker.started = True
        for ticket, key, result in answers:
            if (accepted := self._accepted(ticket, key, result)) is not None:
                results.append((key, accepted))

    def _retire(self, worker: "_Actor", error: str, reason: StopReason = StopReason.ENV_ERROR) -> None:
        """Drop an actor and fail its episodes."""
        self._actors.remove(worker)
        self._avoid[worker.node] = monotonic() + _AVOID_S
        worker.calls.clear()
        with suppress(Exception):  # the actor or its machine may be lost
            _ray().kill(worker.handle)
        for key in worker.episodes:
            self._fail(key, EnvFailure(error, reason))

    def _patience(self) -> float | None:
        due = min((worker.due for worker in self._actors), default=math.inf)
        return None if due == math.inf else max(0.0, due - monotonic())

    def _least_busy(self) -> "_Actor":
        self._connect()
        idle = min(self._actors, key=lambda worker: len(worker.episodes), default=None)
        if idle is None or (idle.episodes and len(self._actors) < self._size):
            self._sent = self._sent or _Sent(self._make)
            node = self._least_used()
            actor = _ray().remote(_Agent).options(**{**_near(node), **self._options})
            idle = _Actor(actor.remote(self._sent, replace(self._process_options, workers=self._per_actor)), node)
            self._actors.append(idle)
        return idle

    def _least_used(self) -> str:
        """Return a machine with the fewest of this pool's actors, at random because other pools choose as well."""
        now, nodes = monotonic(), _nodes()
        self._avoid = {node: until for node, until in self._avoid.items() if until > now}
        used = Counter(worker.node for worker in self._actors)
        ranks = {node: (node in self._avoid, used[node]) for node in nodes}
        return SystemRandom().choice([node for node in nodes if ranks[node] == min(ranks.values())])

    def _connect(self) -> None:
        if self._size:
            return
        if _open_connection(self._address):
            self._connection.append(True)
        nodes = _nodes()
        workers = self._process_options.workers or max(1, int(sum(nodes.values())))
        self._per_actor = min(_PER_ACTOR, math.ceil(workers / len(nodes)))
        self._size = math.ceil(workers / self._per_actor)


@dataclass(eq=False)
class _Actor:
    """Pool's view of an actor."""

    handle: Any
    node: str
    episodes: set[str] = field(default_factory=set)
    questions: list[_Question] = field(default_factory=list)
    calls: dict[Any, float] = field(default_factory=dict)
    """Open calls with their start times, oldest first."""
    number: int = 0
    started: bool = False

    @property
    def due(self) -> float:
        """Time by which the oldest call must have returned."""
        if not self.calls:
            return math.inf
        return next(iter(self.calls.values())) + (_SILENCE_S if self.started else _START_S)


class _Agent:
    """Actor's side of a ``RayPool``: a ``ProcessPool``, and the exchange of calls and results."""

    def __init__(self, make: "_Sent", options: ProcessOptions) -> None:
        self._pool = ProcessPool(make, **asdict(options))
        self._tickets: dict[str, int] = {}
        self._inbox: dict[int, list[_Question]] = {}
        self._next = self._answered = 0  # number of the next call; calls returned since the last one arrived
        self._news = asyncio.Event()
        self._turn = asyncio.Lock()

    async def converse(self, number: int, questions: list[_Question]) -> list[_Answer]:
        """Accept calls, and wait for results: for a second at most, once earlier calls of ``converse`` have returned.

        The first result is returned at once. Until the pool sends more calls, later results are collected for a while
        before they are returned, longer each time, because few calls of ``converse`` are open.
        """
        self._take(number, questions)
        self._answered = 0
        self._news.set()
        async with self._turn:
            began, answers = monotonic(), list[_Answer]()
            linger = _LINGER_S * 2**self._answered if self._answered else 0.0
            while True:
                answers += [
                    (self._tickets.get(key, -1), key, result) for key, result in self._pool.collect(block=False)
                ]
                rest = began + (linger if answers else _BEAT_S) - monotonic()
                if rest <= 0:
                    self._answered += bool(answers)
                    return answers
                await self._something(rest)

    def close(self) -> None:
        """Close every instance and end the processes."""
        self._pool.close()

    def _take(self, number: int, questions: list[_Question]) -> None:
        self._inbox[number] = questions
        while self._next in self._inbox:  # calls may arrive out of order
            for question in self._inbox.pop(self._next):
                self._do(*question)
            self._next += 1

    def _do(self, ticket: int, key: str, work: Task | str | None) -> None:
        self._tickets[key] = ticket
        if work is None:
            del self._tickets[key]
            self._pool.release(key)
        elif isinstance(work, Task):
            self._pool.reset(key, work)
        else:
            self._pool.step(key, work)

    async def _something(self, timeout: float) -> None:
        """Wait for a result, a deadline or the next call."""
        self._news.clear()
        loop, answers = asyncio.get_running_loop(), self._pool.fileno()
        loop.add_reader(answers, self._news.set)
        patience = self._pool.patience()
        try:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), timeout if patience is None else min(timeout, patience))
        finally:
            loop.remove_reader(answers)


class _Sent:
    """``make`` and this program's registered environments, pickled; unpickled only in the environments' processes."""

    def __init__(self, make: EnvFactory) -> None:
        import cloudpickle

        self._packed: bytes = cloudpickle.dumps((make, registered()))
        self._path = [path for path in sys.path if path]
        self._make: EnvFactory | None = None

    def __call__(self, env_id: str) -> TextEnvironment:
        if self._make is None:
            import cloudpickle

            here = set(sys.path)
            sys.path += [path for path in self._path if path not in here and Path(path).exists()]
            self._make, specs = cloudpickle.loads(self._packed)
            register(specs)
        assert self._make is not None
        return self._make(env_id)


# ---------------------------------------------------------------------------------------------------------------------
# The cluster
# ---------------------------------------------------------------------------------------------------------------------

_lock = Lock()
_opened_for = 0  # number of pools that use the connection opened here


def _ray() -> Any:
    with needs("ray", "environments on a Ray cluster"):
        import ray
        import ray.exceptions
    return ray


def _nodes() -> dict[str, float]:
    """Return the number of CPUs of each machine that has any."""
    cpus_of = {one["NodeID"]: one["Resources"].get("CPU", 0.0) for one in _ray().nodes() if one["Alive"]}
    return {node: cpus for node, cpus in cpus_of.items() if cpus} or cpus_of


def _near(node: str) -> dict[str, Any]:
    """Return options that place an actor on this machine if there is room; Ray's spreading may put all on one."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return {"scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=True)}


def _open_connection(address: str | None) -> bool:
    """Connect to a cluster, and return whether the connection was opened here; a cluster started here is local."""
    global _opened_for  # noqa: PLW0603 -- Ray's connection is the whole program's, too
    with _lock:
        if _ray().is_initialized() and not _opened_for:
            return False
        _opened_for += 1
        if _ray().is_initialized():
            return True
        os.environ |= {name: value for name, value in (_QUIET | _PATIENT).items() if name not in os.environ}
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        address = address or os.environ.get("RAY_ADDRESS")
        try:
            if address:
                _ray().init(address, **quiet)
            else:
                here = {"_node_ip_address": "127.0.0.1", "object_store_memory": _STORE_BYTES}
                _ray().init("local", include_dashboard=False, **here, **quiet)
        except BaseException:
            _opened_for -= 1
            raise
        return True


def _close_connection() -> None:
    global _opened_for  # noqa: PLW0603
    with _lock:
        if _opened_for:
            _opened_for -= 1
            if not _opened_for:
                _ray().shutdown()


def _end(actors: list[_Actor], connection: list[bool]) -> None:
    if actors and _ray().is_initialized():  # at interpreter shutdown Ray may have ended already
        with suppress(Exception):
            closing = [worker.handle.close.remote() for worker in actors]
            _ray().wait(closing, num_returns=len(closing), timeout=_CLOSE_S)
        for worker in actors:
            with suppress(Exception):
                _ray().kill(worker.handle)
    actors.clear()
    if connection:
        connection.clear()
        _close_connection()


def _short(error: Exception) -> str:
    """Return an error of Ray as one short line."""
    message = " ".join(_COLORS.sub("", str(error)).split())
    if len(message) > _ERROR_LENGTH:  # the cause is at the end
        message = f"{message[: _ERROR_LENGTH // 3]} ... {message[-2 * _ERROR_LENGTH // 3 :]}"
    return f"its actor was lost: {message}"
