"""Executor that steps environments in threads."""

import math
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import NamedTuple, TypeAlias

from gym_trl.errors import check_counts
from gym_trl.executors.inline import InlinePool
from gym_trl.executors.protocol import EnvFactory, check_timeouts
from gym_trl.executors.step import name_of
from gym_trl.executors.worker_pool import WorkerPool
from gym_trl.types import EnvFailure, StepResult, StopReason, Task

GIVEN_UP_S = 10.0
"""Seconds that an environment without a time limit may continue after a ``Cutoff`` has stopped its episode."""


class ThreadPool(WorkerPool["_Worker"]):
    """Pool that steps environments in threads, for environments that wait for something outside Python.

    >>> import gymnasium as gym
    >>> with ThreadPool(gym.make, workers=2) as pool:
    ...     pool.reset("a", Task("TrlEnv/Echo-v0", seed=0))
    ...     [(key, result)] = pool.collect(block=True)
    >>> key, type(result).__name__
    ('a', 'StepResult')

    All calls of an instance are made in one thread, as browsers and some simulators require. A new episode goes to the
    thread with the fewest episodes. Threads are started on demand. Environments that compute in Python gain nothing
    from threads.

    Python cannot end a thread that exceeds its time limit: it is abandoned and replaced. The episode whose call it was
    executing ends with ``crashed`` in a step and with ``timeout`` in a reset; the thread's other episodes go on in
    other threads, as in a ``ProcessPool``. Use that for environments that often do not return in time.

    Args:
        make: Makes an environment from its id.
        workers: Maximum number of threads, and so of environments that can wait at once. They are started as needed.
        reset_timeout: Maximum seconds for making and resetting an environment.
        step_timeout: Maximum seconds for a step.
    """

    def __init__(
        self,
        make: EnvFactory,
        *,
        workers: int = 1024,
        reset_timeout: float | None = None,
        step_timeout: float | None = None,
    ) -> None:
        check_counts(workers=workers)
        check_timeouts(reset_timeout=reset_timeout, step_timeout=step_timeout)
        super().__init__()
        self._make = make
        self._limits = {"reset": reset_timeout, "step": step_timeout}
        self._size = workers
        self._workers: list[_Worker] = []
        self._results: SimpleQueue[_Result] = SimpleQueue()

    def collect(self, *, block: bool) -> list[tuple[str, StepResult | EnvFailure]]:
        """Return the results since the last call; if ``block``, wait for at least one."""
        results: list[tuple[str, StepResult | EnvFailure]] = self._take_failed()
        while self._tickets:
            if self._moving:
                self._move_on()
            wait = block and not results
            try:
                ticket, key, result = self._results.get(block=wait, timeout=self._patience() if wait else None)
            except Empty:
                self._give_up()
                results += self._take_failed()
                if wait and not results:
                    continue
                break
            if isinstance(result, BaseException):
                if self._tickets.get(key) == ticket:
                    raise result
            elif (accepted := self._accepted(ticket, key, result)) is not None:
                results.append((key, accepted))
        return results

    def close(self) -> None:
        """Close every instance and end the threads; a thread that is still busy after five seconds is abandoned."""
        workers, self._workers = self._workers, []
        self._clear()
        for worker in workers:
            worker.work.put(None)
        deadline = monotonic() + 5
        for worker in workers:
            worker.thread.join(max(0.0, deadline - monotonic()))

    def _released(self, worker: "_Worker", key: str) -> None:
        worker.given_up.add(key)
        worker.work.put((0, key, None))

    def _send(self, worker: "_Worker", ticket: int, key: str, work: Task | str) -> None:
        worker.work.put((ticket, key, work))

    def _limit(self, worker: "_Worker", doing: "_Doing") -> float | None:
        """Return the maximum seconds of a call; ``None`` if there is no limit."""
        limit = self._limits[doing.what]
        return GIVEN_UP_S if limit is None and doing.key in worker.given_up else limit

    def _due(self, worker: "_Worker") -> float:
        """Return the time by which the thread's current call must have returned."""
        if (doing := worker.doing) is None or (limit := self._limit(worker, doing)) is None:
            return math.inf
        return doing.since + limit

    def _patience(self) -> float | None:
        """Return the seconds until a call has to be checked; ``None`` if there is no limit."""
        # The times of calls that start meanwhile are unknown: check again after the shortest limit.
        shortest = min((limit for limit in self._limits.values() if limit is not None), default=math.inf)
        if shortest == math.inf and not any(worker.given_up for worker in self._workers):
            return None
        wait = min(shortest, min(map(self._due, self._workers)) - monotonic())
        return None if wait == math.inf else max(0.0, wait)

    def _give_up(self) -> None:
        """Abandon threads whose current call exceeded its limit, and fail its episode unless that was released."""
        for worker in [worker for worker in self._workers if self._due(worker) <= monotonic()]:
            doing = worker.doing
            limit = None if doing is None else self._limit(worker, doing)
            if doing is None or limit is None or doing.since + limit > monotonic():  # it has returned meanwhile
                continue
            self._workers.remove(worker)
            worker.abandoned = True
            worker.work.put(None)  # ends the thread if its call returns after all
            late = f"{doing.what} did not answer within {limit:g} s"
            if self._limits[doing.what] is None:
                late = f"{doing.what} did not end within {limit:g} s after its episode was given up"
            guilty = None if doing.key in worker.given_up else doing.key
            if guilty in worker.episodes:
                self._fail(guilty, EnvFailure(late, StopReason.CRASHED if doing.what == "step" else StopReason.TIMEOUT))
            others = sorted(worker.episodes - {guilty})
            self._move(others, f"its thread was left behind with another episode's environment: {late}")

    def _least_busy(self) -> "_Worker":
        idle = next((worker for worker in self._workers if not worker.load), None)
        if idle is None and len(self._workers) < self._size:
            self._workers.append(idle := _Worker(InlinePool(self._make), self._results))
        return idle or min(self._workers, key=lambda worker: worker.load)


_Result: TypeAlias = tuple[int, str, StepResult | EnvFailure | BaseException]


class _Doing(NamedTuple):
    what: str
    key: str
    since: float


class _Worker:
    """Thread that steps its own environments."""

    def __init__(self, pool: InlinePool, results: "SimpleQueue[_Result]") -> None:
        self.episodes: set[str] = set()
        self.given_up: set[str] = set()
        self.doing: _Doing | None = None
        self.abandoned = False
        self.work: SimpleQueue[tuple[int, str, Task | str | None] | None] = SimpleQueue()
        self._pool = pool
        self._results = results
        self.thread = Thread(target=self._run, name="gym-trl environments", daemon=True)
        self.thread.start()

    @property
    def load(self) -> int:
        """Number of its episodes, plus the running call of one that was released."""
        doing = self.doing
        return len(self.episodes) + (doing is not None and doing.key in self.given_up)

    def _run(self) -> None:
        while (item := self.work.get()) is not None:
            ticket, key, work = item
            if work is None:
                self._pool.release(key)
                self.given_up.discard(key)
            if key in self.given_up or work is None:
                continue
            self.doing = _Doing(name_of(work), key, monotonic())
            result: StepResult | EnvFailure | BaseException
            try:
                result = self._pool.execute(key, work)
            except BaseException as interrupt:  # raised in the thread of the pool
                result = interrupt
            self.doing = None
            if self.abandoned:
                break
            self._results.put((ticket, key, result))
        self._pool.close()
