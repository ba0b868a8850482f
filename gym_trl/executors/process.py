"""Executors: environments stepped in this thread, in threads, in processes that may hang and die, on other machines."""

import os
import pickle
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from selectors import EVENT_READ, DefaultSelector
from threading import Thread
from time import monotonic
from typing import Any
from weakref import finalize

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec

from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory
from gym_trl.executors.step import name_of
from gym_trl.executors.thread import GIVEN_UP_S
from gym_trl.executors.worker import Worker, WorkerEnded, WorkerError, question
from gym_trl.executors.worker_pool import ProcessOptions, WorkerPool
from gym_trl.types import UNNAMED, EnvFailure, StepResult, StopReason, Task

_START_S = 120.0
_PLAIN = (str, int, float, bool, type(None))
_AHEAD = 16
_USELESS = 3  # processes in a row without a result after which others are taken to end in the same way
_PIPE_HOLDS = 2048  # the smallest pipe of Linux and macOS holds a page


class ProcessPool(WorkerPool["_Process"]):
    """Pool that steps environments in processes, for environments that compute, hang, leak, crash or use global state.

    >>> with ProcessPool(gym.make, workers=1) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, result)] = pool.collect(block=True)
    >>> key, type(result).__name__
    ('a', 'StepResult')

    Each process is a new interpreter (no fork, no ``__main__`` guard) that holds the environments of several episodes
    and steps them one at a time. A new episode goes to the process with the fewest episodes. A process that ends, or
    exceeds a time limit, is killed with all its child processes and replaced. The episode whose step it was executing
    ends with ``crashed``, or with ``env_error`` if a signal from outside ended the process (``gym_trl.errors`` has the
    rule). The process's other episodes go on in other processes: a new instance is given the same task and actions,
    and if its results are the same it replaces the one that was lost; otherwise the episode ends with ``env_error``.
    This is logged. Of an environment's ``info``, strings, numbers, booleans and ``None`` are transferred.

    Args:
        make: Makes an environment from its id. Transferred by value, so a lambda is allowed.
        options: Fields of ``ProcessOptions``.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(self, make: EnvFactory, **options: Any) -> None:
        self._options = ProcessOptions(**options)
        super().__init__()
        self._make = make
        self._size = self._options.workers or os.cpu_count() or 1
        self._limits = {"reset": self._options.reset_timeout, "step": self._options.step_timeout}
        self._processes: list[_Process] = []
        self._leaving: _Process | None = None  # gets no more episodes
        self._useless = 0  # number of processes in a row that ended without a result
        self._look = float("inf")  # time of the earliest deadline
        self._selector = DefaultSelector()
        self._finalizer = finalize(self, _end_all, self._processes)

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        results: list[tuple[str, StepResult | EnvFailure]] = []
        while True:
            if self._moving:
                self._move_on()
            wait = block and not results and not self._failed and bool(self._tickets)
            for event, _ in self._selector.select(self.patience() if wait else 0):
                self._take(event.data, results)
            if monotonic() >= self._look:
                self._give_up()
            if self._failed:
                results += self._take_failed()
            if results or not block or not self._tickets:
                return results

    def close(self) -> None:
        """Close every instance and end the processes; the pool can be used again afterwards."""
        for process in self._processes:
            self._selector.unregister(process.worker)
        self._leaving = None
        self._clear()
        _end_all(self._processes)

    def fileno(self) -> int:
        """Return the file descriptor that is readable when ``collect`` may have results, for an event loop."""
        return self._selector.fileno()

    def patience(self) -> float | None:
        """Return the seconds until ``collect`` has to check a deadline; ``None`` if there is none."""
        if self._failed or self._moving:
            return 0.0
        return None if self._look == float("inf") else max(0.0, self._look - monotonic())

    def _released(self, process: "_Process", key: str) -> None:
        process.waiting = deque(question for question in process.waiting if question[1] != key)
        process.released.append(key)
        if process.due == float("inf"):  # its current call may be one whose result is no longer needed
            self._set_due(process)
        if process is self._leaving or self._worn(process):
            self._leaving = self._leaving or process
            self._end_empty(process)

    def _end_empty(self, process: "_Process") -> None:
        """End a process that is to be replaced, if it has no episodes and no running call."""
        if not process.episodes and not process.asked:
            self._forget(process)
            Thread(target=process.worker.close, name="gym-trl closes environments").start()

    def _send(self, process: "_Process", ticket: int, key: str, work: Task | str) -> None:
        process.waiting.append((ticket, key, work))
        self._keep_busy(process)

    def _keep_busy(self, process: "_Process") -> None:
        """Send as many calls ahead as the pipe surely holds, so that a process need not wait for the pool."""
        while process.waiting and len(process.asked) < _AHEAD:
            ticket, key, work = process.waiting[0]
            message = question("answer", process.released, ticket, key, work)
            if process.asked and process.on_its_way + len(message) > _PIPE_HOLDS:
                return
            process.waiting.popleft()
            process.released = []
            process.asked.append((ticket, key, name_of(work), len(message)))
            process.on_its_way += len(message)
            if len(process.asked) == 1:
                self._set_due(process)
            try:
                process.worker.send(message)
            except WorkerError:  # it has ended before this call; `collect` handles that after its last results
                process.asked.pop()
                return

    def _set_due(self, process: "_Process") -> None:
        limit = self._limits[process.asked[0][2]] if process.asked else None
        if limit is None and self._given_up(process):
            limit = GIVEN_UP_S
        process.due = float("inf")
        if limit is not None:
            process.due = monotonic() + limit + (0.0 if process.started else _START_S)
            self._look = min(self._look, process.due)

    def _take(self, process: "_Process", results: list[tuple[str, StepResult | EnvFailure]]) -> None:
        try:
            answers = process.worker.arrived()
        except WorkerError as error:
            crashed = isinstance(error, WorkerEnded) and error.by_itself and process.stepping
            self._retire(process, str(error), StopReason.CRASHED if crashed else StopReason.ENV_ERROR)
            return
        for ticket, key, *fields in answers:
            process.started = True
            process.on_its_way -= process.asked.popleft()[3]
            result: StepResult | EnvFailure
            if len(fields) > 3:
                result = StepResult(*fields)
            elif len(fields) > 1:
                result = EnvFailure(*fields)
            elif self._tickets.get(key) == ticket:
                raise fields[0]
            else:
                continue
            if (accepted := self._accepted(ticket, key, result)) is not None:
                results.append((key, accepted))
        if answers or process.worker.answering:  # a long result arrives in pieces
            self._set_due(process)
        self._keep_busy(process)
        if process is self._leaving:
            self._end_empty(process)

    def _give_up(self) -> None:
        for process in [process for process in self._processes if process.due <= monotonic()]:
            doing = process.asked[0][2]
            limit = self._limits[doing]
            if limit is None:
                late = f"did not end within {GIVEN_UP_S:g} s after its episode was given up"
            else:
                late = f"did not answer within {limit:g} s" if process.started else "did not start"
            hangs = process.started and process.stepping
            self._retire(process, f"{doing} {late}", StopReason.CRASHED if hangs else StopReason.TIMEOUT)
        self._look = min((process.due for process in self._processes), default=float("inf"))

    def _given_up(self, process: "_Process") -> bool:
        """Return whether the result of its current call is no longer needed."""
        return bool(process.asked) and self._tickets.get(process.asked[0][1]) != process.asked[0][0]

    def _retire(self, process: "_Process", error: str, reason: StopReason) -> None:
        """Kill a process and fail the episode of its current call; its other episodes go on in other processes."""
        self._forget(process)
        process.worker.kill()
        ticket, guilty = process.asked[0][:2] if process.asked else (None, None)
        if guilty in process.episodes and self._tickets.get(guilty) == ticket:
            self._fail(guilty, EnvFailure(error, reason))
        else:
            guilty = None
        others = sorted(process.episodes - {guilty})
        lost = f"its process was lost with another episode's environment: {error}"
        self._useless = 0 if process.started else self._useless + 1
        if self._useless < _USELESS:
            self._move(others, lost)
        else:
            for key in others:
                self._fail(key, EnvFailure(lost))

    def _forget(self, process: "_Process") -> None:
        self._selector.unregister(process.worker)
        self._processes.remove(process)
        if process is self._leaving:
            self._leaving = None

    def _least_busy(self) -> "_Process":
        if monotonic() >= self._look:  # no new episode should go to a process that hangs
            self._give_up()
        staying = [process for process in self._processes if process is not self._leaving]
        idle = min(staying, key=lambda process: process.load, default=None)
        if idle is None or (idle.load and len(staying) < self._size):
            idle = _Process(Worker(partial(_Host, self._make, registered())))
            self._processes.append(idle)
            self._selector.register(idle.worker, EVENT_READ, idle)
        idle.played += 1
        return idle

    def _worn(self, process: "_Process") -> bool:
        episodes = self._options.recycle_after
        return episodes is not None and process.played >= episodes


@dataclass(eq=False)
class _Process:
    """Pool's view of a process that holds environments."""

    worker: Worker
    episodes: set[str] = field(default_factory=set)
    waiting: deque[tuple[int, str, Task | str]] = field(default_factory=deque)
    asked: deque[tuple[int, str, str, int]] = field(default_factory=deque)
    """Calls that were sent: ticket, episode, reset or step, bytes. The first one is being executed."""
    on_its_way: int = 0
    due: float = float("inf")
    released: list[str] = field(default_factory=list)
    played: int = 0
    started: bool = False

    @property
    def stepping(self) -> bool:
        """True if it is executing an action."""
        return bool(self.asked) and self.asked[0][2] == "step"

    @property
    def load(self) -> int:
        """Number of its episodes, plus running calls of episodes that were released."""
        return len(self.episodes) + sum(key not in self.episodes for _, key, *_ in self.asked)


class _Host:
    """Process's side of a ``ProcessPool``: the environments of its episodes."""

    def __init__(self, make: EnvFactory, registered: Iterable[bytes]) -> None:
        register(registered)
        self._pool = InlinePool(make)

    def answer(self, released: Iterable[str], ticket: int, key: str, work: Task | str) -> tuple[Any, ...]:
        """Release the episodes in ``released``, execute one call, and return its result's fields as plain objects."""
        for gone in released:
            self._pool.release(gone)
        try:
            result = self._pool.execute(key, work)
        except BaseException as interrupt:  # raised in the process of the pool
            return ticket, key, interrupt
        if isinstance(result, EnvFailure):
            return ticket, key, result.error, result.reason, result.of_user
        info: dict[Any, Any] = {}
        if result.info:  # a process that has slept finds its caches cold: every line costs ten times as much as usual
            items = result.info.items()
            info = {_exact(k): _exact(v) for k, v in items if isinstance(k, _PLAIN) and isinstance(v, _PLAIN)}
        fields = ticket, key, _exact(result.observation), result.reward, result.terminated, result.truncated, info
        if isinstance(work, str) and not result.settlement and result.state is UNNAMED:
            return fields  # the other fields have their defaults
        rest = result.instructions, result.declares_success, result.settlement, result.action_costs, result.state
        return *fields, *rest, result.markov_keys, result.task_key

    def close(self) -> None:
        self._pool.close()


def _exact(it: Any) -> Any:
    """Return a string or number as its plain class; a subclass may not be importable in another process."""
    if type(it) in _PLAIN:
        return it
    if isinstance(it, str):
        return str.__str__(it)
    return int(it) if isinstance(it, int) else float(it)


def registered() -> list[bytes]:
    """Return pickled specs of this program's environments that cannot be imported by name."""
    import cloudpickle

    specs = []
    for spec in gym.registry.values():
        if callable(spec.entry_point):
            with suppress(Exception):  # it may not be needed; if it is, making it raises
                specs.append(cloudpickle.dumps(spec))
    return specs


def register(specs: Iterable[bytes]) -> None:
    """Register in this process the pickled specs of another one, as far as they can be imported."""
    for packed in specs:
        with suppress(Exception):  # as above
            spec: EnvSpec = pickle.loads(packed)  # noqa: S301 -- the parent's
            gym.registry.setdefault(spec.id, spec)


def _end_all(processes: list[_Process]) -> None:
    workers = [process.worker for process in processes]
    processes.clear()
    threads = []
    for worker in workers:
        thread = Thread(target=worker.close)
        try:
            thread.start()
        except RuntimeError:  # since Python 3.12 no thread starts at interpreter shutdown
            worker.close()
        else:
            threads.append(thread)
    for thread in threads:
        thread.join()
